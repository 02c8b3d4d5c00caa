package opwrite

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/update"
)

// Update replaces a document; see Ops.
func (b *Batch) Update(coll *storage.Collection, old storage.Record, up Update, stmt Stmt) error {
	e, changed, err := b.p.format.updateEntry(coll, old, &up)
	if err != nil || !changed {
		return err
	}
	image := old.Doc
	if up.Image == PostImage {
		image = up.Post
	}
	return b.changeOne(e, stmt, up.Image, image, func(u *storage.Unit) error {
		return u.Update(coll.UUID, old.ID, up.Post)
	})
}

// Delete removes a document; see Ops.
func (b *Batch) Delete(coll *storage.Collection, old storage.Record, stmt Stmt, image Image) error {
	id, err := documentID(old.Doc)
	if err != nil {
		return err
	}
	e := entry{op: "d", ns: coll.NS, ui: coll.UUID, o: storage.IDDocument(id)}
	return b.changeOne(&e, stmt, image, old.Doc, func(u *storage.Unit) error { return u.Delete(coll.UUID, old.ID) })
}

// changeOne executes and logs an update or delete, with the record and the
// image of a retryable one.
func (b *Batch) changeOne(e *entry, stmt Stmt, kind Image, image bson.Raw, change func(u *storage.Unit) error) error {
	s := stmt.Session
	if s == nil {
		return b.write(e, change)
	}
	if err := b.allowed(e.ns); err != nil {
		return err
	}
	prev, err := b.link(s)
	if err != nil {
		return err
	}
	e.session, e.stmts, e.prev = s, []int32{stmt.ID}, prev
	slots := 1
	if kind != NoImage {
		if b.p.format.modern {
			e.image = kind
			if err := b.needCollection(ImagesNS); err != nil {
				return err
			}
		} else {
			slots = 2
		}
	}
	first, err := b.reserve(slots)
	if err != nil {
		return err
	}
	at := slot(first, slots-1)
	u := b.w.Begin(bson.Timestamp{})
	err = change(u)
	if err == nil {
		err = b.record(u, s, at)
	}
	if err == nil && e.image != NoImage {
		err = WriteImage(u, s, at.TS, kind, image)
	}
	if err != nil {
		u.Abort()
		return err
	}
	u.Commit(at.TS)
	if slots == 2 {
		b.logImage(e, kind, image, first)
	}
	b.log(e, at)
	b.p.executed(s, prev, at, stmt.ID)
	return nil
}

// The sizes of the groups in which the server deletes what a multi-delete means.
const (
	deleteGroupDocuments = 10
	deleteGroupBytes     = 2 << 20
)

// DeleteMany removes documents of one multi-delete statement, which dialects from
// 7.0 on log as batches in one applyOps entry.
func (b *Batch) DeleteMany(coll *storage.Collection, old []storage.Record) error {
	for len(old) > 0 {
		n, size := 0, 0
		for n < len(old) && n < deleteGroupDocuments && size < deleteGroupBytes {
			size += len(old[n].Doc)
			n++
		}
		var err error
		switch f := &b.p.format; {
		case !f.groupDeletes, coll.CappedBytes > 0, n == 1 && f.groupInserts:
			n = 1
			err = b.Delete(coll, old[0], Stmt{}, NoImage)
		default:
			err = b.deleteGroup(coll, old[:n])
		}
		if err != nil {
			return err
		}
		old = old[n:]
	}
	return nil
}

func (b *Batch) deleteGroup(coll *storage.Collection, old []storage.Record) error {
	if err := b.allowed(coll.NS); err != nil {
		return err
	}
	at, err := b.reserve(len(old))
	if err != nil {
		return err
	}
	ops := make([][]byte, len(old))
	u := b.w.Begin(bson.Timestamp{})
	for i, record := range old {
		var id bson.RawValue
		if id, err = documentID(record.Doc); err == nil {
			err = u.Delete(coll.UUID, record.ID)
		}
		if err != nil {
			u.Abort()
			return err
		}
		ops[i] = b.p.format.inner(&entry{op: "d", ns: coll.NS, ui: coll.UUID, o: storage.IDDocument(id)})
	}
	u.Commit(at.TS)
	b.log(&entry{op: "c", ns: adminCommands, o: applyOpsDocument(ops, nil)}, at)
	return nil
}

// updateEntry is the entry of an update. It is false for a pipeline that changes
// nothing.
func (f *format) updateEntry(coll *storage.Collection, old storage.Record, up *Update) (*entry, bool, error) {
	// The key is that of the new document: its _id may be of another type.
	id, err := documentID(up.Post)
	if err != nil {
		return nil, false, err
	}
	// The server logs before it puts _id in front, and of a pipeline what that made.
	made, whole := up.Made, up.Post
	if made == nil {
		made = up.Post
	}
	if _, ok := rawbson.Lookup(made, "_id"); ok {
		whole = made
	}
	e := entry{op: "u", ns: coll.NS, ui: coll.UUID, o: whole, o2: storage.IDDocument(id)}
	switch {
	case up.Delta == nil && up.Modifiers == nil:
		if !up.ByPipeline || !f.deltas {
			break
		}
		if diff, smaller := update.Diff(old.Doc, made, update.EnvelopePadding); smaller {
			if len(diff) == rawbson.MinSize {
				return nil, false, nil
			}
			e.o = delta(diff)
		}
	case f.deltas && up.Delta != nil:
		e.o = delta(up.Delta)
	case !f.deltas && up.Modifiers != nil:
		e.o = modifiers(up.Modifiers)
	case up.ByPipeline:
	default:
		return nil, false, servererr.New(servererr.InternalError, "update of %s: not in the form that the dialect logs", coll.NS)
	}
	return &e, true, nil
}

func delta(diff bson.Raw) bson.Raw {
	start, o := bsoncore.AppendDocumentStart(make([]byte, 0, 32+len(diff)))
	o = bsoncore.AppendInt32Element(o, "$v", 2)
	o = bsoncore.AppendDocumentElement(o, "diff", bsoncore.Document(diff))
	o, _ = bsoncore.AppendDocumentEnd(o, start)
	return o
}

func modifiers(m bson.Raw) bson.Raw {
	if first := rawbson.NewIter(m); first.Next() && first.Is("$v") {
		return m
	}
	start, o := bsoncore.AppendDocumentStart(make([]byte, 0, 16+len(m)))
	o = bsoncore.AppendInt32Element(o, "$v", 1)
	o = append(o, m[4:len(m)-1]...)
	o, _ = bsoncore.AppendDocumentEnd(o, start)
	return o
}

// adminCommands is where groups of operations are logged.
const adminCommands oplog.Namespace = "admin.$cmd"

// documentID returns the _id of a document.
func documentID(doc bson.Raw) (bson.RawValue, error) {
	e, ok := rawbson.Lookup(doc, "_id")
	if !ok {
		return bson.RawValue{}, servererr.New(servererr.NoSuchKey, "a document without _id")
	}
	return e.Raw(), nil
}

func clone(doc bson.Raw) bson.Raw { return append(bson.Raw(nil), doc...) }
