package storage

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// Index is one index of a collection, ready or being built. It is a constraint,
// never a way to find documents.
type Index struct {
	Name string
	// Spec is the whole specification as listIndexes shows it.
	Spec bson.Raw
	// Building is true until the index is committed; BuildUUID is its build.
	Building  bool
	BuildUUID oplog.UUID
}

// Meta is the catalog's record of a collection. It is immutable.
type Meta struct {
	NS   oplog.Namespace
	UUID oplog.UUID
	// Options as listCollections shows them, without uuid; an empty document if none.
	Options bson.Raw
	// IDIndex is the specification of the index on _id; nil if there is none
	// (autoIndexId false, clustered collections).
	IDIndex bson.Raw
	// Indexes are all indexes, that on _id first, then in order of creation.
	Indexes []Index
	// Capped collections: CappedBytes > 0; CappedDocs is 0 if not limited.
	CappedBytes, CappedDocs int64
	// Collator is the default collation, nil for simple.
	Collator *bsonorder.Collator
}

// tableMeta is a Meta with derived values. It is immutable, except that
// constraints keep track of their keys.
type tableMeta struct {
	Meta
	// clustered collections have the order of _id as their natural order.
	clustered bool
	// constraints has one for each of Indexes, nil for indexes without constraints.
	constraints []*constraint
}

// smallestCap is the size of a capped collection that does not state any.
const smallestCap = 4096

func newMeta(ns oplog.Namespace, id oplog.UUID, options, idIndex bson.Raw) (*tableMeta, error) {
	m := &tableMeta{Meta: Meta{NS: ns.Clone(), UUID: id}}
	if err := m.setOptions(options); err != nil {
		return nil, err
	}
	if len(idIndex) > 0 {
		m.IDIndex = slices.Clone(idIndex)
		m.Indexes = []Index{{Name: indexName(idIndex), Spec: m.IDIndex}}
		m.constraints = []*constraint{nil}
	}
	return m, nil
}

// setOptions reads the options; m must not be in use yet.
func (m *tableMeta) setOptions(options bson.Raw) error {
	if len(options) == 0 {
		options = bson.Raw(bsoncore.BuildDocument(nil, nil))
	}
	m.Options = slices.Clone(options)
	m.CappedBytes, m.CappedDocs, m.clustered = 0, 0, false
	var size, most int64
	var capped bool
	it := rawbson.NewIter(m.Options)
	for it.Next() {
		switch it.Name() {
		case "capped":
			capped = it.Truth()
		case "size":
			size, _ = it.Int64()
		case "max":
			most, _ = it.Int64()
		case "clusteredIndex":
			m.clustered = it.Truth()
		case "collation":
			spec, _ := it.Document()
			coll, err := bsonorder.NewCollator(spec)
			if err != nil {
				return servererr.New(servererr.NotImplemented, "collection %s: %s", m.NS, err)
			}
			m.Collator = coll
		}
	}
	if err := it.Err(); err != nil {
		return servererr.New(servererr.InvalidBSON, "options of %s: %s", m.NS, err)
	}
	if capped {
		m.CappedBytes, m.CappedDocs = size, max(most, 0)
		if size <= 0 {
			m.CappedBytes = smallestCap
		}
	}
	return nil
}

func indexName(spec bson.Raw) string {
	name, _ := rawbson.Lookup(spec, "name")
	text, _ := name.Text()
	return string([]byte(text))
}

// clone returns a copy whose indexes can be changed.
func (m *tableMeta) clone() *tableMeta {
	c := *m
	c.Indexes = slices.Clone(m.Indexes)
	c.constraints = slices.Clone(m.constraints)
	return &c
}

func (m *tableMeta) find(index string) int {
	return slices.IndexFunc(m.Indexes, func(i Index) bool { return i.Name == index })
}

// active yields the constraints that hold: those of indexes that are ready.
func (m *tableMeta) active(yield func(*constraint) bool) {
	for i, c := range m.constraints {
		if c != nil && !m.Indexes[i].Building && !yield(c) {
			return
		}
	}
}

// file enters t under its UUID and all names that it has at any readable time.
func (s *Store) file(t *table) {
	s.uuids[t.uuid] = append(slices.Clone(s.uuids[t.uuid]), t)
	for v := t.meta; v != nil; v = v.prev {
		if !v.gone {
			s.refile(t, v.val.NS)
		}
	}
}

// refile makes it so that t is found under a name if it has it at any time.
func (s *Store) refile(t *table, ns oplog.Namespace) {
	named := false
	for v := t.meta; v != nil; v = v.prev {
		named = named || !v.gone && v.val.NS == ns
	}
	// The lists are not shared, but views may be iterating over them.
	tables, _ := s.names.Get(string(ns))
	at := slices.Index(tables, t)
	switch {
	case named && at < 0:
		s.names.Set(string(ns), append(slices.Clone(tables), t))
	case named || at < 0:
	case len(tables) == 1:
		s.names.Delete(string(ns))
	default:
		s.names.Set(string(ns), slices.Delete(slices.Clone(tables), at, at+1))
	}
}

// discard removes a table that has no version left but its end.
func (s *Store) discard(t *table) {
	left := slices.DeleteFunc(slices.Clone(s.uuids[t.uuid]), func(o *table) bool { return o == t })
	if len(left) == 0 {
		delete(s.uuids, t.uuid)
		return
	}
	s.uuids[t.uuid] = left
}
