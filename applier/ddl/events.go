package ddl

import (
	"log/slog"

	"github.com/oplogrep/replicator/oplog"
)

// Keys of the attributes of what is logged.
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

// log announces something about the command.
func (s *step) log(level slog.Level, message string, attrs ...slog.Attr) {
	s.cfg.Observer.Log(level, message, append([]slog.Attr{slog.String(keyOpTime, s.op.OpTime.String())}, attrs...)...)
}

// levelOf is less where a copy is made: there may be thousands of collections.
func levelOf(again Again) slog.Level {
	if again == Copied {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// tolerate announces that a copy is ahead of the command, and what the target has
// instead.
func (s *step) tolerate(ns oplog.Namespace, what string) {
	s.log(slog.LevelDebug, "command passed over: the copy is ahead of the log",
		slog.String(keyCommand, s.name()), slog.String(keyNS, string(ns)), slog.String(keyWhat, what))
}

// logWaiting announces that the command waits for something else that the target does.
func (s *step) logWaiting(refusal error) {
	s.log(slog.LevelInfo, "command waits for other work of the target", slog.String(keyCommand, s.name()), slog.Any(keyError, refusal))
}

// logHeld announces that options, or the index as a whole, are deferred until cutover.
func (s *step) logHeld(h *HeldSpec) {
	level, message := levelOf(s.again), "options held back until cutover"
	if h.Absent {
		level, message = slog.LevelInfo, "index held back until cutover" // it has a refusal of its own
	}
	s.log(level, message, slog.String(keyNS, string(h.NS)), slog.String(keyIndex, h.Index),
		slog.Any(keyFields, h.Fields), slog.Bool(keyAbsent, h.Absent))
}
