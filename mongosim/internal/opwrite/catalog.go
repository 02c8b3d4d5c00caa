package opwrite

import (
	"bytes"
	"errors"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// commands is the namespace that commands on a database are logged under.
func commands(ns oplog.Namespace) oplog.Namespace { return oplog.NewNamespace(ns.DB(), "$cmd") }

// Create makes a collection; see Ops.
func (b *Batch) Create(ns oplog.Namespace, options, idIndex bson.Raw) (*storage.Collection, error) {
	return b.createAs(b.p.cfg.NewUUID(), ns, options, idIndex)
}

func (b *Batch) createAs(id oplog.UUID, ns oplog.Namespace, options, idIndex bson.Raw) (*storage.Collection, error) {
	options, idIndex = creation(options, idIndex)
	e := entry{op: "c", ns: commands(ns), ui: id, o: createCommand(ns, options, idIndex)}
	err := b.write(&e, func(u *storage.Unit) error {
		if err := u.CheckCase(ns.DB()); err != nil {
			return err
		}
		return u.Create(ns, id, options, idIndex)
	})
	if err != nil {
		return nil, err
	}
	return find(b.View(), id)
}

func find(v storage.View, id oplog.UUID) (*storage.Collection, error) {
	if coll, ok := v.ByUUID(id); ok {
		return coll, nil
	}
	return nil, servererr.New(servererr.NamespaceNotFound, "collection %s is not there", id)
}

// creation copies the options of a collection, and completes the specification of
// its index on _id.
func creation(options, idIndex bson.Raw) (ownOptions, ownIndex bson.Raw) {
	if options = clone(options); len(options) == 0 {
		options = bson.Raw{rawbson.MinSize, 0, 0, 0, 0}
	}
	if idIndex != nil {
		return options, clone(idIndex)
	}
	if e, ok := rawbson.Lookup(options, "clusteredIndex"); ok {
		if on, isBool := e.Bool(); !isBool || on {
			return options, nil
		}
	}
	if e, ok := rawbson.Lookup(options, "autoIndexId"); ok {
		if on, isBool := e.Bool(); isBool && !on {
			return options, nil
		}
	}
	var collation bson.Raw
	if e, ok := rawbson.Lookup(options, "collation"); ok {
		collation, _ = e.Document()
	}
	return options, storage.IDIndex(2, collation)
}

func createCommand(ns oplog.Namespace, options, idIndex bson.Raw) bson.Raw {
	start, o := bsoncore.AppendDocumentStart(nil)
	o = bsoncore.AppendStringElement(o, "create", ns.Collection())
	o = append(o, options[4:len(options)-1]...)
	if idIndex != nil {
		o = bsoncore.AppendDocumentElement(o, "idIndex", bsoncore.Document(idIndex))
	}
	o, _ = bsoncore.AppendDocumentEnd(o, start)
	return o
}

// needCollection makes one of the collections that members keep for themselves.
func (b *Batch) needCollection(ns oplog.Namespace) error {
	if _, ok := b.View().Collection(ns); ok {
		return nil
	}
	_, err := b.Create(ns, nil, nil)
	return err
}

// StepUp writes what a new primary writes after its note "new primary": it
// creates the collections that members keep for themselves, ends the
// transactions that a former primary has logged only in part, and drops
// temporary collections.
func (b *Batch) StepUp() error {
	for _, ns := range []oplog.Namespace{TransactionsNS, IndexBuildsNS} {
		if err := b.needCollection(ns); err != nil {
			return err
		}
	}
	if b.p.format.modern {
		if err := b.needCollection(ImagesNS); err != nil {
			return err
		}
	}
	var inProgress []Session
	var starts []oplog.OpTime
	if coll, ok := b.View().Collection(TransactionsNS); ok {
		for found := range coll.ByID(storage.Bound{}, storage.Bound{}, false) {
			r, err := parseRecord(found.Doc)
			if err != nil {
				return err
			}
			if r.State == StateInProgress {
				id, _ := rawbson.Lookup(found.Doc, "_id")
				lsid, _ := id.Document()
				inProgress = append(inProgress, Session{LSID: lsid, TxnNumber: r.TxnNumber})
				starts = append(starts, r.LastWrite)
			}
		}
	}
	for i := range inProgress {
		if _, err := b.endTransaction(&inProgress[i], abortCommand(), starts[i], StateAborted, nil); err != nil {
			return err
		}
	}
	for _, coll := range b.View().Collections("") {
		if e, ok := rawbson.Lookup(coll.Options, "temp"); ok && coll.NS.DB() != "local" {
			if temp, _ := e.Bool(); temp {
				if err := b.Drop(coll); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Drop removes a collection. Its index builds are aborted first (drop_collection.cpp).
func (b *Batch) Drop(coll *storage.Collection) error {
	for _, build := range Builds(coll) {
		if err := b.AbortBuild(coll, build, "dropCollection command"); err != nil {
			return err
		}
	}
	start, o := bsoncore.AppendDocumentStart(nil)
	o = bsoncore.AppendStringElement(o, "drop", coll.NS.Collection())
	o, _ = bsoncore.AppendDocumentEnd(o, start)
	e := entry{op: "c", ns: commands(coll.NS), ui: coll.UUID, o: o, o2: numRecords(coll)}
	return b.write(&e, func(u *storage.Unit) error { return u.Drop(coll.UUID) })
}

func numRecords(coll *storage.Collection) bson.Raw {
	start, doc := bsoncore.AppendDocumentStart(nil)
	doc = appendNumber(doc, "numRecords", int64(coll.Len()))
	doc, _ = bsoncore.AppendDocumentEnd(doc, start)
	return doc
}

// appendNumber appends a number in the smaller type if it fits, as the server does.
func appendNumber(dst []byte, name string, n int64) []byte {
	if int64(int32(n)) == n {
		return bsoncore.AppendInt32Element(dst, name, int32(n))
	}
	return bsoncore.AppendInt64Element(dst, name, n)
}

// DropDatabase drops every collection of a database, by UUID as the server does,
// and logs dropDatabase.
func (b *Batch) DropDatabase(db string) error {
	colls := slices.Clone(b.View().Collections(db))
	slices.SortFunc(colls, func(x, y *storage.Collection) int { return bytes.Compare(x.UUID[:], y.UUID[:]) })
	for _, coll := range colls {
		if err := b.Drop(coll); err != nil {
			return err
		}
	}
	start, o := bsoncore.AppendDocumentStart(nil)
	o = bsoncore.AppendInt32Element(o, "dropDatabase", 1)
	o, _ = bsoncore.AppendDocumentEnd(o, start)
	return b.write(&entry{op: "c", ns: oplog.NewNamespace(db, "$cmd"), o: o}, func(u *storage.Unit) error {
		u.CloseDatabase(db)
		return nil
	})
}

// CollMod changes options and at most one index. o is the command as logged (its
// index named by name), o2 the old state; both without the envelope. Options nil
// leaves them as they are, index "" all indexes.
func (b *Batch) CollMod(coll *storage.Collection, options bson.Raw, index string, spec bson.Raw, o, o2 bson.Raw) error {
	e := entry{op: "c", ns: commands(coll.NS), ui: coll.UUID, o: o, o2: o2}
	return b.write(&e, func(u *storage.Unit) error {
		var err error
		if options != nil {
			err = u.SetOptions(coll.UUID, clone(options))
		}
		if index != "" && spec != nil {
			err = errors.Join(err, u.SetIndex(coll.UUID, index, clone(spec)))
		}
		return err
	})
}

// EmptyCapped truncates.
func (b *Batch) EmptyCapped(coll *storage.Collection) error {
	start, o := bsoncore.AppendDocumentStart(nil)
	o = bsoncore.AppendStringElement(o, "emptycapped", coll.NS.Collection())
	o, _ = bsoncore.AppendDocumentEnd(o, start)
	e := entry{op: "c", ns: commands(coll.NS), ui: coll.UUID, o: o}
	return b.write(&e, func(u *storage.Unit) error { return u.Truncate(coll.UUID) })
}
