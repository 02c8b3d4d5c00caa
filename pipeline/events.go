package pipeline

import (
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// The keys of what events say.
const (
	keyAttempt = "attempt"
	keyError   = "error"
	keyFor     = "for"
	keyFrom    = "from"
	keyHost    = "host"
	keyNS      = "ns"
	keyReason  = "reason"
	keyTo      = "to"
	keyWait    = "wait"
)

// AttemptEnded says that an attempt ended with an error that another one may not
// meet.
type AttemptEnded struct {
	Attempt int
	Err     error
	// Wait is the pause before the next.
	Wait time.Duration
}

// Message implements event.Event.
func (AttemptEnded) Message() string { return "attempt ended, trying again" }

// Level implements event.Event.
func (AttemptEnded) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e AttemptEnded) LogValue() slog.Value {
	return slog.GroupValue(slog.Int(keyAttempt, e.Attempt), slog.String(keyError, e.Err.Error()), slog.Duration(keyWait, e.Wait))
}

// SourceFailed says that a member could not be read any further.
type SourceFailed struct {
	Host string
	Err  error
}

// Message implements event.Event.
func (SourceFailed) Message() string { return "source failed" }

// Level implements event.Event.
func (SourceFailed) Level() slog.Level { return slog.LevelWarn }

// LogValue implements slog.LogValuer.
func (e SourceFailed) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyHost, e.Host), slog.String(keyError, e.Err.Error()))
}

// ReadEarlier says that a transaction began before the entry that reading began
// with, and that it begins earlier now.
type ReadEarlier struct {
	// From is the transaction's first entry, For the one that needs it.
	From, For oplog.OpTime
}

// Message implements event.Event.
func (ReadEarlier) Message() string {
	return "reading from an earlier entry, where a transaction began"
}

// Level implements event.Event.
func (ReadEarlier) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e ReadEarlier) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyFrom, e.From.String()), slog.String(keyFor, e.For.String()))
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
