package monitor

import (
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
)

// State is the state of a link.
type State string

// The states of a link. CatchingUp and Steady mean that entries are being read, or a
// member to read from is being looked for, and that the position is known to be part of
// the source's history.
const (
	// Starting: acquiring the lease and checking its position.
	Starting State = "starting"
	// Standby: another process has the lease; this one waits for it.
	Standby State = "standby"
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

// ended reports whether a link in this state has ended.
func (s State) ended() bool { return s == Stopped || s == Failed }

// set changes the state and announces that. mu is held, so that changes are announced in
// order.
func (m *Monitor) set(to State, reason string) {
	from := m.state
	m.state, m.reason = to, reason
	if from != to {
		m.since = time.Now()
		m.cfg.Observer.Tell(StateChanged{From: from, To: to, Reason: reason})
	}
}

// Keys of the events' attributes.
const (
	keyFor      = "for"
	keyFrom     = "from"
	keyHost     = "host"
	keyLeft     = "left"
	keyLeftOut  = "leftOut"
	keyOldest   = "oldest"
	keyOpTime   = "optime"
	keyPosition = "position"
	keyReason   = "reason"
	keyTo       = "to"
)

// StateChanged announces a new state of a link. Its observer must not call the Monitor.
type StateChanged struct {
	From, To State
	// Reason says why, empty if the states imply it.
	Reason string
}

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

// Consistent announces that the target equals the source as of OpTime, and has followed
// it since.
type Consistent struct {
	OpTime oplog.OpTime
	// LeftOut are the collections that are being copied again, to which this does not
	// apply.
	LeftOut []oplog.Namespace
}

var _, _ event.Event = StateChanged{}, Consistent{}

// Message implements event.Event.
func (e Consistent) Message() string {
	if len(e.LeftOut) > 0 {
		return "the target is consistent but for collections that are copied again"
	}
	return "the target is consistent"
}

// Level implements event.Event.
func (Consistent) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Consistent) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String(keyOpTime, e.OpTime.String())}
	if len(e.LeftOut) > 0 {
		attrs = append(attrs, slog.Any(keyLeftOut, e.LeftOut))
	}
	return slog.GroupValue(attrs...)
}
