package applier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// A server before 5.3 refuses an update that changes the size of a document of a capped collection. The source has no such
// update, but where one of the log meets a newer document of a copy the result may have another size, until later ones have made
// it a document of the source. Until then it is set aside, like one that is too large. No transaction can write to the
// collection, so each step may be repeated:
//
//	updates of a part, in memory ─┬─ the size is that of the target's document ──▶ it is replaced ──▶ nothing is set aside
//	                              └─ another size ──▶ the result is set aside
//
// A piece without data stands for none: retryable writes cannot delete whatever a filter matches. A document that the
// target has trimmed, or that is deleted or inserted again, is not set aside any more. One that is left at the end of the copy is
// written then: a source from 5.3 on has such updates, and the target may accept them by now.

// easeResized removes the cause of a refusal of a document's size. It returns true if the operations are to be retried; otherwise the
// error is to be returned. Each true leaves one more document to which updates are applied in memory, so the retries end.
//
// A part that is applied again, after a crash, meets newer documents as a copy does. All of its updates together make a document
// that the source had, so none is set aside.
func (w *writer) easeResized(ctx context.Context, s *span, err error) (bool, error) {
	refused, ok := errors.AsType[*OpError](err)
	if !ok || !servererr.IsCappedSize(refused.Err) {
		return false, err
	}
	for i := range s.ops {
		op := &s.ops[i]
		if op.Kind != oplog.KindUpdate || op.Target != refused.NS || !op.ID.Equal(refused.ID) || !mayResize(op) || w.learned.isResized(op) {
			continue
		}
		switch {
		case op.Mode == plan.ModeCopied:
			if err := w.create(ctx, metadata.Oversized); err != nil {
				return false, err
			}
			w.cfg.Observer.Log(slog.LevelInfo, "document of a capped collection has another size while the copy is not consistent",
				slog.String(keyOpTime, op.At.OpTime.String()), slog.String(keyNS, string(op.Target)), slog.String(keyID, showID(op.ID)))
		case !s.uncertain:
			return false, err
		}
		w.learned.add(keyOf(op))
		return true, nil
	}
	return false, err
}

// mayResize reports whether an operation is on a document of a capped collection. Under a collation it may be that of another
// _id.
func mayResize(op *plan.Op) bool {
	return op.Collection != nil && op.Collection.Capped && !op.Collection.Collated()
}

// isResized reports whether updates of a document of a capped collection are applied in memory.
func (l *learned) isResized(op *plan.Op) bool {
	if !l.any.Load() || !mayResize(op) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, marked := l.marked[keyOf(op)]
	return marked
}

// resized executes the updates of a part, in the order of settled, on documents that may be set aside, and returns the other
// operations.
func (w *writer) resized(ctx context.Context, c outsideTxn, ops []plan.Op, t *tally) ([]plan.Op, error) {
	if !w.learned.any.Load() {
		return ops, nil
	}
	left := make([]plan.Op, 0, len(ops))
	done := map[oversizedKey]bool{} // updated all at once, or deleted before that
	for i := range ops {
		op := &ops[i]
		if !w.learned.isResized(op) {
			left = append(left, *op)
			continue
		}
		key := keyOf(op)
		was := done[key]
		done[key] = true
		switch {
		case op.Kind != oplog.KindUpdate:
			if err := w.noneAside(ctx, c, op); err != nil {
				return nil, err
			}
			left = append(left, *op)
		case !was:
			found, err := w.resize(ctx, c, updatesOf(ops[i:], key), t)
			if err != nil {
				return nil, err
			}
			if !found && op.Upsert {
				left = append(left, *op)
			}
		}
	}
	return left, nil
}

// updatesOf returns the updates of one document among operations, at least one.
func updatesOf(ops []plan.Op, key oversizedKey) (list []*plan.Op) {
	for i := range ops {
		if op := &ops[i]; op.Kind == oplog.KindUpdate && op.Collection.Capped && keyOf(op) == key {
			list = append(list, op)
		}
	}
	return list
}

// resize executes updates of one document. It reports whether there is one.
func (w *writer) resize(ctx context.Context, c outsideTxn, updates []*plan.Op, t *tally) (found bool, err error) {
	op := updates[0]
	doc, found, err := look(ctx, c, op.Target, op.ID)
	if err != nil {
		return false, err
	}
	if !found {
		t.ignored += len(updates)
		return false, w.noneAside(ctx, c, op)
	}
	changed, aside, err := w.readOversized(ctx, c, op)
	if err != nil {
		return false, err
	}
	if !aside {
		changed = doc
	}
	for _, op := range updates {
		if changed, err = update.Apply(changed, op.O); err != nil {
			return false, opError(op, err)
		}
	}
	t.docs++
	if len(changed) != len(doc) && op.Mode == plan.ModeCopied {
		return true, w.setAside(ctx, c, op, changed)
	}
	if !bytes.Equal(changed, doc) {
		err = w.replace(ctx, c, op, changed, false)
	}
	if err == nil && aside {
		err = w.setAside(ctx, c, op, nil)
	}
	return true, err
}

// noneAside makes a document not be set aside.
func (w *writer) noneAside(ctx context.Context, c outsideTxn, op *plan.Op) error {
	if op.Mode != plan.ModeCopied {
		return nil
	}
	return w.setAside(ctx, c, op, nil)
}

// setAside sets a document aside, in one piece, in place of one that is; nil for none.
func (w *writer) setAside(ctx context.Context, c conn, op *plan.Op, doc bson.Raw) error {
	if len(doc) > oversizedPart {
		return opError(op, fmt.Errorf("set the document aside: it has %d bytes, the most is %d", len(doc), oversizedPart))
	}
	return writeOversized(ctx, c, metadata.Update(w.cfg.MetaDB, metadata.Oversized, metadata.Statement{
		Filter: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "_id", func(dst []byte) []byte {
				return bsoncore.AppendInt32Element(w.appendOversizedID(dst, "", op), "part", 0)
			})
		},
		Change: func(dst []byte) []byte { return bsoncore.AppendBinaryElement(dst, "doc", bson.TypeBinaryGeneric, doc) },
		Upsert: true,
	}))
}

// endResized writes a document of a capped collection that is set aside at the end of a copy, unless the target has trimmed it.
// It returns false for a document of another collection.
func (d *dispatcher) endResized(ctx context.Context, ns oplog.Namespace, id bson.RawValue) (bool, error) {
	coll, found, err := d.cfg.Catalog.Get(ctx, ns)
	if err != nil || !found || !coll.Capped {
		return false, err
	}
	w := d.barrier
	op := &plan.Op{Op: oplog.Op{Kind: oplog.KindUpdate, ID: id}, Target: ns, Collection: coll, Mode: plan.ModeExact}
	op.At.OpTime = d.cfg.CopiedUntil
	c := outsideTxn{w: w, first: op}
	_, found, err = look(ctx, c, ns, id)
	if err != nil || !found {
		return true, err
	}
	doc, aside, err := w.readOversized(ctx, c, op)
	if err == nil && aside {
		err = w.replace(ctx, c, op, doc, false)
	}
	return true, err
}
