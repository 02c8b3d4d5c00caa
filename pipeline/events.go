package pipeline

import (
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// Keys of the events' attributes.
const (
	keyAttempt = "attempt"
	keyDir     = "dir"
	keyError   = "error"
	keyFor     = "for"
	keyFrom    = "from"
	keyHolder  = "holder"
	keyNumber  = "number"
	keyThen    = "then"
	keyUntil   = "until"
	keyWait    = "wait"
	keyWhy     = "why"
)

// AttemptEnded announces that an attempt ended with an error that can be retried.
type AttemptEnded struct {
	Attempt int
	Err     error
	// Wait is the pause before the next attempt.
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

// ReadEarlier announces that a transaction began before the first entry that was read,
// and that the next attempt reads from its beginning.
type ReadEarlier struct {
	// From is the transaction's first entry, For the entry that needs it.
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
