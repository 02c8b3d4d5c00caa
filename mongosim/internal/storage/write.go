package storage

import (
	"bytes"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// writable checks that the unit may write.
func (u *Unit) writable() error {
	switch {
	case u.ended || u.prepared != 0:
		return ErrEnded
	case u.s.opts.Full != nil && u.s.opts.Full():
		return servererr.New(servererr.OutOfDiskSpace, "no space left on device")
	}
	return nil
}

// table returns the collection as the unit sees it, if the unit may change it.
func (u *Unit) table(id oplog.UUID) (*table, *tableMeta, error) {
	if err := u.writable(); err != nil {
		return nil, nil, err
	}
	tables := u.s.uuids[id]
	for _, t := range tables {
		if m := seen(t.meta, &u.view); m != nil {
			if conflict(t.meta, u) {
				return nil, nil, ErrWriteConflict
			}
			return t, m.val, nil
		}
	}
	for _, t := range tables {
		if conflict(t.meta, u) { // it is there, only later
			return nil, nil, ErrWriteConflict
		}
	}
	return nil, nil, servererr.New(servererr.NamespaceNotFound, "collection %s does not exist", id)
}

// Insert stores a copy of a document that has an _id as any of its fields. A
// collection without an index on _id takes documents without one too.
func (u *Unit) Insert(coll oplog.UUID, doc bson.Raw) (RecordID, error) {
	t, m, err := u.table(coll)
	if err != nil {
		return 0, err
	}
	var buf [64]byte
	key := idKey(buf[:0], doc, m.Collator)
	if m.IDIndex != nil || m.clustered {
		if len(key) == 0 {
			return 0, servererr.New(servererr.BadValue, "insert into %s: the document has no _id", m.NS)
		}
		if err := u.checkID(t, m, key, doc); err != nil {
			return 0, err
		}
	}
	changes, err := u.plan(m, nil, nil, doc)
	if err != nil {
		return 0, err
	}
	doc = bytes.Clone(doc)
	r := t.add(string(key))
	v, _ := put(&r.head, u, doc, false)
	u.docs = append(u.docs, docChange{t, r, v})
	u.resize(t, 1, len(doc))
	u.apply(changes, t, r)
	return r.id, nil
}

// checkID refuses an _id in use, as an index on _id does: it depends on inserts
// and deletes of documents, not on updates.
func (u *Unit) checkID(t *table, m *tableMeta, key []byte, doc bson.Raw) error {
	r, known := t.byID.Get(rawbson.View(key))
	if !known {
		return nil
	}
	head := r.head
	if head.unit != nil && head.unit != u {
		if head.gone || head.prev == nil {
			return ErrWriteConflict
		}
		head = head.prev // another unit changes the document: the _id stays taken
	}
	switch {
	case head.gone && conflict(head, u):
		return ErrWriteConflict
	case head.gone:
		return nil
	case seen(head, &u.view) == nil: // inserted after the snapshot
		return ErrWriteConflict
	}
	id, _ := rawbson.Lookup(doc, "_id")
	name, pattern, collation := "", idPattern, bson.Raw(nil)
	if m.IDIndex != nil {
		name = indexName(m.IDIndex)
		if p, ok := rawbson.Lookup(m.IDIndex, "key"); ok {
			pattern, _ = p.Document()
		}
	}
	if c, ok := rawbson.Lookup(m.Options, "collation"); ok && m.Collator != nil {
		collation, _ = c.Document()
	}
	return duplicate(m.NS, name, pattern, collation, []bson.RawValue{id.Raw()}, m.Collator)
}

// record returns the document at a place, if the unit may change it.
func (u *Unit) record(t *table, m *tableMeta, at RecordID) (*record, *version[bson.Raw], error) {
	r := t.places.get(at)
	if r == nil {
		return nil, nil, fmt.Errorf("%w %d of %s", ErrNoRecord, at, m.NS)
	}
	if conflict(r.head, u) {
		return nil, nil, ErrWriteConflict
	}
	v := seen(r.head, &u.view)
	if v == nil {
		return nil, nil, fmt.Errorf("%w %d of %s", ErrNoRecord, at, m.NS)
	}
	return r, v, nil
}

// Update replaces the document at a place by a copy of doc; the _id must stay
// equal, else it fails with ImmutableField.
func (u *Unit) Update(coll oplog.UUID, at RecordID, doc bson.Raw) error {
	t, m, err := u.table(coll)
	if err != nil {
		return err
	}
	r, old, err := u.record(t, m, at)
	if err != nil {
		return err
	}
	var buf [64]byte
	if string(idKey(buf[:0], doc, m.Collator)) != r.key {
		return servererr.New(servererr.ImmutableField, "update of %s: the (immutable) field '_id' was found to have been altered", m.NS)
	}
	changes, err := u.plan(m, r, old.val, doc)
	if err != nil {
		return err
	}
	doc = bytes.Clone(doc)
	u.resize(t, 0, len(doc)-len(old.val))
	if v, isNew := put(&r.head, u, doc, false); isNew {
		u.docs = append(u.docs, docChange{t, r, v})
	}
	u.apply(changes, t, r)
	return nil
}

// Delete removes the document at a place.
func (u *Unit) Delete(coll oplog.UUID, at RecordID) error {
	t, m, err := u.table(coll)
	if err != nil {
		return err
	}
	r, old, err := u.record(t, m, at)
	if err != nil {
		return err
	}
	u.remove(t, m, r, old)
	return nil
}

func (u *Unit) remove(t *table, m *tableMeta, r *record, old *version[bson.Raw]) {
	changes, err := u.plan(m, r, old.val, nil)
	if err != nil {
		panic("storage: invariant: nothing refuses that keys are freed: " + err.Error())
	}
	u.resize(t, -1, -len(old.val))
	if v, isNew := put(&r.head, u, nil, true); isNew {
		u.docs = append(u.docs, docChange{t, r, v})
	}
	u.apply(changes, t, r)
}

// Truncate removes all documents (emptycapped).
func (u *Unit) Truncate(coll oplog.UUID) error {
	t, m, err := u.exclusive(coll)
	if err != nil {
		return err
	}
	for i := range t.places.slots {
		r := t.places.slots[i].rec
		if r == nil {
			continue
		}
		if v := seen(r.head, &u.view); v != nil {
			u.remove(t, m, r, v)
		}
	}
	return nil
}
