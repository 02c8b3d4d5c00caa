package applier

import (
	"context"
	"errors"
	"log/slog"
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

// learned is shared by all lanes: what they have learned from refusals of the target. Most are of states that a copy has
// during initial sync and the source never had: an operation of the log meets a newer document, and the result may
// violate an index or be too large. The server's own members enforce neither until they
// are consistent. The others are of a target of another version.
type learned struct {
	// indexes has, for each collection of the target, a *sync.Mutex of the lanes that defer its indexes. Another build may keep one of them
	// waiting for hours.
	indexes sync.Map
	// any is set once marked is not empty; only then marked is read.
	any atomic.Bool
	mu  sync.Mutex
	// marked are the documents that may be set aside: operations on them are applied one by
	// one, after a check.
	marked map[oversizedKey]struct{}
	// anew: the target has refused a name with a dollar in an update; see dollars.go.
	anew atomic.Bool
}

// easableError is a refusal whose cause ease may remove: of an operation on a copy, or, at any time, by an index that cannot contain the
// document, or of a name with a dollar. It is final if ease cannot help.
type easableError struct {
	op  *plan.Op
	err error
}

func (e *easableError) Error() string { return e.err.Error() }

// Unwrap returns the *OpError.
func (e *easableError) Unwrap() error { return e.err }

// errOneByOne makes a flush apply its operations one by one: a document of one of them may be set aside.
var errOneByOne = errors.New("the operations are applied one by one")

// ease removes the cause of a refusal. It returns true if the operations are to
// be retried; otherwise the error is to be returned. Each true leaves one index less, or
// one more document set aside, or is for a later operation than the one before, so the retries end.
func (w *writer) ease(ctx context.Context, err error) (bool, error) {
	refused, ok := errors.AsType[*easableError](err)
	if !ok {
		return false, err
	}
	if !servererr.IsRefusal(refused.err) {
		return false, refused.err
	}
	op := refused.op
	if op.Mode == plan.ModeCopied && servererr.IsTooLarge(refused.err) && !isDirect(op) {
		if marked, err := w.mark(ctx, op); marked || err != nil {
			return marked, err
		}
	}
	if servererr.IsDollarName(refused.err) { // no index is the cause
		if w.insertsAnew(op) {
			return true, nil
		}
		return false, refused.err
	}
	deferred, err := w.deferIndexes(ctx, op, refused.err)
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
// that the fault names, or, on a copy, if there are none (any more), all that can refuse documents.
// After a copy, the source has such a document in its index, as it is of another version: the target's index is left out
// until cutover.
func (w *writer) deferIndexes(ctx context.Context, op *plan.Op, refused error) (bool, error) {
	fault := servererr.KeyFaultOf(refused)
	held, _ := w.learned.indexes.LoadOrStore(op.Target.Clone(), new(sync.Mutex))
	one := held.(*sync.Mutex)
	one.Lock()
	defer one.Unlock()
	faults := []servererr.KeyFault{fault, servererr.AnyKey}
	if op.Mode != plan.ModeCopied {
		faults = faults[:1]
	}
	for i, fault := range faults {
		names, err := w.cfg.Commands.DeferIndexes(ctx, &op.Op, op.Target, func(spec bson.Raw) bool { return ddl.MayRefuse(fault, spec) })
		for _, name := range names {
			if op.Mode != plan.ModeCopied {
				w.cfg.Observer.Log(slog.LevelWarn, "index that refuses a document of the source is left out", slog.String(keyOpTime, op.At.OpTime.String()),
					slog.String(keyNS, string(op.Target)), slog.String(keyIndex, name), slog.String(keyCause, refused.Error()))
			}
		}
		if len(names) > 0 || err != nil {
			return err == nil, err
		}
		if i == 0 && w.refusedKey != op.At { // another lane may have dropped it since
			w.refusedKey = op.At
			return true, nil
		}
	}
	return false, nil
}

// meetsCopy reports whether the log meets a copy at the start.
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

// endCopy builds the deferred indexes of the copy, once everything up to its end is in
// the target, and checks that no document is set aside. Nothing after the end has been
// handed out, and no watermark has reached it. pass is not called for spans after it that
// lanes announced in an earlier attempt: they follow.
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
	if err := d.checkOversized(ctx); err != nil {
		return err
	}
	if err := d.cfg.Commands.EndCopy(ctx, until); err != nil {
		return err
	}
	d.ended = true
	return nil
}

// itemTime returns the optime at which an item takes effect.
func itemTime(item *batch.Item) oplog.OpTime {
	if item.Txn != nil {
		return item.Txn.OpTime
	}
	return item.Entry.OpTime
}

// isMarked reports whether a document may be set aside, or has to be inserted.
func (l *learned) isMarked(op *plan.Op) bool {
	if op.Mode == plan.ModeCopied && l.isAnew(op, op.O) && isWhole(op) {
		return true
	}
	if !l.any.Load() || op.Mode != plan.ModeCopied || isDirect(op) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, marked := l.marked[keyOf(op)]
	return marked
}

// meets reports whether one of the operations is on a marked document.
func (l *learned) meets(ops []plan.Op) bool {
	return l.any.Load() && slices.ContainsFunc(ops, func(op plan.Op) bool { return l.isMarked(&op) })
}
