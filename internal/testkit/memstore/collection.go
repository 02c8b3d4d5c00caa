package memstore

import (
	"iter"
	"math"

	"github.com/tidwall/btree"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// Collection is one collection: its catalog record, and its documents.
type Collection struct {
	ns      oplog.Namespace
	uuid    oplog.UUID
	options bson.Raw
	indexes []index

	// Read from the options.
	capped, clustered     bool
	cappedSize, cappedMax int64
	// collator is how _ids compare. Where collationErr is set it is nil: the
	// collation cannot be followed, and _ids compare by bytes.
	collator     *bsonorder.Collator
	collationErr error

	byID     *btree.BTreeG[*record]
	byRecord *btree.BTreeG[*record]
	lastID   int64 // the highest record id ever given
	bytes    int64 // all documents
}

// record is a document at its place in the natural order. It never changes.
type record struct {
	id  int64
	key bson.RawValue // the _id, a view into doc
	doc bson.Raw
}

func newCollection(ns oplog.Namespace, uuid oplog.UUID, options bson.Raw) *Collection {
	c := &Collection{ns: ns, uuid: uuid}
	c.setOptions(options)
	if spec, ok := rawbson.Lookup(options, "collation"); ok {
		doc, _ := spec.Document()
		c.collator, c.collationErr = bsonorder.NewCollator(doc)
	}
	c.empty()
	return c
}

// empty removes all documents.
func (c *Collection) empty() {
	collator := c.collator
	noLocks := btree.Options{NoLocks: true}
	c.byID = btree.NewBTreeGOptions(func(a, b *record) bool {
		return bsonorder.Compare(a.key, b.key, collator) < 0
	}, noLocks)
	c.byRecord = btree.NewBTreeGOptions(func(a, b *record) bool { return a.id < b.id }, noLocks)
	c.bytes = 0
}

func (c *Collection) clone() *Collection {
	d := *c
	d.indexes = append([]index(nil), c.indexes...)
	d.byID, d.byRecord = c.byID.Copy(), c.byRecord.Copy()
	return &d
}

// setOptions puts new options in effect. The collation never changes.
func (c *Collection) setOptions(options bson.Raw) {
	c.options = options
	c.capped, c.clustered, c.cappedSize, c.cappedMax = false, false, 0, 0
	it := rawbson.NewIter(options)
	for it.Next() {
		switch it.Name() {
		case "capped":
			c.capped = truth(it.Raw())
		case "clusteredIndex":
			c.clustered = truth(it.Raw())
		case "size":
			c.cappedSize, _ = it.Int64()
		case "max":
			c.cappedMax, _ = it.Int64()
		}
	}
	if c.cappedSize == 0 {
		c.cappedSize = math.MaxInt64
	}
	if c.cappedMax == 0 {
		c.cappedMax = math.MaxInt64
	}
}

// NS returns the collection's present name.
func (c *Collection) NS() oplog.Namespace { return c.ns }

// UUID returns the collection's UUID.
func (c *Collection) UUID() oplog.UUID { return c.uuid }

// Options returns the options as listCollections shows them, in the server's
// order, without the UUID.
func (c *Collection) Options() bson.Raw { return c.options }

// Capped reports whether the collection is capped: its natural order matters.
func (c *Collection) Capped() bool { return c.capped }

// Len returns the number of documents.
func (c *Collection) Len() int { return c.byID.Len() }

// Get returns the document whose _id is equal to id.
func (c *Collection) Get(id bson.RawValue) (bson.Raw, bool) {
	if r, ok := c.get(id); ok {
		return r.doc, true
	}
	return nil, false
}

// All yields the documents by _id.
func (c *Collection) All() iter.Seq[bson.Raw] { return documents(c.byID) }

// Natural yields the documents in natural order: as they were inserted, or by
// _id in a clustered collection.
func (c *Collection) natural() iter.Seq[bson.Raw] {
	if c.clustered {
		return documents(c.byID)
	}
	return documents(c.byRecord)
}

func documents(tree *btree.BTreeG[*record]) iter.Seq[bson.Raw] {
	return func(yield func(bson.Raw) bool) {
		tree.Scan(func(r *record) bool { return yield(r.doc) })
	}
}

func (c *Collection) get(id bson.RawValue) (*record, bool) {
	return c.byID.Get(&record{key: id})
}

// put stores a document: at the place of the one with an equal _id, or at the
// end.
func (c *Collection) put(doc bson.Raw) {
	e, _ := rawbson.Lookup(doc, "_id")
	r := &record{key: e.Raw(), doc: doc}
	if old, ok := c.get(r.key); ok {
		r.id = old.id
		c.bytes -= int64(len(old.doc))
	} else {
		c.lastID++
		r.id = c.lastID
	}
	c.byID.Set(r)
	c.byRecord.Set(r)
	c.bytes += int64(len(doc))
}

func (c *Collection) drop(r *record) {
	c.byID.Delete(r)
	c.byRecord.Delete(r)
	c.bytes -= int64(len(r.doc))
}

// trim drops the oldest documents of a capped collection until it is within its
// limits.
func (c *Collection) trim() {
	for c.Len() > 1 && (c.bytes > c.cappedSize || int64(c.Len()) > c.cappedMax) {
		oldest, _ := c.byRecord.Min()
		c.drop(oldest)
	}
}

func hasText(v bson.RawValue) bool {
	switch v.Type {
	case bson.TypeString, bson.TypeSymbol:
		return true
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		it := rawbson.NewIter(v.Value)
		for it.Next() {
			if hasText(it.Raw()) {
				return true
			}
		}
	}
	return false
}

// truth is the server's idea of a true value: anything but false, zero, null
// and nothing.
func truth(v bson.RawValue) bool {
	switch v = convert(v, bson.TypeBoolean); v.Type {
	case bson.TypeBoolean:
		return v.Boolean()
	case bson.TypeNull, bson.TypeUndefined, 0:
		return false
	default:
		return true
	}
}
