package ddl

import (
	"log/slog"

	"github.com/oplogrep/replicator/oplog"
)

// Keys of log attributes.
const (
	keyOpTime  = "optime"
	keyCommand = "command"
	keyNS      = "ns"
	keyIndex   = "index"
	keyOption  = "option"
	keyFields  = "fields"
	keyWhat    = "what"
	keyError   = "error"
	keyAbsent  = "absent"
	keyReads   = "reads"
)

// log logs a message about the command.
func (s *step) log(level slog.Level, message string, attrs ...slog.Attr) {
	s.cfg.Observer.Log(level, message, append([]slog.Attr{slog.String(keyOpTime, s.op.OpTime.String())}, attrs...)...)
}

// levelOf is lower during a copy: there may be thousands of collections.
func levelOf(mode Mode) slog.Level {
	if mode == Copied {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// tolerate logs that a copy is ahead of the command, and the target's state.
func (s *step) tolerate(ns oplog.Namespace, what string) {
	s.log(slog.LevelDebug, "command passed over: the copy is ahead of the log",
		slog.String(keyCommand, s.name()), slog.String(keyNS, string(ns)), slog.String(keyWhat, what))
}

// logWaiting logs that the command waits for other work of the target.
func (s *step) logWaiting(refusal error) {
	s.log(slog.LevelInfo, "command waits for other work of the target", slog.String(keyCommand, s.name()), slog.Any(keyError, refusal))
}

// logDeferred logs that options, or a whole index, are deferred until cutover.
func (s *step) logDeferred(h *DeferredSpec) {
	level, message := levelOf(s.mode), "options deferred until cutover"
	if h.Absent {
		level, message = slog.LevelInfo, "index deferred until cutover" // its refusal is logged as well
	}
	s.log(level, message, slog.String(keyNS, string(h.NS)), slog.String(keyIndex, h.Index),
		slog.Any(keyFields, h.Fields), slog.Bool(keyAbsent, h.Absent))
}
