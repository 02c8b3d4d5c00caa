package fetcher

import (
	"log/slog"

	"github.com/oplogrep/replicator/oplog"
)

// The keys of the events' attributes.
const (
	keyHost   = "host"
	keyFrom   = "from"
	keyLast   = "last"
	keyMode   = "mode"
	keyReason = "reason"
	keyAgain  = "restart"
	keyBytes  = "bytes"
	keyCommit = "committed"
)

// Opened is a cursor whose first reply has passed all checks.
type Opened struct {
	Host string
	// From is the entry that it starts from.
	From oplog.OpTime
	Mode ReadMode
}

// Message is the event's sentence.
func (Opened) Message() string { return "reading the oplog" }

// Level is that of the event in a log.
func (Opened) Level() slog.Level { return slog.LevelInfo }

// LogValue says which member, and from where.
func (e Opened) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyHost, e.Host), slog.String(keyFrom, e.From.String()), slog.String(keyMode, e.Mode.String()))
}

// Restarting is a cursor that is about to be opened again.
type Restarting struct {
	Host string
	// Last is the entry that it will start from.
	Last oplog.OpTime
	// Restart counts the restarts in a row, from 1.
	Restart int
	// Reason is what ended the cursor.
	Reason error
}

// Message is the event's sentence.
func (Restarting) Message() string { return "opening the cursor on the oplog again" }

// Level is that of the event in a log.
func (Restarting) Level() slog.Level { return slog.LevelWarn }

// LogValue says which member, from where, and why.
func (e Restarting) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyHost, e.Host), slog.String(keyLast, e.Last.String()),
		slog.Int(keyAgain, e.Restart), slog.String(keyReason, e.Reason.Error()))
}

// Ended is the end of reading a member in order; one by an error is announced by
// whom it is returned to.
type Ended struct {
	Host string
	// Last is the last entry that was handed on.
	Last oplog.OpTime
	Why  End
}

// Message is the event's sentence.
func (Ended) Message() string { return "stopped reading the oplog" }

// Level is that of the event in a log.
func (Ended) Level() slog.Level { return slog.LevelInfo }

// LogValue says which member, how far it was read, and why no further.
func (e Ended) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyHost, e.Host), slog.String(keyLast, e.Last.String()), slog.String(keyReason, e.Why.String()))
}

// HeldUp is reading that pauses, because too much is held back: the commit point
// does not move, or far slower than entries come.
type HeldUp struct {
	Host string
	// Bytes are held back.
	Bytes int64
	// Committed is the commit point as the member knows it.
	Committed oplog.OpTime
}

// Message is the event's sentence.
func (HeldUp) Message() string { return "waiting for a majority of the source to have what was read" }

// Level is that of the event in a log.
func (HeldUp) Level() slog.Level { return slog.LevelWarn }

// LogValue says how much waits, and for what.
func (e HeldUp) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyHost, e.Host), slog.Int64(keyBytes, e.Bytes), slog.String(keyCommit, e.Committed.String()))
}
