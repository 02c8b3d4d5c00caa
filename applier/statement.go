package applier

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// planned moves the lane after a span and executes its planned writes, in a transaction.
// Commands are sent together up to one that needs an earlier reply. A statement without
// the expected effect is an error.
func (w *writer) planned(ctx context.Context, txn *mongo.Txn, s span, writes []plan.Write, t *tally) error {
	moved := false
	if w.verify || len(writes) == 0 || writes[0].Kind == plan.Modify {
		if err := w.move(ctx, txn, s.last()); err != nil {
			return err
		}
		moved = true
	}
	for len(writes) > 0 {
		if writes[0].Kind == plan.Modify {
			if err := w.sendModify(ctx, inTxn{txn}, &writes[0], s.ops, t); err != nil {
				return err
			}
			writes = writes[1:]
			continue
		}
		n := 1
		for n < len(writes) && writes[n].Kind != plan.Modify {
			n++
		}
		run := writes[:n]
		writes = writes[n:]
		cmds := w.commands(run)
		each := func(i int, reply bson.Raw) error {
			took, err := mongo.Written(reply)
			if err != nil {
				return err
			}
			return count(&run[i], took, t)
		}
		var err error
		if moved {
			err = txn.CallAll(ctx, cmds, each)
		} else {
			err = w.lane.MoveWith(ctx, txn, s.last(), cmds, each)
		}
		clear(cmds)
		if err != nil {
			return err
		}
		moved = true
	}
	return w.keepDiverged(ctx, txn, t.diverged, bson.NilObjectID) // of a Modify
}

// commands builds the commands for writes, none of which is a Modify. They are valid
// until the next call.
func (w *writer) commands(writes []plan.Write) []mongo.Command {
	w.cmds, w.bodies = w.cmds[:0], w.bodies[:0]
	for i := range writes {
		pw := &writes[i]
		from := len(w.bodies)
		c := mongo.Command{DB: pw.NS.DB(), Docs: pw.Docs}
		w.bodies, c.Sequence = pw.AppendCommand(w.bodies)
		c.Body = w.bodies[from:len(w.bodies):len(w.bodies)]
		w.cmds = append(w.cmds, c)
	}
	return w.cmds
}

// sendModify executes a planned Modify.
func (w *writer) sendModify(ctx context.Context, c conn, pw *plan.Write, ops []plan.Op, t *tally) error {
	if w.learned.anew.Load() {
		for _, i := range pw.Ops[0] {
			if err := w.one(ctx, c, &ops[i], t); err != nil {
				return err
			}
		}
		return nil
	}
	t.docs++
	found, err := w.modify(ctx, c, &ops[pw.Ops[0][0]])
	switch {
	case err != nil:
		return err
	case !found && pw.MustMatch:
		return &shortError{want: 1}
	case !found:
		t.ignored++
	}
	return nil
}

// count counts a planned write that took effect n times.
func count(pw *plan.Write, n int64, t *tally) error {
	want := int64(pw.Documents)
	t.docs += pw.Documents
	if listed := pw.Documents - len(pw.Docs); pw.Kind == plan.Delete {
		t.listedDeletes += listed
	} else {
		t.listed += listed
	}
	switch {
	case n > want:
		return fmt.Errorf("write to %s: statements for %d documents took effect %d times", pw.NS, want, n)
	case n == want:
		return nil
	}
	switch {
	case pw.Kind == plan.Delete:
		t.deletesEmpty += int(want - n)
	case pw.Kind == plan.Update && pw.Guarded:
		return &shortError{want: want, got: n, guarded: true}
	case pw.Kind == plan.Insert, pw.MustMatch:
		return &shortError{want: want, got: n}
	default:
		t.ignored += int(want - n)
	}
	return nil
}

// statements sends a write and returns its n.
func (w *writer) statements(ctx context.Context, c conn, pw *plan.Write) (int64, error) {
	body, sequence := pw.Command()
	reply, err := c.write(ctx, mongo.Command{DB: pw.NS.DB(), Body: body, Sequence: sequence, Docs: pw.Docs})
	if err != nil {
		return 0, err
	}
	return mongo.Written(reply)
}

// modify reads a document, applies the update, and writes the result. It reports whether
// there was a document, or one was to be created.
func (w *writer) modify(ctx context.Context, c conn, op *plan.Op) (found bool, err error) {
	doc, found, err := look(ctx, c, op.Target, op.ID)
	if err != nil {
		return false, err
	}
	if !found {
		if !op.Upsert {
			return false, nil
		}
		doc = bson.Raw(bsoncore.BuildDocument(nil,
			bsoncore.AppendValueElement(nil, "_id", bsoncore.Value{Type: bsoncore.Type(op.ID.Type), Data: op.ID.Value})))
	}
	changed, err := update.Apply(doc, op.O)
	if err != nil {
		return false, opError(op, err)
	}
	if found && bytes.Equal(changed, doc) {
		return true, nil
	}
	err = w.replace(ctx, c, op, changed, op.Upsert)
	if found && isDirect(op) && isDollarRefusal(err) {
		err = w.setFields(ctx, c, op, doc, changed, err)
	}
	return true, err
}

