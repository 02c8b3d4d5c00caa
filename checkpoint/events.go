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

// Began is a link that is held under a new term: nothing older can write.
type Began struct {
	Link               string
	Term               int64
	Applied, FetchFrom oplog.OpTime
}

// Message implements event.Event.
func (Began) Message() string { return "link held under a new term" }

// Level implements event.Event.
func (Began) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Began) LogValue() slog.Value {
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

// Fenced is a write that was refused because another process holds the link.
type Fenced struct {
	Link string
	Term int64
	Err  error
}

// Message implements event.Event.
func (Fenced) Message() string { return "another process holds the link" }

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
