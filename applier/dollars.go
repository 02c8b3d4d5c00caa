package applier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// A server before 5.0 refuses an update that writes a name below the top level that starts with a dollar, and a replacement or a
// pipeline that leaves one in the document; it accepts that document in an insert. A source from 5.0 on logs such updates. Inserts
// become upserts while the log meets a copy, or in an applyOps. Once the target has refused one, such
// documents are deleted and inserted, in the transaction of the flush. Its other operations stay grouped: one command for each may
// take longer than a transaction may.
//
// Outside of transactions a document is not deleted first: capped collections before 5.0 delete none, and the new one would be at their
// end. An update of other fields is sent as a $set and $unset of these, which the target accepts on such a document.

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
	case pw.Kind == plan.Modify, op.Kind == oplog.KindUpdate && w.learned.anew.Load():
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

// isDollarRefusal reports whether an operation was refused for a name with a dollar.
func isDollarRefusal(err error) bool {
	refused, ok := errors.AsType[*easableError](err)
	return ok && servererr.IsDollarName(refused.err)
}

// setFields makes doc, the document of op, changed by the fields in which they differ, after its replacement was refused. It returns refused
// if that is not possible.
func (w *writer) setFields(ctx context.Context, c conn, op *plan.Op, doc, changed bson.Raw, refused error) error {
	u, ok := fieldsBetween(doc, changed)
	if !ok {
		return refused
	}
	n, err := w.statements(ctx, c, &plan.Write{
		Kind: plan.Update, NS: op.Target, Ordered: true, Docs: []bson.Raw{plan.Change(op.ID, bson.Raw(u))},
	})
	if err != nil {
		return w.refused(ctx, op, err)
	}
	if n != 1 {
		return opError(op, fmt.Errorf("set the fields of the document: %d were found", n))
	}
	return nil
}

// fieldsBetween returns the $set and $unset that make one document another. It returns false if these would have another effect: a client's
// update interprets some names and changes the first field of a name, and servers before 5.0 append fields in the order of their names.
func fieldsBetween(from, to bson.Raw) (u bsoncore.Document, ok bool) {
	var set, unset []byte
	ok = true
	change := func(e *rawbson.Elem) {
		ok = ok && isSettable(e.Name())
		set = append(bsoncore.AppendHeader(set, bsoncore.Type(e.Type), e.Name()), e.Value...)
	}
	had := map[string]bool{}
	at := rawbson.NewIter(to)
	more := at.Next()
	for it := rawbson.NewIter(from); it.Next(); {
		ok = ok && !had[it.Name()]
		had[it.Name()] = true
		if !more || at.Name() != it.Name() {
			ok = ok && isSettable(it.Name())
			unset = bsoncore.AppendStringElement(unset, it.Name(), "")
			continue
		}
		if at.Type != it.Type || !bytes.Equal(at.Value, it.Value) {
			change(&at.Elem)
		}
		more = at.Next()
	}
	for last := ""; more; more = at.Next() {
		ok = ok && !had[at.Name()] && at.Name() > last
		last = at.Name()
		change(&at.Elem)
	}
	b := bsoncore.NewDocumentBuilder()
	if len(set) > 0 {
		b.AppendDocument("$set", bsoncore.BuildDocument(nil, set))
	}
	if len(unset) > 0 {
		b.AppendDocument("$unset", bsoncore.BuildDocument(nil, unset))
	}
	return b.Build(), ok
}

// isSettable reports whether a client's update takes a name for that of a field.
func isSettable(name string) bool {
	return name != "" && name != "_id" && name[0] != '$' && !strings.Contains(name, ".")
}
