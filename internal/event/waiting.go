package event

import (
	"log/slog"
	"time"
)

// LongWait is how long something may wait without a word.
const LongWait = 5 * time.Second

// Waiting is something that has waited for LongWait, and then for twice as long as
// when it was told last; and once more, that it is Over.
type Waiting struct {
	// What is waited for, the same text each time.
	What string
	// Since is when it began.
	Since time.Time
	// Why is what was met last; empty when it is Over.
	Why  string
	Over bool
}

// Message implements Event.
func (e Waiting) Message() string {
	if e.Over {
		return "waits no more"
	}
	return "waits"
}

// Level implements Event.
func (e Waiting) Level() slog.Level {
	if e.Over {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// LogValue implements slog.LogValuer.
func (e Waiting) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("what", e.What), slog.Duration("waited", time.Since(e.Since).Round(time.Millisecond))}
	if e.Why != "" {
		attrs = append(attrs, slog.String("why", e.Why))
	}
	return slog.GroupValue(attrs...)
}
