package applier

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
)

// copied is what all lanes know of the states that a copy has while the log is applied
// to it, and the source never had: an operation of the log meets a document of a later
// time, and the two together may be what an index refuses, or too large. The server's
// own members do not enforce either until they are consistent.
type copied struct {
	// indexes is held while indexes are deferred: by one lane at a time.
	indexes sync.Mutex
	// any is set once marked has something: then it is looked at.
	any atomic.Bool
	mu  sync.Mutex
	// marked are the documents that may be parked: their operations are done one by
	// one, with a look for it.
	marked map[parkKey]struct{}
}

// copiedError is the refusal of an operation on a copy, final if nothing can be eased.
type copiedError struct {
	op  *plan.Op
	err error
}

func (e *copiedError) Error() string { return e.err.Error() }

// Unwrap returns the *OpError.
func (e *copiedError) Unwrap() error { return e.err }

// errParked sends operations the way where parked documents are looked for.
var errParked = errors.New("a document is parked")

// ease takes away what has refused an operation that met a copy. It is true where the
// operations are to be tried again; else the error is what is to be returned. Each time
// it is true there is an index less, or a document more is parked, so that has an end.
func (w *writer) ease(ctx context.Context, err error) (bool, error) {
	refused, ok := errors.AsType[*copiedError](err)
	if !ok {
		return false, err
	}
	if !servererr.IsRefusal(refused.err) {
		return false, refused.err
	}
	op := refused.op
	if servererr.IsTooLarge(refused.err) && !isDirect(op) {
		if marked, err := w.mark(ctx, op); marked || err != nil {
			return marked, err
		}
	}
	deferred, err := w.deferIndexes(ctx, op, servererr.KeyFaultOf(refused.err))
	switch {
	case err != nil:
		return false, err
	case deferred:
		return true, nil
	default:
		return false, refused.err
	}
}

// deferIndexes drops the indexes that may have refused an operation: those of the kind
// that the fault stands for, and if there are none (any more), all of any kind that
// refuses documents.
func (w *writer) deferIndexes(ctx context.Context, op *plan.Op, fault servererr.KeyFault) (bool, error) {
	w.copied.indexes.Lock()
	defer w.copied.indexes.Unlock()
	for _, fault := range []servererr.KeyFault{fault, servererr.AnyKey} {
		names, err := w.cfg.Commands.DeferIndexes(ctx, &op.Op, op.Target, func(spec bson.Raw) bool { return ddl.MayRefuse(fault, spec) })
		if len(names) > 0 || err != nil {
			return err == nil, err
		}
	}
	return false, nil
}

// meetsCopy reports whether the log meets a copy to begin with.
func (a *Applier) meetsCopy() bool {
	return !a.cfg.CopiedUntil.IsNull() && a.cfg.Start.Applied.Before(a.cfg.CopiedUntil)
}

// leaveCopy ends the copy before the first entry after it.
func (d *dispatcher) leaveCopy(ctx context.Context, at oplog.OpTime) error {
	if d.ended || !at.After(d.cfg.CopiedUntil) {
		return nil
	}
	return d.endCopy(ctx)
}

// endCopy builds what was left out on the copy, once everything up to its end is in the
// target, and finds no document parked. Nothing after it has been handed out, and no
// watermark says that it is consistent. What lanes had begun after it, in an earlier
// attempt, is not passed: it is to come.
func (d *dispatcher) endCopy(ctx context.Context) error {
	if d.ended {
		return nil
	}
	until := d.cfg.CopiedUntil
	d.handOver()
	d.pass(until)
	if err := d.awaitQuiet(ctx, until); err != nil {
		return err
	}
	if err := d.checkParked(ctx); err != nil {
		return err
	}
	if err := d.cfg.Commands.EndCopy(ctx, until); err != nil {
		return err
	}
	d.ended = true
	return nil
}

// itemTime is when an item takes effect.
func itemTime(item *batch.Item) oplog.OpTime {
	if item.Txn != nil {
		return item.Txn.OpTime
	}
	return item.Entry.OpTime
}

// isMarked reports whether a document may be parked.
func (c *copied) isMarked(op *plan.Op) bool {
	if !c.any.Load() || op.Mode != plan.ModeCopied || isDirect(op) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, marked := c.marked[keyOf(op)]
	return marked
}

// meets reports whether one of the operations is about a marked document.
func (c *copied) meets(ops []plan.Op) bool {
	return c.any.Load() && slices.ContainsFunc(ops, func(op plan.Op) bool { return c.isMarked(&op) })
}
