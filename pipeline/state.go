package pipeline

import (
	"log/slog"
	"sync"
	"time"

	"github.com/oplogrep/replicator/internal/event"
)

// State is what a link is doing.
type State string

// The states of a link. CatchingUp and Steady mean that entries are being read, or a
// member to read from is being looked for, and that the position is known to be part of
// the source's history.
const (
	// Starting: acquiring the lease and checking its position.
	Starting State = "starting"
	// InitialSync: a copy is being made, or the oplog is applied to a copy that was
	// taken while writes continued; the target is not consistent.
	InitialSync State = "initial-sync"
	// CatchingUp: the oplog has entries that are not applied.
	CatchingUp State = "catching-up"
	// Steady: everything that the source has committed is applied, except entries in
	// flight.
	Steady State = "steady"
	// Stale: no reachable member has the position any more.
	Stale State = "stale"
	// Failed: it ended with an error.
	Failed State = "failed"
	// Stopped: it ended as requested.
	Stopped State = "stopped"
)

// StateChanged announces a new state of a link.
type StateChanged struct {
	From, To State
	// Reason says why, empty if the states imply it.
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

// stateBox contains the state. Its changes are announced in order.
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

// ended reports whether a link in this state has ended.
func (s State) ended() bool { return s == Stopped || s == Failed }

// nonEmpty returns a list of one text, empty if the text is.
func nonEmpty(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}
