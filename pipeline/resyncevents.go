package pipeline

import (
	"log/slog"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/oplog"
)

const (
	keyEvent = "event"
	keyNS    = "ns"
)

var (
	_ event.Event = ResyncNeeded{}
	_ event.Event = LateCommand{}
	_ event.Event = ResyncBegan{}
	_ event.Event = ResyncEnded{}
	_ event.Event = ResyncEvent{}
)

// ResyncNeeded says that a collection has to be copied again, as the log alone
// cannot make it. The link leaves it out until that is done.
type ResyncNeeded struct {
	NS  oplog.Namespace
	Err error
}

// Message implements event.Event.
func (ResyncNeeded) Message() string { return "a collection has to be copied" }

// Level implements event.Event.
func (ResyncNeeded) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e ResyncNeeded) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyNS, string(e.NS)), slog.String(keyReason, e.Err.Error()))
}

// LateCommand says that a command of this process was carried out on the target
// after another process had taken the link over.
type LateCommand struct {
	// NS is the target's namespace that it may have hit.
	NS oplog.Namespace
	// Err says which command it was.
	Err error
	// Asked tells that the other process was asked to copy it again; Failed is why
	// that did not work.
	Asked  bool
	Failed error
}

// Message implements event.Event.
func (e LateCommand) Message() string {
	if e.Asked {
		return "a late command may have changed a collection: it is to be copied again"
	}
	return "a late command may have changed a collection: compare it with the source"
}

// Level implements event.Event.
func (LateCommand) Level() slog.Level { return slog.LevelError }

// LogValue implements slog.LogValuer.
func (e LateCommand) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String(keyNS, string(e.NS)), slog.String(keyReason, e.Err.Error())}
	if e.Failed != nil {
		attrs = append(attrs, slog.Any(keyError, e.Failed))
	}
	return slog.GroupValue(attrs...)
}

// ResyncBegan says that a collection is copied again, or that this goes on, while
// the link goes on without it.
type ResyncBegan struct{ NS oplog.Namespace }

// Message implements event.Event.
func (ResyncBegan) Message() string { return "a collection is copied again" }

// Level implements event.Event.
func (ResyncBegan) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e ResyncBegan) LogValue() slog.Value { return slog.GroupValue(slog.String(keyNS, string(e.NS))) }

// ResyncEnded says that the link has a collection again, or that it could not be
// copied.
type ResyncEnded struct {
	NS oplog.Namespace
	// Err is nil where it was copied.
	Err error
}

// Message implements event.Event.
func (e ResyncEnded) Message() string {
	if e.Err != nil {
		return "a collection could not be copied again"
	}
	return "the copied collection is part of the link again"
}

// Level implements event.Event.
func (e ResyncEnded) Level() slog.Level {
	if e.Err != nil {
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// LogValue implements slog.LogValuer.
func (e ResyncEnded) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String(keyNS, string(e.NS))}
	if e.Err != nil {
		attrs = append(attrs, slog.String(keyError, e.Err.Error()))
	}
	return slog.GroupValue(attrs...)
}

// ResyncEvent is an event of what copies one collection again.
type ResyncEvent struct {
	NS    oplog.Namespace
	Event event.Event
}

// Message implements event.Event.
func (e ResyncEvent) Message() string { return "copying again: " + e.Event.Message() }

// Level implements event.Event: what is news of a link is a detail here.
func (e ResyncEvent) Level() slog.Level {
	if l := e.Event.Level(); l >= slog.LevelWarn {
		return l
	}
	return slog.LevelDebug
}

// LogValue implements slog.LogValuer.
func (e ResyncEvent) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyNS, string(e.NS)), slog.Any(keyEvent, e.Event.LogValue()))
}
