package write

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/command/read"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

func (t *tables) runDelete(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	docs := r.Docs["deletes"]
	w, err := t.newWriter(r, out, len(docs))
	if err != nil {
		return err
	}
	deletes := make([]deleteStatement, len(docs))
	for i, doc := range docs {
		if err := deletes[i].parse(doc); err != nil {
			return err
		}
	}
	err = w.each(ctx, len(deletes), func(ops opwrite.Ops, i int, budget *int) (int, error) {
		return w.delete(ops, &deletes[i], i, budget)
	})
	if err != nil {
		return err
	}
	w.finish()
	out.Buf = w.appendReply(out.Buf)
	return nil
}

// deleteStatement is one element of deletes.
type deleteStatement struct {
	search
	multi bool

	// found are the remaining documents of a multi-delete.
	found   []storage.RecordID
	scanned bool
}

func (s *deleteStatement) parse(doc bson.Raw) error {
	const name = "delete.deletes"
	limited := false
	it := rawbson.NewIter(doc)
	for it.Next() {
		var ok bool
		var err error
		switch string(it.Key) {
		case "q":
			if s.filter, ok = it.Document(); !ok {
				return dispatch.WrongType(name, "q", it.Type, "object")
			}
		case "limit":
			n, ok := it.Int64()
			if !ok {
				return dispatch.WrongType(name, "limit", it.Type, "bool", "int", "decimal", "double", "long")
			}
			if n != 0 && n != 1 {
				return servererr.New(servererr.FailedToParse, "The limit field in delete objects must be 0 or 1. Got %d", n)
			}
			s.multi, limited = n == 0, true
		case "collation":
			s.collation, err = parseCollation(name, &it.Elem)
		case "hint":
			s.hint, err = read.ParseHint(&it.Elem)
		case "sampleId":
		default:
			return dispatch.UnknownField(name, it.Name())
		}
		if err != nil {
			return err
		}
	}
	if s.filter == nil {
		return dispatch.MissingField(name, "q")
	}
	if !limited {
		return dispatch.MissingField(name, "limit")
	}
	return nil
}

// delete executes a part of one statement.
func (w *writer) delete(ops opwrite.Ops, s *deleteStatement, i int, budget *int) (done int, err error) {
	stmt := w.stmt(i)
	if s.multi && stmt.Session != nil {
		return 0, servererr.New(servererr.InvalidOptions, "Cannot use (or request) retryable writes with limit=0")
	}
	*budget--
	entry, _, before, err := w.executed(ops, stmt)
	if err != nil {
		return completed(err)
	}
	if before {
		return completed(w.countRetried(i, stmt, entry))
	}
	coll, err := w.collection(ops)
	if err == nil {
		err = s.compile(w.ns, coll)
	}
	if err == nil && coll != nil {
		err = w.checkDeletable(coll)
	}
	if err != nil || coll == nil {
		return completed(err)
	}
	if s.multi {
		return w.deleteMany(ops, coll, s, budget)
	}
	rec, _, ok, err := s.first(coll, false)
	if !ok || err != nil {
		return completed(err)
	}
	if err := ops.Delete(coll, rec, stmt, opwrite.NoImage); err != nil {
		return completed(err)
	}
	w.n++
	return 1, nil
}

// checkDeletable refuses deletes from capped collections, as the server does before
// 5.3, and in one more case with the feature compatibility version 4.4, by a code
// without a name.
func (w *writer) checkDeletable(coll *storage.Collection) error {
	if coll.CappedBytes > 0 && w.r.Server.FCV[0] < 5 && w.r.Server.AtLeast(5, 0) {
		return servererr.New(10089, "cannot remove from a capped collection: %s", w.ns)
	}
	if coll.CappedBytes > 0 && !w.r.Server.AtLeast(5, 3) {
		return servererr.New(servererr.IllegalOperation, "cannot remove from a capped collection: %s", w.ns)
	}
	return nil
}

func (w *writer) deleteMany(ops opwrite.Ops, coll *storage.Collection, s *deleteStatement, budget *int) (done int, err error) {
	if !s.scanned {
		if s.found, err = s.all(coll); err != nil {
			return completed(err)
		}
		s.scanned = true
	}
	n := min(len(s.found), max(*budget, 1))
	records := make([]storage.Record, 0, n)
	for _, id := range s.found[:n] {
		rec, ok := coll.Record(id)
		if ok {
			ok, _, err = s.matches(rec.Doc, false)
		}
		if err != nil {
			return completed(err)
		}
		if ok {
			records = append(records, rec)
		}
	}
	if b, ok := ops.(*opwrite.Batch); ok {
		// Not one by one: since 7.0 deletes of one statement are logged together. A
		// conflict leaves some of them undone, and a second try finds the rest.
		before := coll.Len()
		err := b.DeleteMany(coll, records)
		if after, ok := b.View().ByUUID(coll.UUID); ok {
			w.n += before - after.Len()
		}
		if err != nil {
			return completed(err)
		}
	} else {
		for _, rec := range records {
			if err := ops.Delete(coll, rec, opwrite.Stmt{}, opwrite.NoImage); err != nil {
				return completed(err)
			}
			w.n++
		}
	}
	s.found = s.found[n:]
	*budget -= n
	if len(s.found) > 0 {
		return 0, nil
	}
	return 1, nil
}
