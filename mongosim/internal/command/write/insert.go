package write

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/serverupdate"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

func (t *tables) runInsert(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	docs := r.Docs["documents"]
	w, err := t.newWriter(r, out, len(docs))
	if err != nil {
		return err
	}
	if err := w.insert(ctx, docs); err != nil {
		return err
	}
	w.finish()
	out.Buf = w.appendReply(out.Buf)
	return nil
}

// insertion is a batch of documents on its way.
type insertion struct {
	docs []bson.Raw
	// faults are the errors of single documents, by index.
	faults map[int]error
	next   int
}

// insert stores documents in order, in sections of the store's lock.
func (w *writer) insert(ctx context.Context, docs []bson.Raw) error {
	in := &insertion{docs: make([]bson.Raw, len(docs))}
	opts := serverupdate.Options{Tick: w.r.Server.Tick, NoDollars: w.r.Server.FCV[0] < 5}
	for i, doc := range docs {
		stored, err := opts.CheckInsert(doc)
		if err != nil {
			if in.faults == nil {
				in.faults = map[int]error{}
			}
			in.faults[i] = err
		}
		in.docs[i] = stored
	}
	if err := w.r.StatementMood(); err != nil {
		in.faults = map[int]error{0: err}
	}
	if done, err := w.insertTimeseries(ctx, in); done || err != nil {
		return err
	}
	for in.next < len(docs) && !w.stopped {
		limit := min(in.next+Chunk, len(docs))
		err := w.section(ctx, func(ops opwrite.Ops) error { return w.insertSome(ops, in, limit) })
		if err != nil {
			return err
		}
		if err := goesOn(ctx); err != nil && in.next < len(docs) {
			return err
		}
	}
	return nil
}

// insertSome stores the documents before limit.
func (w *writer) insertSome(ops opwrite.Ops, in *insertion, limit int) error {
	for in.next < limit && !w.stopped {
		if err, ok := in.faults[in.next]; ok {
			if err := w.failed(in.next, err); err != nil {
				return err
			}
			in.next++
			continue
		}
		coll, err := w.existing(ops)
		if err == nil {
			err = w.insertRun(ops, coll, in, limit)
		}
		if err == nil {
			continue
		}
		if errors.Is(err, storage.ErrWriteConflict) {
			return err
		}
		if err := w.failed(in.next, err); err != nil {
			return err
		}
		in.next++
	}
	return nil
}

// insertRun stores as many documents as can be stored with one call. An error is
// that of the document in.next.
func (w *writer) insertRun(ops opwrite.Ops, coll *storage.Collection, in *insertion, limit int) error {
	valid, err := w.validator(coll)
	if err != nil {
		return err
	}
	var stmts []opwrite.Stmt
	end := in.next
	var fault error
	for ; end < limit; end++ {
		if _, bad := in.faults[end]; bad {
			break
		}
		stmt := w.stmt(end)
		if entry, _, done, err := w.executed(ops, stmt); done || err != nil {
			fault = err
			if done && end == in.next {
				if err := w.countRetried(end, stmt, entry); err != nil {
					return err
				}
				in.next++
				return nil
			}
			break
		}
		if fault = w.checkStored(in.docs[end], valid); fault != nil {
			break
		}
		if stmt.Session != nil {
			stmts = append(stmts, stmt)
		}
	}
	if end == in.next {
		return fault
	}
	n, err := ops.Insert(coll, in.docs[in.next:end], stmts)
	in.next += n
	w.n += n
	return err
}

// checkStored refuses a new document that is invalid for the collection.
func (w *writer) checkStored(doc bson.Raw, valid *validator) error {
	if valid == nil || w.bypass {
		return nil
	}
	return valid.check(doc)
}
