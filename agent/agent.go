package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/web"
)

// Link is a link with its settings.
type Link struct {
	Name string
	// Settings identifies the settings: a link whose Settings change is restarted.
	Settings string
	// Run mirrors until soft is done, then drains and returns nil. When ctx is done it returns
	// at once. It calls show once there is something to show.
	Run func(ctx, soft context.Context, show func(View)) error
}

// View is the view of a running link.
type View struct {
	// Summary describes the link in a few words.
	Summary func() Summary
	// Link is served over HTTP.
	Link web.Link
	// Metrics are the link's, without a label of its name.
	Metrics prometheus.Gatherer
}

// Summary is the state of a link in a few words.
type Summary struct {
	// State is the link's own: package monitor has them.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// Healthy is that of the link's health check; Level, Verdict, Next and Also say how it is and
	// what to do.
	Healthy    bool     `json:"healthy"`
	Level      string   `json:"level"`
	Verdict    string   `json:"verdict"`
	Next       string   `json:"next,omitempty"`
	Also       []string `json:"also,omitempty"`
	Consistent bool     `json:"consistent"`
	LagSeconds *float64 `json:"lagSeconds"`
}

// Config configures an Agent.
type Config struct {
	// Version is the program's, Member the name of this process among the others.
	Version, Member string
	// Max is how many links run at the same time. Required.
	Max int
	// Explain describes the error of a link. Required.
	Explain func(error) Failure
	// Ready returns why the process does not take part, nil if it does. Nil: it always does.
	Ready func() error
	// RetryMin and RetryMax limit the pause before a link is restarted, which doubles from
	// one to the next. Defaults 1 s and 1 min.
	RetryMin, RetryMax time.Duration
	// MoveAfter is how many ends in a row with an error that a restart may help make Work return
	// it, so that another process may try. Default 5.
	MoveAfter int
	// Log gets the events of links. Required.
	Log *slog.Logger
}

// Agent runs links. Its methods are safe for concurrent use.
type Agent struct {
	cfg     Config
	started time.Time
	// soft is done when the process is to end; hard ends all links at once.
	soft, hard context.Context //nolint:containedctx // the process's own ends
	room       chan struct{}

	mu sync.Mutex // guards the rest
	// links are those of the file, changed is closed and replaced with each change.
	links   map[string]Link
	changed chan struct{}
	jobs    map[string]*job
	// fault is why the file could not be read the last time; loaded is when it was.
	fault  string
	loaded time.Time
	// undrained are the links that had not drained when the process ended.
	undrained []string
}

// New returns an Agent without links. Soft is done when the process is to end: the coordinator
// then ends the contexts of all Work. When hard is done all links stop at once.
func New(hard, soft context.Context, cfg Config) *Agent {
	if cfg.RetryMin == 0 {
		cfg.RetryMin = time.Second
	}
	if cfg.RetryMax == 0 {
		cfg.RetryMax = time.Minute
	}
	if cfg.MoveAfter == 0 {
		cfg.MoveAfter = 5
	}
	return &Agent{
		cfg: cfg, hard: hard, soft: soft, started: time.Now(), room: make(chan struct{}, cfg.Max),
		links: map[string]Link{}, changed: make(chan struct{}), jobs: map[string]*job{},
	}
}

// Set replaces the links. Those that run with other settings drain and start again; those that
// are gone drain.
func (a *Agent) Set(links []Link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.links)
	for _, l := range links {
		a.links[l.Name] = l
	}
	a.fault, a.loaded = "", time.Now()
	close(a.changed)
	a.changed = make(chan struct{})
}

// Fault records that the links could not be read: those from before remain.
func (a *Agent) Fault(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fault = err.Error()
}

// Names returns the links, sorted.
func (a *Agent) Names() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(maps.Keys(a.links))
}

// Undrained returns the links that had not drained when the process was to end, sorted.
func (a *Agent) Undrained() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(slices.Values(a.undrained))
}

// find returns a link, and a channel that is closed when links change.
func (a *Agent) find(name string) (l Link, found bool, changed <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l, found = a.links[name]
	return l, found, a.changed
}

// errChanged is the cause with which a link ends whose settings have changed.
var errChanged = errors.New("the settings of the link have changed")

// other waits until a link has other settings than these, or is gone, or until again has a value.
func (a *Agent) other(ctx context.Context, name, settings string, again <-chan struct{}) bool {
	for {
		l, found, changed := a.find(name)
		if !found || l.Settings != settings {
			return true
		}
		select {
		case <-changed:
		case <-again:
			return true
		case <-ctx.Done():
			return false
		}
	}
}
