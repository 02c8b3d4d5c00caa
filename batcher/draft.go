package batcher

import (
	"errors"
	"time"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
	"github.com/oplogrep/replicator/oplog/txn"
)

// piece is an entry on its way into a batch, with what came of it.
type piece struct {
	entry     *oplog.Entry
	fetchFrom oplog.OpTime
	// txn is what the entry completed, nil for others.
	txn *txn.Transaction
	// changes is set if there is something to apply, individually if it must be
	// processed individually.
	changes, individually bool
	// ops is how many operations it has: 0 where it changes nothing.
	ops int
	// bytes is what it takes in the log.
	bytes int64
}

// piece says what an entry is to a batch. On an error it has closed the
// transaction.
func (b *Batcher) piece(e *oplog.Entry, r *txn.Result) (piece, error) {
	p := piece{entry: e, fetchFrom: r.FetchFrom, bytes: int64(len(e.Raw))}
	switch r.Outcome {
	case txn.Pass:
		p.changes = e.Kind != oplog.KindNoop
		p.individually = e.MustBeProcessedIndividually()
		if p.changes {
			p.ops = 1
		}
	case txn.Committed:
		// Parts that were held count where they take effect: that is when they
		// come into memory again.
		p.bytes = max(p.bytes, r.Txn.Bytes)
		if r.Txn.Count == 0 {
			return p, r.Txn.Close()
		}
		p.txn, p.changes, p.individually, p.ops = r.Txn, true, r.Txn.MustBeProcessedIndividually, r.Txn.Count
	case txn.Held, txn.Past, txn.Aborted:
	}
	return p, nil
}

// cost is what a piece counts towards the limit of operations: something also
// where it changes nothing, so that no span is endless.
func (p *piece) cost() int { return max(1, p.ops) }

// draft is the batch that is being put together.
type draft struct {
	batch.Batch
	cost  int
	bytes int64
	// since is when it got its first item.
	since time.Time
}

// isEmpty reports whether there is no entry yet.
func (d *draft) isEmpty() bool { return d.Entries == 0 }

// fits reports whether a piece may come into the batch. An empty one takes
// anything.
func (d *draft) fits(p *piece, cfg *Config) bool {
	switch {
	case d.isEmpty():
		return true
	case p.individually:
		return len(d.Items) == 0
	default:
		return d.cost+p.cost() <= cfg.MaxOps && d.bytes+p.bytes <= cfg.MaxBytes
	}
}

// isFull reports whether nothing more may come into the batch.
func (d *draft) isFull(cfg *Config) bool {
	return d.Individually || d.cost >= cfg.MaxOps || d.bytes >= cfg.MaxBytes
}

// add puts a piece into the batch. Room is for how many items there should be
// room.
func (d *draft) add(p *piece, bytes int64, room int) {
	d.Entries++
	d.Last, d.Wall, d.FetchFrom = p.entry.OpTime, p.entry.Wall, p.fetchFrom
	d.Bytes += bytes
	d.cost += p.cost()
	d.bytes += p.bytes
	if !p.changes {
		return
	}
	if len(d.Items) == 0 {
		d.since = time.Now()
	}
	if d.Items == nil {
		if p.individually {
			room = 1
		}
		d.Items = make([]batch.Item, 0, room)
	}
	d.Items = append(d.Items, batch.Item{Entry: p.entry, Txn: p.txn})
	d.Weight += p.ops
	d.Individually = p.individually
}

// discard closes the transactions of a batch that is not sent.
func (d *draft) discard() error {
	var faults []error
	for _, item := range d.Items {
		if item.Txn != nil {
			faults = append(faults, item.Txn.Close())
		}
	}
	*d = draft{}
	return errors.Join(faults...)
}
