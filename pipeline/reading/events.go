package reading

import (
	"log/slog"

	"github.com/oplogrep/replicator/oplog"
)

// Keys of the events' attributes.
const (
	keyError = "error"
	keyFor   = "for"
	keyFrom  = "from"
)

// Earlier announces that a transaction began before the first entry that was read,
// and that the next attempt reads from its beginning.
type Earlier struct {
	// From is the transaction's first entry, For the entry that needs it.
	From, For oplog.OpTime
}

// Message implements event.Event.
func (Earlier) Message() string {
	return "reading from an earlier entry, where a transaction began"
}

// Level implements event.Event.
func (Earlier) Level() slog.Level { return slog.LevelInfo }

// LogValue implements slog.LogValuer.
func (e Earlier) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyFrom, e.From.String()), slog.String(keyFor, e.For.String()))
}
