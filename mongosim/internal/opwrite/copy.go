package opwrite

import (
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// Rename renames within a database (dropTarget: the collection that holds the
// new name, or nil), or across databases by copying into a temporary collection.
func (b *Batch) Rename(coll *storage.Collection, to oplog.Namespace, dropTarget *storage.Collection, stayTemp bool) error {
	if coll.NS.DB() == to.DB() {
		return b.renameWithin(coll, to, dropTarget, stayTemp)
	}
	if dropTarget == nil {
		if _, taken := b.View().Collection(to); taken {
			return servererr.New(servererr.NamespaceExists, "target namespace exists")
		}
	}
	if err := b.exclusive(coll, dropTarget); err != nil {
		return err
	}
	id := b.p.cfg.NewUUID()
	copied, err := b.createAs(id, TemporaryName(to.DB(), id, "renameCollection"), coll.Options, coll.IDIndex)
	if err != nil {
		return err
	}
	var specs []bson.Raw
	for _, i := range coll.Indexes {
		if i.Name != "_id_" && !i.Building {
			specs = append(specs, i.Spec)
		}
	}
	if err := b.CreateIndexes(copied, specs); err != nil {
		return errors.Join(err, b.dropTemporary(id))
	}
	if err := b.copyDocuments(coll, copied, 0); err != nil {
		return errors.Join(err, b.dropTemporary(id))
	}
	if copied, err = find(b.View(), id); err != nil {
		return err
	}
	if err := b.renameWithin(copied, to, dropTarget, stayTemp); err != nil {
		return errors.Join(err, b.dropTemporary(id))
	}
	return b.Drop(coll)
}

func (b *Batch) renameWithin(coll *storage.Collection, to oplog.Namespace, dropTarget *storage.Collection, stayTemp bool) error {
	start, o := bsoncore.AppendDocumentStart(nil)
	o = bsoncore.AppendStringElement(o, "renameCollection", string(coll.NS))
	o = bsoncore.AppendStringElement(o, "to", string(to))
	o = bsoncore.AppendBooleanElement(o, "stayTemp", stayTemp)
	e := entry{op: "c", ns: commands(coll.NS), ui: coll.UUID}
	if dropTarget != nil {
		o = bsoncore.AppendBinaryElement(o, "dropTarget", bson.TypeBinaryUUID, dropTarget.UUID[:])
		e.o2 = numRecords(dropTarget)
	}
	o, _ = bsoncore.AppendDocumentEnd(o, start)
	e.o = o
	return b.write(&e, func(u *storage.Unit) error {
		if dropTarget != nil {
			if err := u.Drop(dropTarget.UUID); err != nil {
				return err
			}
		}
		if err := u.Rename(coll.UUID, to); err != nil {
			return err
		}
		if stayTemp {
			return nil
		}
		if options, ok := without(coll.Options, "temp"); ok {
			return u.SetOptions(coll.UUID, options)
		}
		return nil
	})
}

// ConvertToCapped replaces a collection by a capped copy of its newest documents.
// Size is in bytes.
func (b *Batch) ConvertToCapped(coll *storage.Collection, size int64) error {
	start, options := bsoncore.AppendDocumentStart(nil)
	options = bsoncore.AppendBooleanElement(options, "capped", true)
	options = appendNumber(options, "size", size)
	options = bsoncore.AppendBooleanElement(options, "temp", true)
	it := rawbson.NewIter(coll.Options)
	for it.Next() {
		switch it.Name() {
		case "capped", "size", "max", "temp":
		default:
			options = bsoncore.AppendValueElement(options, it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
		}
	}
	options, _ = bsoncore.AppendDocumentEnd(options, start)

	if err := b.exclusive(coll); err != nil {
		return err
	}
	id := b.p.cfg.NewUUID()
	copied, err := b.createAs(id, TemporaryName(coll.NS.DB(), id, "convertToCapped."+coll.NS.Collection()), options, nil)
	if err != nil {
		return err
	}
	if err := b.copyDocuments(coll, copied, coll.Bytes()-2*size); err != nil {
		return errors.Join(err, b.dropTemporary(id))
	}
	if copied, err = find(b.View(), id); err != nil {
		return err
	}
	if err := b.renameWithin(copied, coll.NS, coll, false); err != nil {
		return errors.Join(err, b.dropTemporary(id))
	}
	return nil
}

// exclusive refuses, with storage.ErrWriteConflict, what an open transaction has
// written to: before the first of several entries, so that a command that waits
// for the transaction and restarts logs nothing in vain. Nil is left out.
func (b *Batch) exclusive(colls ...*storage.Collection) error {
	u := b.w.Begin(bson.Timestamp{})
	defer u.Abort()
	for _, coll := range colls {
		if coll == nil {
			continue
		}
		if err := u.SetOptions(coll.UUID, coll.Options); err != nil {
			return err
		}
	}
	return nil
}

// dropTemporary drops an abandoned copy, as the server does.
func (b *Batch) dropTemporary(id oplog.UUID) error {
	coll, ok := b.View().ByUUID(id)
	if !ok {
		return nil
	}
	return b.Drop(coll)
}

// copyDocuments inserts the documents of one collection into another, which the
// server logs as it logs a migration. It skips the oldest documents while they
// exceed the limit by excess bytes, by the server's estimate.
func (b *Batch) copyDocuments(from, to *storage.Collection, excess int64) error {
	// The collection that is copied does not change, but its reader must not be
	// open while the store is written to.
	docs := make([]bson.Raw, 0, from.Len())
	for record := range from.Natural(0) {
		if excess > 0 {
			excess -= 4 * int64(len(record.Doc))
			continue
		}
		docs = append(docs, record.Doc)
	}
	for _, doc := range docs {
		e := entry{op: "i", ns: to.NS, ui: to.UUID, o: doc, fromMigrate: true}
		if _, err := b.insertOne(to, &e); err != nil {
			return err
		}
	}
	return nil
}

// TemporaryName names a collection as the server does: tmp, five letters or digits,
// and what it is for. The letters come from the collection's UUID, so that the
// same seed gives the same name.
func TemporaryName(db string, id oplog.UUID, purpose string) oplog.Namespace {
	const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	var word [5]byte
	for i := range word {
		word[i] = letters[int(id[i]^id[len(id)-1-i])%len(letters)]
	}
	return oplog.NewNamespace(db, "tmp"+string(word[:])+"."+purpose)
}

// without returns a document without a field. It is false if it has none.
func without(doc bson.Raw, name string) (bson.Raw, bool) {
	found := false
	start, dst := bsoncore.AppendDocumentStart(nil)
	it := rawbson.NewIter(doc)
	for it.Next() {
		if it.Is(name) {
			found = true
			continue
		}
		dst = bsoncore.AppendValueElement(dst, it.Name(), bsoncore.Value{Type: bsoncore.Type(it.Type), Data: it.Value})
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst, found
}
