package clone

import (
	"log/slog"

	"github.com/oplogrep/replicator/oplog"
)

// The keys of events.
const (
	keyNS     = "ns"
	keyCause  = "cause"
	keyDocs   = "docs"
	keyRanges = "ranges"
	keyOrder  = "order"
)

// Reopened is a scan of the source that was interrupted and goes on.
type Reopened struct {
	NS  oplog.Namespace
	Err error
}

// Message implements event.Event.
func (Reopened) Message() string { return "reading a collection goes on after an interruption" }

// Level implements event.Event.
func (Reopened) Level() slog.Level { return slog.LevelDebug }

// LogValue implements slog.LogValuer.
func (e Reopened) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyNS, string(e.NS)), slog.String(keyCause, e.Err.Error()))
}

// Replaced is a flush that met documents which were copied before, and replaced
// them.
type Replaced struct {
	NS   oplog.Namespace
	Docs int
}

// Message implements event.Event.
func (Replaced) Message() string { return "documents were copied again" }

// Level implements event.Event.
func (Replaced) Level() slog.Level { return slog.LevelDebug }

// LogValue implements slog.LogValuer.
func (e Replaced) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyNS, string(e.NS)), slog.Int(keyDocs, e.Docs))
}

// Divided is a collection that is copied in several ranges.
type Divided struct {
	NS     oplog.Namespace
	Ranges int
	// Order is "natural" or "_id".
	Order string
}

// Message implements event.Event.
func (Divided) Message() string { return "a collection is copied in ranges" }

// Level implements event.Event.
func (Divided) Level() slog.Level { return slog.LevelDebug }

// LogValue implements slog.LogValuer.
func (e Divided) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyNS, string(e.NS)), slog.Int(keyRanges, e.Ranges), slog.String(keyOrder, e.Order))
}
