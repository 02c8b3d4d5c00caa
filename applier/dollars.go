package applier

import (
	"context"
	"log/slog"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// A server before 5.0 refuses an update that writes a name below the top level that starts with a dollar, and a replacement or a
// pipeline that leaves one in the document; it accepts that document in an insert. A source from 5.0 on logs such updates. Inserts
// become upserts while the log meets a copy, or in an applyOps. Once the target has refused one, such
// documents are deleted and inserted, in the transaction of the flush. Its other operations stay grouped: one command for each may
// take longer than a transaction may.

// insertsAnew makes the lanes insert documents with such names. It returns false if the operation was refused once before: another
// lane may have met one first.
func (w *writer) insertsAnew(op *plan.Op) bool {
	if isDirect(op) || w.refusedName == op.At {
		return false
	}
	w.refusedName = op.At
	w.learnDollars(op.At)
	return true
}

// learnDollars records that the target has refused a name with a dollar, in the operation at a position or, of a flush, after it.
func (w *writer) learnDollars(at checkpoint.Position) {
	if w.learned.anew.CompareAndSwap(false, true) {
		w.cfg.Observer.Log(slog.LevelInfo, "documents with names that start with a dollar are deleted and inserted, as the target refuses updates of them",
			slog.String(keyFrom, at.String()))
	}
}

// isAnew reports whether doc, as the document of an operation, has to be deleted and inserted.
func (l *learned) isAnew(op *plan.Op, doc bson.Raw) bool {
	return l.anew.Load() && !isDirect(op) && update.IsInsertOnly(doc)
}

// writeOne applies one operation as planned, or, once the target has refused a name with a dollar, so that it is inserted. It
// returns how many documents there were, or were created.
func (w *writer) writeOne(ctx context.Context, c conn, op *plan.Op, pw *plan.Write) (int64, error) {
	switch {
	case op.Kind == oplog.KindInsert && pw.Kind == plan.Update && w.learned.isAnew(op, op.O):
		return 1, w.insertAnew(ctx, c, op, op.O)
	case pw.Kind == plan.Modify, op.Kind == oplog.KindUpdate && w.learned.anew.Load() && !isDirect(op):
		found, err := w.modify(ctx, c, op)
		if err == nil && found {
			return 1, nil
		}
		return 0, err
	default:
		return w.statements(ctx, c, pw)
	}
}

// insertAnew makes doc the document of op by a delete and an insert.
func (w *writer) insertAnew(ctx context.Context, c conn, op *plan.Op, doc bson.Raw) error {
	if err := w.remove(ctx, c, op); err != nil {
		return err
	}
	again := *op
	again.Kind, again.O, again.Mode, again.Grouped = oplog.KindInsert, doc, plan.ModeExact, false
	pw, err := plan.One(again, w.cfg.Plan)
	if err == nil {
		_, err = w.statements(ctx, c, &pw)
	}
	return w.refusedOrNil(ctx, op, err)
}
