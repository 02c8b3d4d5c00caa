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
	keyWhy       = "why" // why the previous copy was void
)

// Acquired reports that this process acquired the link's lease in a new term, and that
// writes of older terms are refused from now on.
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

// Advanced reports that a checkpoint was written: everything up to Applied is durable.
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
