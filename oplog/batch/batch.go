// Package batch has the batches that the batcher passes to the applier: spans of
// the log with assembled transactions.
package batch

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
)

// Batch is a span of the log. The receiver closes the transactions in it.
type Batch struct {
	// Items are the entries and transactions to apply, in order: none if all entries
	// of the span change nothing.
	Items []Item
	// Individually is set if the batch must be processed individually: after
	// everything before it has been applied, and before anything after it. It then
	// has one item; see oplog.Op.MustBeProcessedIndividually.
	Individually bool
	// Last is the span's last entry, Wall its wall clock time on the primary, in
	// milliseconds since the epoch.
	Last oplog.OpTime
	Wall bson.DateTime
	// FetchFrom is where reading has to start again once everything up to Last has
	// been applied. It is null if no checkpoint can be taken there.
	FetchFrom oplog.OpTime
	// InDoubt is set if a transaction is prepared and not ended after Last. When it is committed,
	// it may have had its effect on the source at the time of Last already.
	InDoubt bool
	// Entries is the number of entries in the span.
	Entries int
	// Weight is the number of operations in Items, as the server counts them.
	Weight int
	// Bytes is the span's share of the memory budget, to be released when all of it
	// has been applied.
	Bytes int64
}

// Item is one entry or one transaction with something to apply.
type Item struct {
	// Entry is the entry, or the one that completed Txn. It is a part of its reply,
	// and must not be modified.
	Entry *oplog.Entry
	// Txn is the transaction, nil for a plain entry.
	Txn *txn.Transaction
}
