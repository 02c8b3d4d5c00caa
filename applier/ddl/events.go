package ddl

import (
	"log/slog"

	"github.com/oplogrep/replicator/oplog"
)

const (
	keyOpTime  = "optime"
	keyCommand = "command"
	keyNS      = "ns"
	keyIndex   = "index"
	keyFields  = "fields"
	keyWhat    = "what"
	keyError   = "error"
	keyAbsent  = "absent"
	keyReads   = "reads"
)

// CommandApplied is a command of the log that was carried out.
type CommandApplied struct {
	OpTime oplog.OpTime
	// Name is the command's name, NS the target's namespace.
	Name string
	NS   oplog.Namespace
	// Again is the state that the target was taken to be in.
	Again Again
}

// LogValue implements slog.LogValuer.
func (e CommandApplied) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyOpTime, e.OpTime.String()), slog.String(keyCommand, e.Name), slog.String(keyNS, string(e.NS)))
}

// Message implements event.Event.
func (CommandApplied) Message() string { return "command applied" }

// Level implements event.Event.
func (e CommandApplied) Level() slog.Level { return levelOf(e.Again) }

// levelOf is less where a copy is made: there may be thousands of collections.
func levelOf(again Again) slog.Level {
	if again == Copied {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// SpecHeld is a part of a collection or index that is kept back until cutover.
type SpecHeld struct {
	OpTime oplog.OpTime
	NS     oplog.Namespace
	// Index is the index's name, empty for the collection.
	Index string
	// Fields are what is kept back.
	Fields []string
	// Absent tells that the index as a whole is.
	Absent bool
	// Again is the state that the target was taken to be in.
	Again Again
}

// LogValue implements slog.LogValuer.
func (e SpecHeld) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyOpTime, e.OpTime.String()), slog.String(keyNS, string(e.NS)),
		slog.String(keyIndex, e.Index), slog.Any(keyFields, e.Fields), slog.Bool(keyAbsent, e.Absent))
}

// Message implements event.Event.
func (e SpecHeld) Message() string {
	if e.Absent {
		return "index held back until cutover"
	}
	return "options held back until cutover"
}

// Level implements event.Event.
func (e SpecHeld) Level() slog.Level {
	if e.Absent {
		return slog.LevelInfo // it has a refusal of its own
	}
	return levelOf(e.Again)
}

// IndexAbsent is an index that is held as absent, and still cannot be built.
type IndexAbsent struct {
	OpTime oplog.OpTime
	NS     oplog.Namespace
	Index  string
	// Err is the target's refusal.
	Err error
}

// LogValue implements slog.LogValuer.
func (e IndexAbsent) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyOpTime, e.OpTime.String()), slog.String(keyNS, string(e.NS)),
		slog.String(keyIndex, e.Index), slog.Any(keyError, e.Err))
}

// Message implements event.Event.
func (IndexAbsent) Message() string { return "index still cannot be built" }

// Level implements event.Event.
func (IndexAbsent) Level() slog.Level { return slog.LevelWarn }

// Tolerated is a command that a copy was ahead of, as a whole or in part.
type Tolerated struct {
	OpTime oplog.OpTime
	Name   string
	NS     oplog.Namespace
	// What the target has instead.
	What string
}

// LogValue implements slog.LogValuer.
func (e Tolerated) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyOpTime, e.OpTime.String()), slog.String(keyCommand, e.Name),
		slog.String(keyNS, string(e.NS)), slog.String(keyWhat, e.What))
}

// Message implements event.Event.
func (Tolerated) Message() string { return "command passed over: the copy is ahead of the log" }

// Level implements event.Event.
func (Tolerated) Level() slog.Level { return slog.LevelDebug }

// ViewUnmirrored is a view that reads something that is not mirrored: on the
// target it shows less, or what is there under that name.
type ViewUnmirrored struct {
	OpTime oplog.OpTime
	// NS is the target's view, Reads the source's namespace that it reads.
	NS, Reads oplog.Namespace
}

// LogValue implements slog.LogValuer.
func (e ViewUnmirrored) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyOpTime, e.OpTime.String()), slog.String(keyNS, string(e.NS)), slog.String(keyReads, string(e.Reads)))
}

