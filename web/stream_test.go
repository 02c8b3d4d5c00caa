package web

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// happenings is what happens to a link.
type happenings struct {
	mu   sync.Mutex
	list []Event
	more chan struct{}
}

func newHappenings() *happenings { return &happenings{more: make(chan struct{})} }

func (h *happenings) add(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for range n {
		h.list = append(h.list, Event{uint64(len(h.list) + 1), "event " + strconv.Itoa(len(h.list)+1)})
	}
	close(h.more)
	h.more = make(chan struct{})
}

func (h *happenings) after(id uint64) ([]Event, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if id > uint64(len(h.list)) {
		id = uint64(len(h.list))
	}
	return h.list[id:], h.more
}

// client reads a stream.
type client struct {
	net.Conn
	*bufio.Reader
}

// open opens a stream, and reads the header of the answer.
func open(t *testing.T, p *pipes, headers ...string) client {
	t.Helper()
	return openAt(t, p, "/events", headers...)
}

func openAt(t *testing.T, p *pipes, path string, headers ...string) client {
	t.Helper()
	c := client{Conn: p.dial(t)}
	c.Reader = bufio.NewReader(c.Conn)
	send(t, c.Conn, append([]string{"GET " + path + " HTTP/1.1", host}, append(headers, "", "")...)...)
	resp, err := http.ReadResponse(c.Reader, nil) //nolint:bodyclose // the connection is closed
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	c.Reader = bufio.NewReader(resp.Body)
	return c
}

// next reads one event: its lines, joined by spaces.
func (c *client) next() (string, error) {
	var lines []string
	for {
		line, err := c.ReadString('\n')
		if err != nil {
			return "", err
		}
		if line = strings.TrimSuffix(line, "\n"); line == "" {
			return strings.Join(lines, " "), nil
		}
		lines = append(lines, line)
	}
}

func (c *client) expect(t *testing.T, want ...string) {
	t.Helper()
	for _, w := range want {
		if got, err := c.next(); err != nil || got != w {
			t.Errorf("%q, %v; want %q", got, err, w)
		}
	}
}

// ticking is a link with a status that counts the seconds.
func ticking() (Config, *atomic.Int64) {
	var made atomic.Int64
	cfg := config(nil)
	began := time.Now()
	var once sync.Once
	cfg.Link.Status = func() any {
		once.Do(func() { began = time.Now() })
		made.Add(1)
		return int(time.Since(began).Seconds())
	}
	return cfg, &made
}

func ticked(n int) string { return "event: status data: " + strconv.Itoa(n) }

func happened(id int) string {
	return "id: " + strconv.Itoa(id) + ` event: event data: "event ` + strconv.Itoa(id) + `"`
}

// TestStream: a status each second, for longer than requests may take otherwise, and what happens
// when it does.
func TestStream(t *testing.T) {
	t.Parallel()
	var h *happenings
	cfg, _ := ticking()
	cfg.Link.Events = func(id uint64) ([]Event, <-chan struct{}) { return h.after(id) }
	served(t, cfg, func(t *testing.T, p *pipes, _ func()) {
		h = newHappenings()
		h.add(2)
		c := open(t, p)
		c.expect(t, "retry: 2000", ticked(0))
		for n := 1; n <= 2*int(writeTimeout/time.Second); n++ {
			c.expect(t, ticked(n))
		}
		began := time.Now()
		synctest.Wait()
		h.add(2)
		c.expect(t, happened(3), happened(4))
		if took := time.Since(began); took > 0 {
			t.Errorf("it took %s", took)
		}
	})
}

// TestResume: a client that comes back gets what it missed, each event once and in order, however
// many there are; one that had a later one than there is gets what happens from then on.
func TestResume(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		last string
		from int
	}{
		{"", 0},
		{"Last-Event-ID: 2", 3},
		{"Last-Event-ID: 0", 1},
		{"Last-Event-ID: 601", 0},
		{"Last-Event-ID: -1", 0},
		{"Last-Event-ID: x", 0},
		{"Last-Event-ID: 99999999999999999999", 0},
	} {
		var h *happenings
		cfg, _ := ticking()
		cfg.Link.Events = func(id uint64) ([]Event, <-chan struct{}) { return h.after(id) }
		served(t, cfg, func(t *testing.T, p *pipes, _ func()) {
			h = newHappenings()
			h.add(600)
			var headers []string
			if tt.last != "" {
				headers = append(headers, tt.last)
			}
			c := open(t, p, headers...)
			c.expect(t, "retry: 2000", ticked(0))
			for n := tt.from; n > 0 && n <= 600; n++ {
				c.expect(t, happened(n))
			}
			synctest.Wait()
			h.add(1)
			c.expect(t, happened(601), ticked(1))
		})
	}
}

