package applier

import (
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
)

// The keys of events.
const (
	keyNS   = "ns"
	keyByID = "byID"
	// keyOneLane counts collections that have one lane.
	keyOneLane = "oneLane"
	keyOpTime  = "optime"
	keyLane    = "lane"
	keyFrom    = "from"
	keyID      = "id"
	keyWhat    = "what"
	keyOps     = "ops"
	keyCause   = "cause"
	keyWhy     = "why"
	keyWaited  = "waited"
	keyIndex   = "index"
)

// Divergence is a divergence that the run goes on after.
type Divergence struct{ Err *DivergenceError }

// Message implements event.Event.
func (Divergence) Message() string { return "target diverged" }

// Level implements event.Event.
func (Divergence) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e Divergence) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyNS, string(e.Err.NS)), slog.String(keyID, showID(e.Err.ID)),
		slog.String(keyOpTime, e.Err.OpTime.String()), slog.String(keyWhat, e.Err.What))
}

// SlowPath is a flush whose operations are done one by one.
type SlowPath struct {
	Lane string
	Ops  int
	// From is the first one's place.
	From  checkpoint.Position
	Cause error
}

// Message implements event.Event.
func (SlowPath) Message() string { return "operations are applied one by one" }

// Level implements event.Event.
func (SlowPath) Level() slog.Level { return slog.LevelDebug }

// LogValue implements slog.LogValuer.
func (e SlowPath) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyLane, e.Lane), slog.Int(keyOps, e.Ops),
		slog.String(keyFrom, e.From.String()), slog.String(keyCause, e.Cause.Error()))
}

// NotAtomic is a source transaction that the target cannot take in one.
type NotAtomic struct {
	OpTime oplog.OpTime
	Ops    int
	Why    string
}

// Message implements event.Event.
func (NotAtomic) Message() string { return "a transaction is applied in several" }

// Level implements event.Event.
func (NotAtomic) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e NotAtomic) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyOpTime, e.OpTime.String()), slog.Int(keyOps, e.Ops), slog.String(keyWhy, e.Why))
}

// BarrierWait is a wait for all lanes that takes long.
type BarrierWait struct {
	// For is what waits.
	For    oplog.OpTime
	Waited time.Duration
}

// Message implements event.Event.
func (BarrierWait) Message() string { return "still waiting for earlier operations" }

// Level implements event.Event.
func (BarrierWait) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e BarrierWait) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyOpTime, e.For.String()), slog.Duration(keyWaited, e.Waited))
}

// IndexHeld is an index of the log that could not be built on a copy, whose
// documents or other indexes may be of a later time. It is held back.
type IndexHeld struct {
	OpTime oplog.OpTime
	NS     oplog.Namespace
	Index  string
	// Err is the target's refusal.
	Err error
}

// Message implements event.Event.
func (IndexHeld) Message() string { return "index cannot be built on the copy, and is held back" }

// Level implements event.Event.
func (IndexHeld) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e IndexHeld) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyOpTime, e.OpTime.String()), slog.String(keyNS, string(e.NS)),
		slog.String(keyIndex, e.Index), slog.String(keyCause, e.Err.Error()))
}

func (a *Applier) tell(e event.Event) { a.cfg.Observer.Tell(e) }

// Rerouted is a change of how operations are given to lanes, as collections of the
// target, or their indexes, are others than before.
type Rerouted struct {
	// OneLane are collections whose operations go through one lane from now on, in the
	// log's order; ByID those whose operations go to the lanes of their documents.
	OneLane, ByID []oplog.Namespace
}

// Message implements event.Event.
func (Rerouted) Message() string { return "collections go through other lanes from here on" }

// Level implements event.Event.
func (Rerouted) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Rerouted) LogValue() slog.Value {
	return slog.GroupValue(slog.Int(keyOneLane, len(e.OneLane)), slog.Int(keyByID, len(e.ByID)), slog.String(keyNS, someOf(e.OneLane, e.ByID)))
}

// someOf are the first few names of lists.
func someOf(lists ...[]oplog.Namespace) string {
	const most = 5
	names := make([]string, 0, most+1)
	for _, ns := range slices.Concat(lists...) {
		if len(names) == most {
			names = append(names, "...")
			break
		}
		names = append(names, string(ns))
	}
	return strings.Join(names, " ")
}

// DocumentParked is a document that an entry makes too large for the target, as it
// meets a copy of a later time. It is put aside until it fits again.
type DocumentParked struct {
	OpTime oplog.OpTime
	NS     oplog.Namespace
	// ID is its _id as text.
	ID string
}

// Message implements event.Event.
func (DocumentParked) Message() string {
	return "document is too large while the copy is not consistent, and is put aside"
}

// Level implements event.Event.
func (DocumentParked) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e DocumentParked) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyOpTime, e.OpTime.String()), slog.String(keyNS, string(e.NS)), slog.String(keyID, e.ID))
}
