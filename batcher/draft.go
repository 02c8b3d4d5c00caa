package batcher

import (
	"errors"

	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
	"github.com/oplogrep/replicator/oplog/txn"
)

// piece is an entry to be put into a batch, together with the assembler's result.
type piece struct {
	entry     *oplog.Entry
	fetchFrom oplog.OpTime
	inDoubt   bool
	// txn is the transaction that the entry completed, nil if none.
	txn *txn.Transaction
	// changes is set if there is something to apply; individually if it must be
	// processed individually.
	changes, individually bool
	// ops is the number of operations: 0 if the entry changes nothing.
	ops int
	// bytes is the size in the log.
	bytes int64
}

// piece converts the assembler's result. On an error it has closed the transaction.
func (b *Batcher) piece(e *oplog.Entry, r *txn.Result) (piece, error) {
	p := piece{entry: e, fetchFrom: r.FetchFrom, inDoubt: r.InDoubt, bytes: int64(len(e.Raw))}
	switch r.Outcome {
	case txn.Pass:
		p.changes = e.Kind != oplog.KindNoop
		p.individually = e.MustBeProcessedIndividually()
		if p.changes {
			p.ops = 1
		}
	case txn.Committed:
		// Parts count in the batch where they take effect: they are read into memory
		// for it.
		p.bytes = max(p.bytes, r.Txn.Bytes)
		if r.Txn.Count == 0 {
			return p, r.Txn.Close()
		}
		p.txn, p.changes, p.individually, p.ops = r.Txn, true, r.Txn.MustBeProcessedIndividually, r.Txn.Count
	case txn.Partial, txn.Past, txn.Aborted:
	}
	return p, nil
}

// cost returns how much a piece counts towards the limit of operations: at least 1,
// so that spans without operations are limited too.
func (p *piece) cost() int { return max(1, p.ops) }

// draft is the batch under construction.
type draft struct {
	batch.Batch
	cost  int
	bytes int64
}

// isEmpty reports whether there is no entry yet.
func (d *draft) isEmpty() bool { return d.Entries == 0 }

// fits reports whether a piece may be added. An empty batch takes any.
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

// isFull reports whether nothing more may be added.
func (d *draft) isFull(cfg *Config) bool {
	return d.Individually || d.cost >= cfg.MaxOps || d.bytes >= cfg.MaxBytes
}

// add adds a piece. Room is the capacity of Items to allocate.
func (d *draft) add(p *piece, bytes int64, room int) {
	d.Entries++
	d.Last, d.Wall, d.FetchFrom, d.InDoubt = p.entry.OpTime, p.entry.Wall, p.fetchFrom, p.inDoubt
	d.Bytes += bytes
	d.cost += p.cost()
	d.bytes += p.bytes
	if !p.changes {
		return
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