// replace makes doc the document of op, exactly.
func (w *writer) replace(ctx context.Context, c conn, op *plan.Op, doc bson.Raw, upsert bool) error {
	if w.learned.isAnew(op, doc) {
		return w.insertAnew(ctx, c, op, doc)
	}
	n, err := w.statements(ctx, c, &plan.Write{
		Kind: plan.Update, NS: op.Target, Ordered: true, Docs: []bson.Raw{plan.Replace(op.ID, doc, upsert)},
	})
	if err != nil {
		return w.refused(ctx, op, err)
	}
	if n != 1 {
		return opError(op, fmt.Errorf("replace the document: %d were found", n))
	}
	return nil
}

// one applies one operation, after reading the document that it meets.
func (w *writer) one(ctx context.Context, c conn, op *plan.Op, t *tally) error {
	exactInsert := op.Kind == oplog.KindInsert && op.Mode == plan.ModeExact && !op.Grouped
	if exactInsert || respellable(op) {
		if done, err := w.meets(ctx, c, op, exactInsert, t); done || err != nil {
			return err
		}
	}
	// A document that the target has in another spelling is not set aside.
	if w.learned.isMarked(op) {
		return w.oneMarked(ctx, c, op, t)
	}
	pw, err := plan.One(*op, w.cfg.Plan)
	if err != nil {
		return err
	}
	t.docs++
	n, err := w.writeOne(ctx, c, op, &pw)
	if err != nil {
		return w.refused(ctx, op, err)
	}
	return w.met(op, &pw, n, t)
}

// meets reads the document that an operation meets. It reports whether nothing is left to
// do.
func (w *writer) meets(ctx context.Context, c conn, op *plan.Op, exactInsert bool, t *tally) (done bool, err error) {
	have, found, err := look(ctx, c, op.Target, op.ID)
	switch {
	case err != nil:
		return false, w.refused(ctx, op, err)
	case !found:
		return false, nil
	case !exactInsert:
		if spelledAs(have, op.ID) {
			return false, nil
		}
		return w.respelled(ctx, c, op, have, t)
	case bytes.Equal(have, op.O):
		return true, nil
	}
	if err := w.divergence(divergence(op, "the insert met another document of that _id"), t); err != nil {
		return false, err
	}
	t.docs++
	if !spelledAs(have, op.ID) {
		return true, w.overwrite(ctx, c, op)
	}
	return true, w.replace(ctx, c, op, op.O, true)
}

// met checks how many documents one operation matched.
func (w *writer) met(op *plan.Op, pw *plan.Write, n int64, t *tally) error {
	switch {
	case n == 1:
		return nil
	case n != 0:
		return opError(op, fmt.Errorf("%d documents were found by _id", n))
	case op.Kind == oplog.KindDelete:
		t.deletesEmpty++
		return nil
	case op.Kind == oplog.KindInsert:
		return opError(op, errors.New("the insert did nothing"))
	case pw.MustMatch && !op.Collection.Capped:
		return w.divergence(divergence(op, "the update found no document"), t)
	default:
		// A capped collection trims itself by its own size accounting.
		t.ignored++
		return nil
	}
}

// refused returns the error for a server's refusal of op. An error that is not about one
// operation is returned unchanged.
func (w *writer) refused(ctx context.Context, op *plan.Op, err error) error {
	if judge(err) != single {
		return err
	}
	if e, ok := asServerError(err); ok && servererr.IsDuplicateKey(e) {
		return w.uniqueError(ctx, op, e)
	}
	if op.Mode == plan.ModeCopied || servererr.KeyFaultOf(err).DependsOnVersion() || servererr.IsDollarName(err) {
		return &easableError{op: op, err: opError(op, err)}
	}
	return opError(op, err)
}

// uniqueError describes a refusal by a unique index, as far as the details are known.
func (w *writer) uniqueError(ctx context.Context, op *plan.Op, e *servererr.Error) error {
	u := &UniqueError{
		NS: op.Target, ID: cloneValue(op.ID), OpTime: op.At.OpTime, Index: indexOf(e.Message), Err: e,
	}
	key, ok := e.Info.Lookup("keyValue").DocumentOK()
	if !ok {
		return u
	}
	u.Key = bytes.Clone(key)
	// Best effort, and outside of the transaction, which the server has aborted.
	cmd := mongo.Command{DB: op.Target.DB(), Body: bson.Raw(bsoncore.NewDocumentBuilder().
		AppendString("find", op.Target.Collection()).
		AppendDocument("filter", bsoncore.Document(key)).
		AppendInt32("limit", 1).AppendBoolean("singleBatch", true).Build())}
	if reply, err := w.cfg.Target.Call(ctx, cmd); err == nil {
		if docs, _, err := batchOf(reply); err == nil && len(docs) == 1 {
			u.Other = docs[0].Lookup("_id")
		}
	}
	return u
}
