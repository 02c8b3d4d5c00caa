package applier

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// fitting returns how many of the operations, at least one, are announced and
// written at once. Capped collections have an order, and writes to them are not
// idempotent; their _ids recur. So of each capped collection a part contains only
// what can be
//
//   - reordered: deletes first, then updates, then inserts, each kind as one command.
//     Because deletes come first, the target never has more documents than the source
//     had, and removes none that the source still has.
//   - detected after a crash, by the collection's newest documents: no delete or update
//     of the same part concerns an inserted document, and the other inserts do not push
//     it out.
//   - repeated: an upsert is a part of its own. After an insert that pushed its
//     document out, it would make that document again.
func fitting(ops []plan.Op) int {
	parts := map[oplog.Namespace]*cappedPart{}
	for i := range ops {
		op := &ops[i]
		if !op.Collection.Capped {
			continue
		}
		p := parts[op.Target]
		if p == nil {
			p = &cappedPart{inserted: map[string]bool{}}
			p.size, p.max = limits(op.Collection.Options)
			parts[op.Target] = p
		}
		if !p.add(op) && i > 0 {
			return i
		}
	}
	return len(ops)
}

// cappedPart describes the operations of a part on one capped collection.
type cappedPart struct {
	inserted   map[string]bool
	bytes      int64
	size, max  int64 // the collection's limits, 0 for none
	operations int
	upsert     bool // its one operation is an upsert
}

// add reports whether an operation can join those before it.
func (p *cappedPart) add(op *plan.Op) bool {
	p.operations++
	id := idKey(op)
	// Under a collation, _ids of different bytes may be equal.
	if p.inserted[id] || p.upsert || p.operations > 1 && (op.Upsert || op.Collection.Collated()) {
		return false
	}
	p.upsert = op.Upsert
	if op.Kind == oplog.KindInsert {
		p.inserted[id] = true
		p.bytes += int64(len(op.O))
	}
	return len(p.inserted) <= 1 || (p.size <= 0 || p.bytes <= p.size) && (p.max <= 0 || int64(len(p.inserted)) <= p.max)
}

// idKey identifies the _id of an operation. oplog.AppendIDKey has the same bytes for whole numbers above 2^53 that are close to one another:
// each of them would be a part of its own.
func idKey(op *plan.Op) string { return string(bsonorder.AppendKey(nil, op.ID, nil)) }

// limits returns the limits of a capped collection in bytes and documents, 0 for no
// limit.
func limits(options bson.Raw) (size, docs int64) {
	e, _ := rawbson.Lookup(options, "size")
	size, _ = e.Int64()
	e, _ = rawbson.Lookup(options, "max")
	docs, _ = e.Int64()
	return size, docs
}

// settled returns the operations of a part in the order in which they are written.
func settled(ops []plan.Op) []plan.Op {
	rank := func(op *plan.Op) int {
		switch {
		case !op.Collection.Capped:
			return 0
		case op.Kind == oplog.KindDelete:
			return 1
		case op.Kind == oplog.KindUpdate:
			return 2
		default:
			return 3
		}
	}
	if !slices.ContainsFunc(ops, func(op plan.Op) bool { return op.Collection.Capped }) {
		return ops
	}
	ops = slices.Clone(ops)
	slices.SortStableFunc(ops, func(a, b plan.Op) int { return rank(&a) - rank(&b) })
	return ops
}

// undone returns the operations that are not known to be in the target, of operations in
// the order of settled that may have been applied before. Where an insert is among the
// newest documents of its capped collection, it is left out, with the other operations on
// its _id.
//
// The newest documents may be older ones with the same content; those have the same
// effect.
func (w *writer) undone(ctx context.Context, c outsideTxn, ops []plan.Op) ([]plan.Op, error) {
	inserts := map[oplog.Namespace][]*plan.Op{}
	for i := range ops {
		if op := &ops[i]; op.Kind == oplog.KindInsert && op.Collection.Capped {
			inserts[op.Target] = append(inserts[op.Target], op)
		}
	}
	done := map[oplog.Namespace]map[string]bool{}
	for ns, pending := range inserts {
		have, err := w.tail(ctx, c, ns, len(pending))
		if err != nil {
			return nil, err
		}
		done[ns] = map[string]bool{}
		for _, op := range pending[:alreadyIn(pending, have)] {
			done[ns][idKey(op)] = true
		}
	}
	left := make([]plan.Op, 0, len(ops))
	for i := range ops {
		if op := &ops[i]; !op.Collection.Capped || !done[op.Target][idKey(op)] {
			left = append(left, *op)
		}
	}
	return left, nil
}

// alreadyIn returns how many of the pending inserts a capped collection contains, given
// its newest documents, the newest first.
func alreadyIn(pending []*plan.Op, have []bson.Raw) int {
	for n := min(len(pending), len(have)); n > 0; n-- {
		fits := true
		for i := 0; i < n && fits; i++ {
			fits = isStored(pending[n-1-i].O, have[i])
		}
		if fits {
			return n
		}
	}
	return 0
}

