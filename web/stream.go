package web

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	// statusEvery is the time between two statuses of a stream.
	statusEvery = time.Second
	// takeTimeout is how long a client may take to read a write.
	takeTimeout = 10 * time.Second
	// maxBurst bounds the events of one write.
	maxBurst = 256
)

// preamble tells the browser when to come back.
const preamble = "retry: 2000\n\n"

// streams are the streams of /events. Each is written by the goroutine of its request alone: it takes
// the latest status when it is done with the one before, so that there is no queue.
type streams struct {
	ending chan struct{}
	ended  sync.Once

	mu     sync.Mutex // guards the rest
	count  int
	frames map[string]*frame
}

// frame is the status of a link, as all its streams get it within one second.
type frame struct {
	clients int // guarded by streams.mu

	mu   sync.Mutex // guards the rest
	of   int64      // the second, of the epoch
	data []byte
}

func newStreams() *streams {
	return &streams{ending: make(chan struct{}), frames: map[string]*frame{}}
}

// end ends all streams.
func (s *streams) end() { s.ended.Do(func() { close(s.ending) }) }

// enter takes a place, and returns the frame of a link. It returns nil if there is none.
func (s *streams) enter(name string) *frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count >= maxStreams {
		return nil
	}
	s.count++
	f := s.frames[name]
	if f == nil {
		f = &frame{}
		s.frames[name] = f
	}
	f.clients++
	return f
}

func (s *streams) leave(name string, f *frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count--
	if f.clients--; f.clients == 0 {
		delete(s.frames, name)
	}
}

func (s *streams) open() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(s.count)
}

// get returns the status as of this second.
func (f *frame) get(status func() any) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now().Unix()
	if f.data != nil && f.of == now {
		return f.data, nil
	}
	body, err := json.Marshal(status())
	if err != nil {
		return nil, err
	}
	f.of, f.data = now, append(append([]byte("event: status\ndata: "), body...), "\n\n"...)
	return f.data, nil
}

// stream is one client.
type stream struct {
	w    http.ResponseWriter
	to   *http.ResponseController
	last uint64 // the last event that was sent
	more <-chan struct{}
	out  bytes.Buffer
}

// serveEvents streams the status and the events of a link.
func (s *Server) serveEvents(of of) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		name, l, err := of(r)
		switch {
		case err != nil:
			s.noLink(w, err)
			return
		case l.Status == nil:
			s.nothing(w)
			return
		}
		f := s.streams.enter(name)
		if f == nil {
			w.Header().Set("Retry-After", "5")
			s.refuse(w, &refusal{http.StatusServiceUnavailable, "streams", "there are " + strconv.Itoa(maxStreams) + " streams: try again"})
			return
		}
		defer s.streams.leave(name, f)
		h := w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("X-Accel-Buffering", "no") // A proxy must not keep it.
		if r.Method == http.MethodHead {
			return
		}
		c := &stream{w: w, to: http.NewResponseController(w)}
		// The request has arrived; its time limit must not end the stream.
		_ = c.to.SetReadDeadline(time.Time{})
		c.resume(&l, r.Header.Get("Last-Event-ID"))
		c.out.WriteString(preamble)
		s.stream(r, c, f, of)
	}
}

// resume continues after the event that the client had last, or begins with the next. One that is
// later than all that are known is of a process whose clock was ahead: those of this one would not reach
// it for as long.
func (c *stream) resume(l *Link, after string) {
	if l.Events == nil {
		return
	}
	events, _ := l.Events(0)
	if n := len(events); n > 0 {
		c.last = events[n-1].ID
	}
	if id, err := strconv.ParseUint(after, 10, 64); err == nil {
		c.last = min(c.last, id)
	}
}

// stream writes until the client has gone or does not read, the server ends, or the process no longer
// has the link.
func (s *Server) stream(r *http.Request, c *stream, f *frame, of of) {
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		due := false
		select {
		case <-r.Context().Done():
			return
		case <-s.streams.ending:
			return
		case <-tick.C:
			due = true
		case <-c.more:
		}
		_, l, err := of(r)
		if err != nil || l.Status == nil {
			return
		}
		if due {
			data, err := f.get(l.Status)
			if err != nil {
				return // GET /status says why
			}
			c.out.Write(data)
			tick.Reset(untilNext(time.Now()))
		}
		if !c.addEvents(&l) {
			return
		}
		if err := c.flush(); err != nil {
			s.metrics.dropped.Inc()
			return
		}
	}
}

// untilNext is the time until the next second begins: all streams of a link take the same status.
func untilNext(now time.Time) time.Duration {
	return now.Truncate(statusEvery).Add(statusEvery).Sub(now)
}

// addEvents adds the events since. It reports whether that could be marshalled.
func (c *stream) addEvents(l *Link) bool {
	c.more = nil
	if l.Events == nil {
		return true
	}
	events, more := l.Events(c.last)
	c.more = more
	if len(events) > maxBurst {
		events, c.more = events[:maxBurst], always
	}
	for _, e := range events {
		body, err := json.Marshal(e.Body)
		if err != nil {
			return false
		}
		c.out.WriteString("id: " + strconv.FormatUint(e.ID, 10) + "\nevent: event\ndata: ")
		c.out.Write(body)
		c.out.WriteString("\n\n")
		c.last = e.ID
	}
	return true
}

// always is ready.
var always = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// flush writes the pending data.
func (c *stream) flush() error {
	if c.out.Len() == 0 {
		return nil
	}
	if err := c.to.SetWriteDeadline(time.Now().Add(takeTimeout)); err != nil {
		return err
	}
	if _, err := c.out.WriteTo(c.w); err != nil {
		return err
	}
	return c.to.Flush()
}
