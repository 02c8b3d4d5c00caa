package batcher

import (
	"log/slog"

	"github.com/oplogrep/replicator/oplog"
)

// The keys of what is logged.
const (
	keyOpTime       = "optime"
	keyTransactions = "transactions"
)

// TransactionsDropped is told when transactions without an end were given up,
// because the source's log shows that their sessions have gone on.
type TransactionsDropped struct {
	// OpTime is the entry that shows it.
	OpTime oplog.OpTime
	// Transactions is how many there were.
	Transactions int
}

// Message says what happened.
func (TransactionsDropped) Message() string { return "transactions without an end were given up" }

// Level is a warning: the log of a source should have ended them.
func (TransactionsDropped) Level() slog.Level { return slog.LevelWarn }

// LogValue returns the fields.
func (e TransactionsDropped) LogValue() slog.Value {
	return slog.GroupValue(slog.String(keyOpTime, e.OpTime.String()), slog.Int(keyTransactions, e.Transactions))
}
