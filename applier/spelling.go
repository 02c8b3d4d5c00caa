package applier

import (
	"bytes"
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// By the collation of a collection two spellings of an _id may be one _id, "a" and
// "A". The source can go from the one to the other only by a delete and an insert, as
// no update may: a server refuses it with ImmutableField. But where an operation
// meets what is of another time, a copy's document or its own work of before a
// crash, the one may stand where the other is to be.

// isWhole reports whether an operation leaves behind the document that it has.
func isWhole(op *plan.Op) bool {
	if op.Kind == oplog.KindUpdate {
		form, err := update.Classify(op.O)
		return err == nil && form == update.FormReplacement
	}
	return op.Kind == oplog.KindInsert
}

// respellable reports whether an operation may meet a document whose _id has another
// spelling, and that would matter.
func respellable(op *plan.Op) bool {
	return op.Kind != oplog.KindDelete && op.Collection != nil && op.Collection.Collated()
}

// spelledAs reports whether a document has an _id in exactly this spelling.
func spelledAs(doc bson.Raw, id bson.RawValue) bool {
	have := doc.Lookup("_id")
	return have.Type == id.Type && bytes.Equal(have.Value, id.Value)
}

// respelled deals with an operation that meets a document whose _id is spelled
// otherwise. It is false, with nothing done, where that is no obstacle.
//
// Over a copy the document is one of a later time, since the log has a delete of the
// spelling that it has before an insert of the other one. A whole document takes its
// place all the same, for the log to go on with; what changes fields of the earlier
// one has nothing to change. An applyOps names a document as its sender did.
func (w *writer) respelled(ctx context.Context, c conn, op *plan.Op, t *tally) (done bool, err error) {
	whole := isWhole(op)
	switch {
	case op.Grouped && !whole:
		return false, nil
	case op.Mode == plan.ModeExact && !op.Grouped && !op.Collection.Capped:
		if err := w.divergence(divergence(op, "it met a document whose _id is spelled in another way"), t); err != nil {
			return true, err
		}
	}
	if !whole || op.Collection.Capped {
		// A capped collection would get another order.
		t.ignored++
		return true, nil
	}
	t.docs++
	return true, w.overwrite(ctx, c, op)
}

// overwrite puts the document of op in place of one whose _id the server takes for the
// same, however it is spelled.
func (w *writer) overwrite(ctx context.Context, c conn, op *plan.Op) error {
	if err := w.remove(ctx, c, op); err != nil {
		return err
	}
	return w.replace(ctx, c, op, op.O, true)
}

// respellAll carries out statements of a command, from one on that was refused
// since it would have changed the spelling of an _id: operation by operation.
func (w *writer) respellAll(ctx context.Context, c besideTxn, pw *plan.Write, from int, ops []plan.Op, uncertain bool, t *tally) error {
	for _, of := range pw.Ops[from:] {
		for _, i := range of {
			op := ops[i]
			if uncertain {
				op.Mode = plan.ModeCopied
			}
			if err := w.one(ctx, c, &op, t); err != nil {
				return err
			}
		}
	}
	return nil
}
