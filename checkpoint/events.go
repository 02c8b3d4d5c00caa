package checkpoint

import (
	"log/slog"

	"github.com/oplogrep/replicator/oplog"
)

// Keys of the events' attributes.
const (
	keyLink      = "link"
	keyTerm      = "term"
	keyApplied   = "applied"
	keyFetchFrom = "fetchFrom"
	keyWriters   = "writers"
	keyFrom      = "from"
	keyError     = "error"
	keyNumber    = "number"
	keyHost      = "host"
	keyBegin     = "begin"
	keyPhase     = "phase"
	keyStop      = "stop"
	keyWhy       = "why"
)

// Created is a link that was made.
type Created struct {
	Link    string
	Writers int
	Applied oplog.OpTime
}

// Message implements event.Event.
func (Created) Message() string { return "link created in the target" }

// Level implements event.Event.
func (Created) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Created) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyLink, e.Link), slog.Int(keyWriters, e.Writers),
		slog.String(keyApplied, e.Applied.String()))
}

// Acquired reports that the process acquired the link's lease under a new term:
// writes of older terms are refused from then on.
type Acquired struct {
	Link               string
	Term               int64
	Applied, FetchFrom oplog.OpTime
}

// Message implements event.Event.
func (Acquired) Message() string { return "lease acquired" }

// Level implements event.Event.
func (Acquired) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Acquired) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyLink, e.Link), slog.Int64(keyTerm, e.Term),
		slog.String(keyApplied, e.Applied.String()), slog.String(keyFetchFrom, e.FetchFrom.String()))
}

// Advanced is a checkpoint that was written: Applied is durable.
type Advanced struct {
	Link               string
	Applied, FetchFrom oplog.OpTime
}

// Message implements event.Event.
func (Advanced) Message() string { return "checkpoint written" }

// Level implements event.Event.
func (Advanced) Level() slog.Level { return slog.LevelDebug }

// LogValue implements slog.LogValuer.
func (e Advanced) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyLink, e.Link),
		slog.String(keyApplied, e.Applied.String()), slog.String(keyFetchFrom, e.FetchFrom.String()))
}

// Resized is a link whose number of writers was changed.
type Resized struct {
	Link     string
	From, To int
	Applied  oplog.OpTime
}

// Message implements event.Event.
func (Resized) Message() string { return "number of writers changed" }

// Level implements event.Event.
func (Resized) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Resized) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyLink, e.Link), slog.Int(keyFrom, e.From),
		slog.Int(keyWriters, e.To), slog.String(keyApplied, e.Applied.String()))
}

// Fenced is a write that was refused because another process has acquired the lease.
type Fenced struct {
	Link string
	Term int64
	Err  error
}

// Message implements event.Event.
func (Fenced) Message() string { return "another process has acquired the lease" }

// Level implements event.Event.
func (Fenced) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e Fenced) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyLink, e.Link), slog.Int64(keyTerm, e.Term), slog.String(keyError, e.Err.Error()))
}

// Rewound is a target that was found without writes that it had acknowledged.
type Rewound struct {
	Link string
	Term int64
	Err  error
}

// Message implements event.Event.
func (Rewound) Message() string {
	return "the target lost acknowledged writes, which are written again"
}

// Level implements event.Event.
func (Rewound) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e Rewound) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyLink, e.Link), slog.Int64(keyTerm, e.Term), slog.String(keyError, e.Err.Error()))
}

// CopyBegun is a copy that takes the place of one that is void, or the first one
// of a link that was there.
type CopyBegun struct {
	Link   string
	Number int64
	// Host is the member that is copied.
	Host  string
	Begin oplog.OpTime
	// Why says why the copy before was void.
	Why string
}

// Message implements event.Event.
func (CopyBegun) Message() string { return "new copy begun" }

// Level implements event.Event.
func (CopyBegun) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e CopyBegun) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyLink, e.Link), slog.Int64(keyNumber, e.Number), slog.String(keyHost, e.Host),
		slog.String(keyBegin, e.Begin.String()), slog.String(keyWhy, e.Why))
}

// CopyMoved is a copy that is in another phase.
type CopyMoved struct {
	Link   string
	Number int64
	Phase  CopyPhase
	Stop   oplog.OpTime
}

// Message implements event.Event.
func (CopyMoved) Message() string { return "copy in its next phase" }

// Level implements event.Event.
func (CopyMoved) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e CopyMoved) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyLink, e.Link), slog.Int64(keyNumber, e.Number),
		slog.String(keyPhase, string(e.Phase)), slog.String(keyStop, e.Stop.String()))
}
