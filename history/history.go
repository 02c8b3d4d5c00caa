package history

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"
)

// History has the figures and the events of a link. It is safe for concurrent use.
type History struct {
	mu     sync.Mutex // guards the fields below
	rings  *rings
	events events
	// news is closed when there is another event.
	news chan struct{}
}

// New returns an empty History.
func New() *History { return &History{rings: newRings(), news: make(chan struct{})} }

// Add adds a sample.
func (h *History) Add(now time.Time, v Values) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.rings {
		h.rings[i].add(now, &v)
	}
}

// Tell adds an event. Its ID is not considered: it gets one.
func (h *History) Tell(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.At = e.At.UTC()
	if _, added := h.events.add(e); added {
		h.announce()
	}
}

// announce wakes the receivers of News. The caller holds the lock.
func (h *History) announce() {
	close(h.news)
	h.news = make(chan struct{})
}

// EventsAfter returns the events that became known here after the one with a Seq, in that order;
// all of them for 0. Their fields must not be changed.
func (h *History) EventsAfter(seq uint64) []Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.events.after(seq)
}

// News returns a channel that is closed when there is another event: take the channel
// first, then the events.
func (h *History) News() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.news
}

// Stored is the content of a document.
type Stored struct {
	// Term is that of the leader that wrote it, at At by its clock.
	Term int64
	At   time.Time

	rings  rings
	events []Event
}

// Stored returns the history to store.
func (h *History) Stored() *Stored {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &Stored{rings: *h.rings, events: slices.Clone(h.events.list)}
}

// Fill takes from a stored history the figures that are not known here.
func (h *History) Fill(s *Stored) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.rings {
		h.rings[i].fill(&s.rings[i])
	}
	h.merge(s)
}

// Replace takes all figures from a stored history, and its events in addition to those
// here.
func (h *History) Replace(s *Stored) {
	h.mu.Lock()
	defer h.mu.Unlock()
	*h.rings = s.rings
	h.merge(s)
}

// merge adds stored events. The caller holds the lock.
func (h *History) merge(s *Stored) {
	before := h.events.last
	h.events.merge(s.events)
	if h.events.last > before {
		h.announce()
	}
}

// spans are the times that a View may show.
var spans = [...]time.Duration{time.Hour, 6 * time.Hour, 24 * time.Hour}

// View is the history of a span of time. It is written as JSON: numbers of all series, null for
// unknown ones, and all events that are known.
type View struct {
	At time.Time
	// Step is the time between two points, From the first one.
	Step time.Duration
	From time.Time
	// Series have a value for each point, NaN if it is not known.
	Series [Count][]float32
	// Events are in the order of their IDs.
	Events []Event
}

// View returns the history of the last 1, 6 or 24 hours; it returns an error for another
// time.
func (h *History) View(span time.Duration, now time.Time) (View, error) {
	which := slices.Index(spans[:], span)
	if which < 0 {
		return View{}, fmt.Errorf("the history of %s: there is that of 1h, 6h and 24h", span)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &h.rings[which]
	newest := floor(now.Unix(), r.step)
	first := newest - points + 1
	v := View{
		At: now.UTC(), Step: time.Duration(r.step) * time.Second, From: time.Unix(first*r.step, 0).UTC(),
		Events: slices.Clone(h.events.list),
	}
	for s := range v.Series {
		v.Series[s] = make([]float32, points)
		for i := range v.Series[s] {
			v.Series[s][i] = r.point(Series(s), first+int64(i))
		}
	}
	return v, nil
}

// MarshalJSON implements json.Marshaler.
func (v View) MarshalJSON() ([]byte, error) {
	at, err := json.Marshal(v.At)
	if err != nil {
		return nil, err
	}
	list := v.Events
	if list == nil {
		list = []Event{}
	}
	told, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	out := fmt.Appendf(nil, `{"at":%s,"stepSeconds":%d,"from":%d,"series":{`, at, int64(v.Step.Seconds()), v.From.Unix())
	for s, values := range v.Series {
		if s > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendQuote(out, Series(s).String())
		out = append(out, ':', '[')
		for i, value := range values {
			if i > 0 {
				out = append(out, ',')
			}
			if math.IsNaN(float64(value)) {
				out = append(out, "null"...)
			} else {
				out = strconv.AppendFloat(out, float64(value), 'f', -1, 32)
			}
		}
		out = append(out, ']')
	}
	out = append(out, `},"events":`...)
	return append(append(out, told...), '}'), nil
}