// isStored reports whether doc is what a server stores for an insert: it moves the _id to
// the front.
func isStored(inserted, doc bson.Raw) bool {
	if bytes.Equal(inserted, doc) {
		return true
	}
	if len(inserted) != len(doc) {
		return false
	}
	id, ok := rawbson.Lookup(inserted, "_id")
	if !ok {
		return false
	}
	first := bsoncore.AppendValueElement(nil, "_id", bsoncore.Value{Type: bsoncore.Type(id.Type), Data: id.Value})
	if !bytes.HasPrefix(doc[4:], first) {
		return false
	}
	at := bytes.Index(inserted, first)
	return at >= 4 && bytes.Equal(inserted[4:at], doc[4+len(first):len(first)+at]) && bytes.Equal(inserted[at+len(first):], doc[at+len(first):])
}

// remove deletes the document that is in the way of an insert. A capped collection of which the target refuses that has to be
// copied again: to replace the document would give the new one the place of the old one in the order of insertion, so that it would be
// trimmed too early.
func (w *writer) remove(ctx context.Context, c conn, op *plan.Op) error {
	del := *op
	del.Kind, del.Mode = oplog.KindDelete, plan.ModeCopied
	pw, err := plan.One(del, w.cfg.Plan)
	if err != nil {
		return err
	}
	if _, err := w.statements(ctx, c, &pw); err != nil {
		if op.Collection.Capped && servererr.KeepsCapped(err) {
			return &ddl.ResyncError{
				OpTime: op.At.OpTime, Name: op.Kind.String(), NS: op.NS.Clone(),
				Why: fmt.Sprintf("a document of the _id %s is in the way, and the target deletes none from a capped collection: %v", showID(op.ID), err),
			}
		}
		return w.refused(ctx, op, fmt.Errorf("delete the document of that _id first: %w", err))
	}
	return nil
}

// tail reads the n newest documents of a capped collection, the newest first.
func (w *writer) tail(ctx context.Context, c outsideTxn, ns oplog.Namespace, n int) ([]bson.Raw, error) {
	reply, err := c.read(ctx, newest(ns, n))
	var docs []bson.Raw
	for err == nil {
		var got []bson.Raw
		var cursor int64
		if got, cursor, err = batchOf(reply); err != nil {
			break
		}
		docs = append(docs, got...)
		if cursor == 0 || len(docs) >= n {
			return docs, nil
		}
		reply, err = c.read(ctx, getMore(ns, cursor))
	}
	return nil, fmt.Errorf("read the newest %d documents of %s: %w", n, ns, err)
}

// trimmed handles deletes from a capped collection that the target refuses. A primary
// logs its own trimming as deletes, after the insert that caused it. The target has
// trimmed itself on the same insert, which is written by now, so the document is gone
// already.
func (w *writer) trimmed(ctx context.Context, c outsideTxn, pw *plan.Write, ops []plan.Op, t *tally) error {
	first := &ops[pw.Ops[0][0]]
	again := map[string]bool{} // inserted after their delete, and written by now
	for i := range ops {
		if op := &ops[i]; op.Kind == oplog.KindInsert && op.Target == pw.NS {
			again[idKey(op)] = true
		}
	}
	ids := bsoncore.NewArrayBuilder()
	for _, of := range pw.Ops {
		id := ops[of[0]].ID
		if again[idKey(&ops[of[0]])] {
			continue
		}
		ids.AppendValue(bsoncore.Value{Type: bsoncore.Type(id.Type), Data: id.Value})
	}
	body := bsoncore.NewDocumentBuilder().
		AppendString("find", pw.NS.Collection()).
		AppendDocument("filter", bsoncore.NewDocumentBuilder().
			AppendDocument("_id", bsoncore.NewDocumentBuilder().AppendArray("$in", ids.Build()).Build()).Build()).
		AppendDocument("projection", bsoncore.NewDocumentBuilder().AppendInt32("_id", 1).Build()).
		AppendBoolean("singleBatch", true).
		AppendInt32("batchSize", int32(len(pw.Ops))).Build()
	reply, err := c.read(ctx, mongo.Command{DB: pw.NS.DB(), Body: bson.Raw(body)})
	if err != nil {
		return err
	}
	kept, _, err := batchOf(reply)
	if err != nil {
		return err
	}
	t.deletesEmpty += len(pw.Ops) - len(kept)
	t.ignored += len(kept)
	if len(kept) > 0 && !w.kept[pw.NS] {
		w.kept[pw.NS] = true
		// Logged once for each collection and writer.
		w.cfg.Observer.Log(slog.LevelWarn, "documents deleted from a capped collection stay, as the target refuses to delete from one",
			slog.String(keyNS, string(pw.NS)), slog.Int(keyOps, len(kept)), slog.String(keyOpTime, first.At.OpTime.String()))
	}
	return nil
}