// Message implements event.Event.
func (ViewUnmirrored) Message() string { return "view reads a collection that is not mirrored" }

// Level implements event.Event.
func (ViewUnmirrored) Level() slog.Level { return slog.LevelWarn }

// ViewInvalid is a definition that the source itself takes for none. There is no such
// view on the target.
type ViewInvalid struct {
	OpTime oplog.OpTime
	NS     oplog.Namespace
	Why    string
}

// LogValue implements slog.LogValuer.
func (e ViewInvalid) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyOpTime, e.OpTime.String()), slog.String(keyNS, string(e.NS)), slog.String(keyWhat, e.Why))
}

// Message implements event.Event.
func (ViewInvalid) Message() string { return "view is invalid at the source and left out" }

// Level implements event.Event.
func (ViewInvalid) Level() slog.Level { return slog.LevelWarn }

// ViewRefused is a view that was left out, and that the target refuses still after the
// log has changed it.
type ViewRefused struct {
	OpTime oplog.OpTime
	NS     oplog.Namespace
	// Err is the refusal.
	Err error
}

// LogValue implements slog.LogValuer.
func (e ViewRefused) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyOpTime, e.OpTime.String()), slog.String(keyNS, string(e.NS)), slog.Any(keyError, e.Err))
}

// Message implements event.Event.
func (ViewRefused) Message() string { return "view still cannot be made on the target" }

// Level implements event.Event.
func (ViewRefused) Level() slog.Level { return slog.LevelWarn }

// DefinitionsLeft is a system.views that is of no use any more, and that the target did
// not let go, or not show.
type DefinitionsLeft struct {
	OpTime oplog.OpTime
	NS     oplog.Namespace
	// Err is the target's refusal.
	Err error
}

// LogValue implements slog.LogValuer.
func (e DefinitionsLeft) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyOpTime, e.OpTime.String()), slog.String(keyNS, string(e.NS)), slog.Any(keyError, e.Err))
}

// Message implements event.Event.
func (DefinitionsLeft) Message() string { return "collection of view definitions left" }

// Level implements event.Event.
func (DefinitionsLeft) Level() slog.Level { return slog.LevelInfo }

// Waiting is a command that waits for something else that the target does.
type Waiting struct {
	OpTime oplog.OpTime
	Name   string
	// Err is the target's refusal.
	Err error
}

// LogValue implements slog.LogValuer.
func (e Waiting) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyOpTime, e.OpTime.String()), slog.String(keyCommand, e.Name), slog.Any(keyError, e.Err))
}

// Message implements event.Event.
func (Waiting) Message() string { return "command waits for other work of the target" }

// Level implements event.Event.
func (Waiting) Level() slog.Level { return slog.LevelInfo }

// tolerate announces that a copy is ahead.
func (s *step) tolerate(ns oplog.Namespace, what string) {
	s.cfg.Observer.Tell(Tolerated{OpTime: s.op.OpTime, Name: s.name(), NS: ns, What: what})
}

// IndexDeferred is an index that refuses a document which a copy has for a while and
// the source never had. It was dropped, and is built again when the copy is consistent.
type IndexDeferred struct {
	OpTime oplog.OpTime
	NS     oplog.Namespace
	Index  string
}

// LogValue implements slog.LogValuer.
func (e IndexDeferred) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyOpTime, e.OpTime.String()), slog.String(keyNS, string(e.NS)), slog.String(keyIndex, e.Index))
}

// Message implements event.Event.
func (IndexDeferred) Message() string {
	return "index deferred until the copy is consistent"
}

// Level implements event.Event.
func (IndexDeferred) Level() slog.Level { return slog.LevelInfo }

// IndexBuilt is an index that was absent, and could be built.
type IndexBuilt struct {
	OpTime oplog.OpTime
	NS     oplog.Namespace
	Index  string
}

// LogValue implements slog.LogValuer.
func (e IndexBuilt) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyOpTime, e.OpTime.String()), slog.String(keyNS, string(e.NS)), slog.String(keyIndex, e.Index))
}

// Message implements event.Event.
func (IndexBuilt) Message() string { return "index built that had been left out" }

// Level implements event.Event.
func (IndexBuilt) Level() slog.Level { return slog.LevelInfo }
