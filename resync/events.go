package resync

import (
	"log/slog"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
)

const (
	keyError  = "error"
	keyEvent  = "event"
	keyNS     = "ns"
	keyReason = "reason"
)

var (
	_ event.Event = Began{}
	_ event.Event = Ended{}
	_ event.Event = PartEvent{}
)

// Began reports that the copy of a collection begins or continues, while the link
// mirrors the rest.
type Began struct{ NS oplog.Namespace }

// Message implements event.Event.
func (Began) Message() string { return "a collection is copied again" }

// Level implements event.Event.
func (Began) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Began) LogValue() slog.Value { return slog.GroupValue(slog.String(keyNS, string(e.NS))) }

// Ended reports that the link has a collection again, or that it could not be copied.
type Ended struct {
	NS oplog.Namespace
	// Err is nil if it was copied.
	Err error
}

// Message implements event.Event.
func (e Ended) Message() string {
	if e.Err != nil {
		return "a collection could not be copied again"
	}
	return "the copied collection is part of the link again"
}

// Level implements event.Event.
func (e Ended) Level() slog.Level {
	if e.Err != nil {
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// LogValue implements slog.LogValuer.
func (e Ended) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String(keyNS, string(e.NS))}
	if e.Err != nil {
		attrs = append(attrs, slog.String(keyError, e.Err.Error()))
	}
	return slog.GroupValue(attrs...)
}

// PartEvent is an event of the pipeline of a part.
type PartEvent struct {
	NS    oplog.Namespace
	Event event.Event
}

// Message implements event.Event.
func (e PartEvent) Message() string { return "copying again: " + e.Event.Message() }

// Level implements event.Event: Info events of a link are details of a part.
func (e PartEvent) Level() slog.Level {
	if l := e.Event.Level(); l >= slog.LevelWarn {
		return l
	}
	return slog.LevelDebug
}

// LogValue implements slog.LogValuer.
func (e PartEvent) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyNS, string(e.NS)), slog.Any(keyEvent, e.Event.LogValue()))
}
