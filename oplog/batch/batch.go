// Package batch is what the batcher hands to the applier: a span of the log
// with its transactions put together.
package batch

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
)

// Batch is a span of the log. Whoever gets it closes the transactions in it.
type Batch struct {
	// Items are what there is to apply, in order: none where all entries of the
	// span change nothing.
	Items []Item
	// Alone tells that nothing of this batch may be applied before everything
	// ahead of it, and nothing after it before all of it: it holds one item, a
	// command or another entry that changes more than documents.
	Alone bool
	// Last is the span's last entry, Wall its primary's clock, in
	// milliseconds since the epoch.
	Last oplog.OpTime
	Wall bson.DateTime
	// FetchFrom is where reading has to begin again once everything up to Last
	// has been applied. It is null where there is no checkpoint to take there.
	FetchFrom oplog.OpTime
	// Entries is how many entries the span has.
	Entries int
	// Weight is how many operations Items have, as the server counts them.
	Weight int
	// Bytes is the span's share of the memory budget, to be given back when
	// all of it has been applied.
	Bytes int64
}

// Item is one entry, or one transaction, that has something to apply.
type Item struct {
	// Entry is the entry, or the one that completed Txn. It is part of the reply
	// that it came in, and not to be changed.
	Entry *oplog.Entry
	// Txn is the transaction, nil for a plain entry.
	Txn *txn.Transaction
}
