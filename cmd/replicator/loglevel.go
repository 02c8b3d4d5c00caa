package main

import (
	"context"
	"log/slog"
)

// logLevel is the level of the log of one link, which a request of an operator changes while it
// runs.
type logLevel struct {
	slog.LevelVar
	start slog.Level
}

// newLogLevel returns the level that a process was started with.
func newLogLevel(name string) *logLevel {
	l := &logLevel{start: levelOf(name)}
	l.Set(l.start)
	return l
}

// change sets a level by its name; the empty one is that of the start.
func (l *logLevel) change(name string) {
	if name == "" {
		l.Set(l.start)
		return
	}
	l.Set(levelOf(name))
}

// levelOf returns the level of a name of --log-level.
func levelOf(name string) slog.Level {
	switch name {
	case "debug":
		return slog.LevelDebug
	case "warn":
		return slog.LevelWarn
	case "error":
		return slog.LevelError
	}
	return slog.LevelInfo
}

// of returns a log with this level in place of its own.
func (l *logLevel) of(log *slog.Logger) *slog.Logger { return slog.New(leveled{log.Handler(), l}) }

// leveled is a handler with another level.
type leveled struct {
	slog.Handler
	level slog.Leveler
}

// Enabled implements slog.Handler.
func (h leveled) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level.Level() }

// WithAttrs implements slog.Handler.
func (h leveled) WithAttrs(attrs []slog.Attr) slog.Handler {
	return leveled{h.Handler.WithAttrs(attrs), h.level}
}

// WithGroup implements slog.Handler.
func (h leveled) WithGroup(name string) slog.Handler {
	return leveled{h.Handler.WithGroup(name), h.level}
}
