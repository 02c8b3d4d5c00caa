package write

import (
	"context"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/command/read"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// findModify is one findAndModify.
type findModify struct {
	updateStatement
	fields      bson.Raw
	remove, new bool

	// found and value are the outcome: whether there was a document, and the one
	// that the reply shows, nil for null. upserted is the new _id.
	existed  bool
	value    bson.Raw
	inserted *bson.RawValue
}

func (t *tables) runFindAndModify(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	w, err := t.newWriter(r, out, 1)
	if err != nil {
		return err
	}
	f := &findModify{}
	if err := f.parse(r); err != nil {
		return err
	}
	err = w.each(ctx, 1, func(ops opwrite.Ops, _ int, _ *int) (int, error) { return completed(w.findAndModify(ops, f)) })
	if err != nil {
		return err
	}
	if len(w.errors) > 0 { // one operation: its error is the command's
		return w.errors[0].err
	}
	w.finish()
	out.Buf = f.appendReply(out.Buf, w)
	return nil
}

// nullable are the arguments of findAndModify that may be null.
var nullable = []string{"query", "sort", "fields", "arrayFilters"}

func (f *findModify) parse(r *dispatch.Request) error {
	name := r.Spec.StructName
	f.filter = dispatch.EmptyDocument
	it := rawbson.NewIter(r.Cmd)
	it.Next()
	for it.Next() {
		ok := true
		var err error
		want := "object"
		if it.Type == bson.TypeNull && slices.Contains(nullable, it.Name()) {
			continue // null is the same as not given
		}
		switch string(it.Key) {
		case "query":
			f.filter, ok = it.Document()
		case "sort":
			f.sort, ok = it.Document()
		case "fields":
			f.fields, ok = it.Document()
		case "update":
			f.u = it.Raw()
		case "remove":
			f.remove = it.Truth()
		case "new":
			f.new = it.Truth()
		case "upsert":
			f.upsert = it.Truth()
		case "arrayFilters":
			f.arrayFilters, ok = it.Array()
			want = "array"
		case "collation":
			f.collation, err = parseCollation(name, &it.Elem)
		case "hint":
			f.hint, err = read.ParseHint(&it.Elem)
		}
		if !ok {
			return dispatch.WrongType(name, it.Name(), it.Type, want)
		}
		if err != nil {
			return err
		}
	}
	return f.check(name)
}

// check refuses incompatible arguments.
func (f *findModify) check(name string) error {
	const bad = servererr.FailedToParse
	if !f.remove {
		if f.u.Type == 0 {
			return servererr.New(bad, "Either an update or remove=true must be specified")
		}
		if f.u.Type == bson.TypeArray && f.arrayFilters != nil {
			return servererr.New(bad, "Cannot specify arrayFilters and a pipeline update")
		}
		return f.checkModification(name + ".update")
	}
	switch {
	case f.u.Type != 0:
		return servererr.New(bad, "Cannot specify both an update and remove=true")
	case f.upsert:
		return servererr.New(bad, "Cannot specify both upsert=true and remove=true ")
	case f.new:
		return servererr.New(bad, "Cannot specify both new=true and remove=true; 'remove' always returns the deleted document")
	case f.arrayFilters != nil:
		return servererr.New(bad, "Cannot specify arrayFilters and remove=true")
	}
	return nil
}

// findAndModify executes the statement. The server reports errors during the
// run as errors of the plan executor.
func (w *writer) findAndModify(ops opwrite.Ops, f *findModify) error {
	stmt := w.stmt(0)
	entry, image, done, err := w.executed(ops, stmt)
	if err != nil {
		return err
	}
	if done {
		w.retried = append(w.retried, stmt.ID)
		return w.replayFindAndModify(f, entry, image)
	}
	coll, err := w.collection(ops)
	if err != nil {
		return err
	}
	if f.remove {
		err = f.search.compile(w.ns, coll)
	} else {
		err = f.compile(w, coll)
	}
	if err != nil {
		return err
	}
	var project *serverquery.Projection
	if len(f.fields) > rawbson.MinSize {
		if project, err = serverquery.CompileProjection(f.fields, serverquery.Options{Collator: f.collator}); err != nil {
			return err
		}
	}
	err = w.modifyFound(ops, coll, f, stmt)
	if err == nil && project != nil && f.value != nil {
		f.value, err = project.Apply(f.value)
	}
	if e, ok := errors.AsType[*servererr.Error](err); ok && !ofWholeCommand(e.Code) {
		return e.Within("Plan executor error during findAndModify")
	}
	return err
}

// modifyFound finds the document and changes it.
func (w *writer) modifyFound(ops opwrite.Ops, coll *storage.Collection, f *findModify, stmt opwrite.Stmt) error {
	image := func(i opwrite.Image) opwrite.Image {
		if stmt.Session == nil {
			return opwrite.NoImage
		}
		return i
	}
	var rec storage.Record
	index, found := -1, false
	var err error
	if coll != nil {
		if f.remove {
			err = w.checkDeletable(coll)
		}
		if err == nil {
			rec, index, found, err = f.first(coll, !f.remove && f.compiled.Positional())
		}
		if err != nil {
			return err
		}
	}
	switch {
	case found && f.remove:
		if err := ops.Delete(coll, rec, stmt, image(opwrite.PreImage)); err != nil {
			return err
		}
		f.existed, f.value = true, rec.Doc
	case found:
		kind := opwrite.PreImage
		if f.new {
			kind = opwrite.PostImage
		}
		post, _, err := w.updateRecord(ops, coll, rec, index, &f.updateStatement, stmt, image(kind))
		if err != nil {
			return err
		}
		f.existed, f.value = true, rec.Doc
		if f.new {
			f.value = post
		}
	case f.upsert:
		doc, err := w.upsert(ops, &f.updateStatement, 0, stmt)
		if err != nil {
			return err
		}
		f.inserted = &w.upserted[0].id
		if f.new {
			f.value = doc
		}
	}
	return nil
}

// replayFindAndModify answers from the entry and the image of the first run.
// The projection is not applied to them: the server does not either.
func (w *writer) replayFindAndModify(f *findModify, entry, image storage.OplogEntry) error {
	l := parseLogged(entry.Raw, w.stmt(0).ID)
	var kept bson.Raw
	if image.Raw != nil {
		kept = parseLogged(image.Raw, 0).o
	}
	switch {
	case l.op == "d" && f.remove:
		f.existed, f.value = true, kept
	case l.op == "u" && !f.remove:
		f.existed, f.value = true, kept
	case l.op == "i" && !f.remove && f.upsert:
		id, _ := rawbson.Lookup(l.o, "_id")
		v := id.Raw()
		f.inserted = &v
		if f.new {
			f.value = l.o
		}
	default:
		return w.notAsRetried(entry)
	}
	return nil
}

func (f *findModify) appendReply(buf []byte, w *writer) []byte {
	i, buf := bsoncore.AppendDocumentElementStart(buf, "lastErrorObject")
	n := int32(0)
	if f.existed || f.inserted != nil {
		n = 1
	}
	buf = bsoncore.AppendInt32Element(buf, "n", n)
	if !f.remove {
		buf = bsoncore.AppendBooleanElement(buf, "updatedExisting", f.existed)
	}
	if f.inserted != nil {
		buf = bsoncore.AppendValueElement(buf, "upserted", bsoncore.Value{Type: bsoncore.Type(f.inserted.Type), Data: f.inserted.Value})
	}
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	if f.value == nil {
		buf = bsoncore.AppendNullElement(buf, "value")
	} else {
		buf = bsoncore.AppendDocumentElement(buf, "value", f.value)
	}
	if len(w.retried) > 0 && w.r.Server.AtLeast(5, 1) {
		buf = bsoncore.AppendInt32Element(buf, "retriedStmtId", w.retried[0])
	}
	return buf
}
