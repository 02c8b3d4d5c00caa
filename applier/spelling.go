package applier

import (
	"bytes"
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// Under a collection's collation two spellings of an _id may be equal, "a" and "A". The
// source can change the spelling only by a delete and an insert, because the server
// refuses such an update with ImmutableField. But where an operation meets a document of
// another time, from a copy or from its own work before a crash, that document may have
// the other spelling.

// isWhole reports whether an operation contains the whole document that results.
func isWhole(op *plan.Op) bool {
	if op.Kind == oplog.KindUpdate {
		form, err := update.Classify(op.O)
		return err == nil && form == update.FormReplacement
	}
	return op.Kind == oplog.KindInsert
}

// respellable reports whether an operation may meet a document whose _id has another
// spelling, and the difference matters.
func respellable(op *plan.Op) bool {
	return op.Kind != oplog.KindDelete && op.Collection != nil && op.Collection.Collated()
}

// spelledAs reports whether a document has an _id in exactly this spelling.
func spelledAs(doc bson.Raw, id bson.RawValue) bool {
	have := doc.Lookup("_id")
	return have.Type == id.Type && bytes.Equal(have.Value, id.Value)
}

// equalSimply reports whether a document has an _id that is equal without a collation.
func equalSimply(doc bson.Raw, id bson.RawValue) bool {
	return bytes.Equal(oplog.AppendIDKey(nil, doc.Lookup("_id")), oplog.AppendIDKey(nil, id))
}

// respelled handles an operation that meets a document whose _id has another spelling. It
// returns false, and does nothing, if the other spelling does not matter.
//
// In a copy such a document is newer, because the log has a delete of the one spelling
// before an insert of the other. A whole document replaces it, so that the log can
// continue; an operation that changes fields of the earlier document has no effect. An
// applyOps names a document as its sender did.
func (w *writer) respelled(ctx context.Context, c conn, op *plan.Op, have bson.Raw, t *tally) (done bool, err error) {
	whole := isWhole(op)
	switch {
	case op.Grouped && !whole:
		return false, nil
	case op.Kind == oplog.KindUpdate && whole && equalSimply(have, op.ID):
		// A replacement may change the type of a number: its entry names the _id as it is afterwards.
	case op.Mode == plan.ModeExact && !op.Grouped && !op.Collection.Capped:
		if err := w.divergence(divergence(op, "it met a document whose _id is spelled in another way"), t); err != nil {
			return true, err
		}
	}
	if !whole || op.Collection.Capped {
		// In a capped collection that would change the order.
		t.ignored++
		return true, nil
	}
	t.docs++
	return true, w.overwrite(ctx, c, op)
}

// overwrite replaces the document whose _id the server considers equal by the document of
// op, whatever its spelling.
func (w *writer) overwrite(ctx context.Context, c conn, op *plan.Op) error {
	if err := w.remove(ctx, c, op); err != nil {
		return err
	}
	return w.replace(ctx, c, op, op.O, true)
}

// respellAll executes the statements of a command, starting at one that was refused
// because it would have changed the spelling of an _id: operation by operation.
func (w *writer) respellAll(ctx context.Context, c outsideTxn, pw *plan.Write, from int, ops []plan.Op, uncertain bool, t *tally) error {
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
