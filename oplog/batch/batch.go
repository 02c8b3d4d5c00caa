// Package batch is what the batcher hands to the applier: a span of the log
// with its transactions put together.
package batch

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
)

// Batch is a span of the log. The receiver closes the transactions in it.
type Batch struct {
	// Items are what there is to apply, in order: none where all entries of the
	// span change nothing.
	Items []Item
	// Individually is set if the batch must be processed individually: everything
	// before it has to be applied before it, and it before anything after it. It
	// then has one item; see oplog.Op.MustBeProcessedIndividually.
	Individually bool
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
