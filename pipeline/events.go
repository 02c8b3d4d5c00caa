package pipeline

import (
	"log/slog"
	"time"
)

// Keys of the events' attributes.
const (
	keyAttempt = "attempt"
	keyError   = "error"
	keyWait    = "wait"
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
