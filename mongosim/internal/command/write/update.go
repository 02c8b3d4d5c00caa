package write

import (
	"bytes"
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/internal/serverupdate"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/command/read"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

func (t *tables) runUpdate(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	docs := r.Docs["updates"]
	w, err := t.newWriter(r, out, len(docs))
	if err != nil {
		return err
	}
	updates := make([]updateStatement, len(docs))
	for i, doc := range docs {
		if err := updates[i].parse(r, doc); err != nil {
			return err
		}
	}
	err = w.each(ctx, len(updates), func(ops opwrite.Ops, i int, budget *int) (int, error) {
		return w.update(ops, &updates[i], i, budget)
	})
	if err != nil {
		return err
	}
	w.finish()
	out.Buf = w.appendUpdateReply(w.appendReply(out.Buf))
	return nil
}

// updateStatement is one element of updates.
type updateStatement struct {
	search
	u             bson.RawValue
	arrayFilters  bson.Raw
	multi, upsert bool

	// entry is the o of an update entry to apply, nil for any other u.
	entry bson.Raw

	compiled *serverupdate.Statement
	// found are the remaining documents of a multi-update.
	found   []storage.RecordID
	scanned bool
}

func (s *updateStatement) parse(r *dispatch.Request, doc bson.Raw) error {
	const name = "update.updates"
	it := rawbson.NewIter(doc)
	for it.Next() {
		var ok bool
		var err error
		switch string(it.Key) {
		case "q":
			if s.filter, ok = it.Document(); !ok {
				return dispatch.WrongType(name, "q", it.Type, "object")
			}
		case "u":
			s.u = it.Raw()
		case "multi":
			if s.multi, ok = it.Bool(); !ok {
				return dispatch.WrongType(name, "multi", it.Type, "bool")
			}
		case "upsert":
			if s.upsert, ok = it.Bool(); !ok {
				return dispatch.WrongType(name, "upsert", it.Type, "bool")
			}
		case "arrayFilters":
			if s.arrayFilters, ok = it.Array(); !ok {
				return dispatch.WrongType(name, "arrayFilters", it.Type, "array")
			}
		case "sort":
			if !r.Server.AtLeast(8, 0) {
				return dispatch.UnknownField(name, "sort")
			}
			if s.sort, ok = it.Document(); !ok {
				return dispatch.WrongType(name, "sort", it.Type, "object")
			}
		case "collation":
			s.collation, err = parseCollation(name, &it.Elem)
		case "hint":
			s.hint, err = read.ParseHint(&it.Elem)
		case "c":
			err = refuseConstants(name, &it.Elem)
		case "sampleId", "upsertSupplied":
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
	if r.Server.AtLeast(6, 0) {
		var err error
		if s.entry, err = entryToApply(s.u); err != nil {
			return err
		}
	}
	return s.checkModification(name + ".u")
}

// checkModification checks the form of the modification, and that a pipeline has
// stages that exist, which the server does before it runs anything.
func (s *updateStatement) checkModification(name string) error {
	switch s.u.Type {
	case bson.TypeEmbeddedDocument, bson.TypeArray:
	case 0:
		return servererr.New(40414, "BSON field '%s' is missing but a required field", name)
	default:
		return servererr.New(servererr.FailedToParse, "Update argument must be either an object or an array")
	}
	if err := serverupdate.CheckStatement(s.u); err != nil {
		return err
	}
	if s.u.Type == bson.TypeArray && s.entry == nil {
		_, err := serverupdate.Compile(s.u, serverupdate.Options{Multi: s.multi, ArrayFilters: s.arrayFilters})
		if e, ok := errors.AsType[*servererr.Error](err); ok && e.Code == unknownStage {
			return err
		}
	}
	return nil
}

// fieldOperator returns the name of an operator of a pipeline that servers before 5.0 do not have.
func fieldOperator(u bson.RawValue) string {
	for _, name := range []string{"$setField", "$unsetField", "$getField"} {
		if u.Type == bson.TypeArray && bytes.Contains(u.Value, []byte("\x03"+name+"\x00")) {
			return name
		}
	}
	return ""
}

// compile prepares the statement for a collection, nil if there is none yet.
func (s *updateStatement) compile(w *writer, coll *storage.Collection) error {
	if s.compiled != nil {
		return nil
	}
	if err := s.search.compile(w.ns, coll); err != nil {
		return err
	}
	srv := w.r.Server
	opts := serverupdate.Options{
		Clock:        func() bson.DateTime { return bson.DateTime(srv.Config.Now().UnixMilli()) },
		Tick:         srv.Tick,
		ArrayFilters: s.arrayFilters,
		Collator:     s.collator,
		Multi:        s.multi,
		Log:          serverupdate.LogDelta,
		Match: func(filter bson.RawValue) (serverupdate.Matcher, error) {
			m, err := serverquery.Compile(filter.Value, serverquery.Options{Collator: s.collator})
			if err != nil {
				return nil, err
			}
			return func(doc bson.RawValue) (bool, error) { return m.Match(doc.Value) }, nil
		},
	}
	if name := fieldOperator(s.u); name != "" && !srv.AtLeast(5, 0) {
		return servererr.New(servererr.InvalidPipelineOperator, "Unrecognized expression '%s'", name)
	}
	if srv.FCV[0] < 5 {
		opts.Log, opts.NoDollars = serverupdate.LogModifiers, true
	}
	u := s.u
	if s.entry != nil {
		u.Value = emptyPipeline
	}
	var err error
	s.compiled, err = serverupdate.Compile(u, opts)
	return err
}

// update executes a part of one statement.
func (w *writer) update(ops opwrite.Ops, s *updateStatement, i int, budget *int) (done int, err error) {
	stmt := w.stmt(i)
	if s.multi && stmt.Session != nil {
		return 0, servererr.New(servererr.InvalidOptions, "Cannot use (or request) retryable writes with multi=true")
	}
	entry, _, before, err := w.executed(ops, stmt)
	if err != nil {
		return completed(err)
	}
	if before {
		*budget--
		return completed(w.countRetried(i, stmt, entry))
	}
	coll, err := w.collection(ops)
	if err == nil {
		err = s.compile(w, coll)
	}
	if err != nil {
		return completed(err)
	}
	if s.multi {
		return w.updateMany(ops, coll, s, i, budget)
	}
	*budget--
	if coll != nil {
		rec, index, ok, err := s.first(coll, s.compiled.Positional())
		if err != nil {
			return completed(err)
		}
		if ok {
			_, changed, err := w.updateRecord(ops, coll, rec, index, s, stmt, opwrite.NoImage)
			if err == nil {
				w.n++
				w.modified += changed
			}
			return completed(err)
		}
	}
	if !s.upsert {
		return 1, nil
	}
	_, err = w.upsert(ops, s, i, stmt)
	return completed(err)
}

// updateMany updates as many of the documents that the statement found at its
// start as the budget lets. Those that no longer match are left out.
func (w *writer) updateMany(ops opwrite.Ops, coll *storage.Collection, s *updateStatement, i int, budget *int) (done int, err error) {
	*budget--
	if !s.scanned {
		if coll != nil {
			if s.found, err = s.all(coll); err != nil {
				return completed(err)
			}
		}
		s.scanned = true
		if len(s.found) == 0 && s.upsert {
			_, err := w.upsert(ops, s, i, opwrite.Stmt{})
			if errors.Is(err, storage.ErrWriteConflict) {
				s.scanned = false
			}
			return completed(err)
		}
	}
	for len(s.found) > 0 && *budget > 0 {
		if coll == nil {
			return 1, nil
		}
		if rec, ok := coll.Record(s.found[0]); ok {
			ok, index, err := s.matches(rec.Doc, s.compiled.Positional())
			if err != nil {
				return completed(err)
			}
			if ok {
				_, changed, err := w.updateRecord(ops, coll, rec, index, s, opwrite.Stmt{}, opwrite.NoImage)
				if err != nil {
					return completed(err)
				}
				w.n++
				w.modified += changed
			}
		}
		s.found = s.found[1:]
		*budget--
	}
	if len(s.found) > 0 {
		return 0, nil
	}
	return 1, nil
}

// updateRecord updates one document. changed is 1 if that made a difference.
func (w *writer) updateRecord(ops opwrite.Ops, coll *storage.Collection, rec storage.Record, index int,
	s *updateStatement, stmt opwrite.Stmt, image opwrite.Image,
) (post bson.Raw, changed int, err error) {
	res, err := s.apply(rec.Doc, index)
	if err != nil {
		return nil, 0, err
	}
	if res.NoOp {
		return rec.Doc, 0, nil
	}
	if coll.CappedBytes > 0 && len(res.Doc) != len(rec.Doc) && !w.r.Server.AtLeast(5, 3) {
		return nil, 0, servererr.New(10003, "Cannot change the size of a document in a capped collection: %d != %d",
			len(rec.Doc), len(res.Doc))
	}
	valid, err := w.validator(coll)
	if err == nil && valid != nil && !w.bypass {
		err = valid.checkUpdate(rec.Doc, res.Doc)
	}
	if err != nil {
		return nil, 0, err
	}
	up := opwrite.Update{
		Post: res.Doc, Made: res.Made, Delta: res.Delta, Modifiers: res.Modifiers,
		ByPipeline: res.Kind == serverupdate.Pipeline, Image: image,
	}
	if err := ops.Update(coll, rec, up, stmt); err != nil {
		return nil, 0, err
	}
	return res.Doc, 1, nil
}

// upsert inserts the document of an update that matched none.
func (w *writer) upsert(ops opwrite.Ops, s *updateStatement, i int, stmt opwrite.Stmt) (bson.Raw, error) {
	equal, err := s.equalities()
	if err != nil {
		return nil, err
	}
	from := make([]serverupdate.Equality, len(equal))
	for n, e := range equal {
		from[n] = serverupdate.Equality{Path: e.Path, Value: e.Value}
	}
	doc, err := s.compiled.Upsert(from)
	if err == nil && s.entry != nil {
		doc, err = applyEntry(doc, s.entry)
	}
	if err != nil {
		return nil, err
	}
	coll, err := w.existing(ops)
	if err != nil {
		return nil, err
	}
	valid, err := w.validator(coll)
	if err == nil {
		err = w.checkStored(doc, valid)
	}
	if err != nil {
		return nil, err
	}
	var stmts []opwrite.Stmt
	if stmt.Session != nil {
		stmts = []opwrite.Stmt{stmt}
	}
	if _, err := ops.Insert(coll, []bson.Raw{doc}, stmts); err != nil {
		return nil, err
	}
	id, _ := rawbson.Lookup(doc, "_id")
	w.n++
	w.upserted = append(w.upserted, upserted{i, id.Raw()})
	return doc, nil
}