// TestManyStreams: 200 clients and one that reads nothing cost one status per second, and each of the
// 200 gets all; the other is dropped.
func TestManyStreams(t *testing.T) {
	t.Parallel()
	const clients, seconds = 200, 30
	cfg, made := ticking()
	served(t, cfg, func(t *testing.T, p *pipes, _ func()) {
		slow := p.dial(t)
		send(t, slow, "GET /events HTTP/1.1", host, "", "")
		var all sync.WaitGroup
		for range clients {
			c := open(t, p)
			all.Go(func() {
				c.expect(t, "retry: 2000")
				for n := range seconds {
					c.expect(t, ticked(n))
				}
			})
		}
		all.Wait()
		if n := made.Load(); n > seconds+1 {
			t.Errorf("%d statuses were made in %d seconds", n, seconds)
		}
		// It had ten seconds.
		if n, err := io.Copy(io.Discard, slow); err != nil || n > 0 {
			t.Errorf("the slow one was not dropped: %d bytes, %v", n, err)
		}
	})
}

// TestSlowStream: a client that reads nothing keeps its place for ten seconds, and no longer.
func TestSlowStream(t *testing.T) {
	t.Parallel()
	cfg, _ := ticking()
	registry := prometheus.NewRegistry()
	cfg.Registry = registry
	streams := func(t *testing.T) float64 {
		t.Helper()
		for _, family := range must.Get(registry.Gather())(t) {
			if family.GetName() == "replicator_http_streams" {
				return family.GetMetric()[0].GetGauge().GetValue()
			}
		}
		t.Fatal("there is no such metric")
		return 0
	}
	served(t, cfg, func(t *testing.T, p *pipes, _ func()) {
		send(t, p.dial(t), "GET /events HTTP/1.1", host, "", "")
		time.Sleep(takeTimeout - time.Second)
		if n := streams(t); n != 1 {
			t.Errorf("%v streams before its time is over", n)
		}
		time.Sleep(2 * time.Second)
		if n := streams(t); n != 0 {
			t.Errorf("%v streams after its time", n)
		}
	})
}

// TestLatestWins: a client that was slow for a while continues with the current status, and misses those in between.
func TestLatestWins(t *testing.T) {
	t.Parallel()
	cfg, _ := ticking()
	served(t, cfg, func(t *testing.T, p *pipes, _ func()) {
		c := open(t, p)
		c.expect(t, "retry: 2000", ticked(0))
		time.Sleep(takeTimeout - 2*time.Second)
		// One was under way.
		c.expect(t, ticked(1), ticked(8), ticked(9))
	})
}

// TestStreamsAreLimited: one more than there may be is refused, until one has gone; other addresses
// are answered meanwhile.
func TestStreamsAreLimited(t *testing.T) {
	t.Parallel()
	cfg, _ := ticking()
	served(t, cfg, func(t *testing.T, p *pipes, _ func()) {
		list := make([]client, maxStreams)
		for i := range list {
			list[i] = open(t, p)
			go func() { _, _ = io.Copy(io.Discard, list[i].Reader) }()
		}
		c := p.dial(t)
		send(t, c, "GET /events HTTP/1.1", host, "", "")
		if code, body := reply(t, c); code != http.StatusServiceUnavailable || !strings.Contains(body, "256 streams") {
			t.Errorf("%d %s", code, body)
		}
		send(t, c, "GET /healthz HTTP/1.1", host, "", "")
		if code, _ := reply(t, c); code != http.StatusOK {
			t.Errorf("%d", code)
		}
		_ = list[0].Close()
		synctest.Wait()
		again := open(t, p)
		again.expect(t, "retry: 2000")
	})
}

// TestStreamEnds: at once when the server ends, and when the process no longer has the link.
func TestStreamEnds(t *testing.T) {
	t.Parallel()
	cfg, _ := ticking()
	served(t, cfg, func(t *testing.T, p *pipes, stop func()) {
		c := open(t, p)
		c.expect(t, "retry: 2000", ticked(0))
		began, ended := time.Now(), make(chan time.Duration, 1)
		go func() {
			if _, err := c.next(); !errors.Is(err, io.EOF) {
				t.Errorf("%v", err)
			}
			ended <- time.Since(began)
		}()
		stop()
		if took := <-ended; took > 0 {
			t.Errorf("it took %s", took)
		}
	})
	var gone atomic.Bool
	cfg, _ = ticking()
	link := cfg.Link
	cfg.Find = func(string) (Link, error) {
		if gone.Load() {
			return Link{}, ErrNoLink
		}
		return link, nil
	}
	cfg.Link = Link{}
	served(t, cfg, func(t *testing.T, p *pipes, _ func()) {
		c := openAt(t, p, "/link/a/events")
		c.expect(t, "retry: 2000", ticked(0))
		gone.Store(true)
		if _, err := c.next(); !errors.Is(err, io.EOF) {
			t.Errorf("%v", err)
		}
	})
}

// BenchmarkStream is what one status costs: for one client, and for 200.
func BenchmarkStream(b *testing.B) {
	for _, clients := range []int{1, 200} {
		b.Run(strconv.Itoa(clients), func(b *testing.B) {
			cfg, _ := ticking()
			f := &frame{}
			for b.Loop() {
				f.of = 0 // another second
				for range clients {
					if _, err := f.get(cfg.Link.Status); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
