package pipeline

import (
	"log/slog"
	"sync"
	"time"

	"github.com/oplogrep/replicator/internal/event"
)

// State is what a link is doing.
type State string

// The states of a link. Nothing is called catching-up or steady unless entries
// are being read, or a member to read from is being looked for, and the position
// is known to be part of the source's history.
const (
	// Starting: acquiring the lease and checking its position.
	Starting State = "starting"
	// InitialSync: a copy is being made, or the log is applied to one that was taken
	// while writes went on; the target is not consistent.
	InitialSync State = "initial-sync"
	// CatchingUp: there is more in the log than was applied.
	CatchingUp State = "catching-up"
	// Steady: everything that the source has committed is applied, give or take
	// what is under way.
	Steady State = "steady"
	// Stale: no member that can be asked has the position any more.
	Stale State = "stale"
	// Failed: it ended with an error.
	Failed State = "failed"
	// Stopped: it ended as it was told to.
	Stopped State = "stopped"
)

// StateChanged says that a link does something else now.
type StateChanged struct {
	From, To State
	// Reason says why, empty where the states say it.
	Reason string
}

var _ event.Event = StateChanged{}

// Message implements event.Event.
func (StateChanged) Message() string { return "state changed" }

// Level implements event.Event.
func (e StateChanged) Level() slog.Level {
	if e.To == Failed || e.To == Stale {
		return slog.LevelError
	}
	return slog.LevelInfo
}

// LogValue implements slog.LogValuer.
func (e StateChanged) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String(keyFrom, string(e.From)), slog.String(keyTo, string(e.To))}
	if e.Reason != "" {
		attrs = append(attrs, slog.String(keyReason, e.Reason))
	}
	return slog.GroupValue(attrs...)
}

// stateBox holds the state. Its changes are announced in order.
type stateBox struct {
	observer event.Observer

	mu    sync.Mutex // guards the rest, and the order of announcements
	state State
	since time.Time
	cause string
}

func (b *stateBox) set(to State, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == to {
		b.cause = reason
		return
	}
	from := b.state
	b.state, b.cause, b.since = to, reason, time.Now()
	b.observer.Tell(StateChanged{From: from, To: to, Reason: reason})
}

func (b *stateBox) get() (state State, reason string, since time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state, b.cause, b.since
}

// ended tells whether a link in this state has come to its end.
func (s State) ended() bool { return s == Stopped || s == Failed }

// nonEmpty returns a list of a text, empty if that is.
func nonEmpty(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}
