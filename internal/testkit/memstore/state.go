package memstore

import (
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// The types of what listCollections shows.
const (
	TypeCollection = "collection"
	TypeView       = "view"
	TypeTimeseries = "timeseries"
)

// State is the data of a server, to be compared with another's.
type State struct {
	// Collections are all collections and views, by name.
	Collections []CollectionState
}

// CollectionState is a collection or view as listCollections and listIndexes
// show it, and its documents.
type CollectionState struct {
	NS   oplog.Namespace
	Type string
	// Options are the options without the UUID, in the server's order.
	Options bson.Raw
	// UUID is zero for a view. It is not compared.
	UUID oplog.UUID
	// Indexes are the ready indexes, in the server's order.
	Indexes []bson.Raw
	// Documents are by _id, or in natural order if Capped.
	Documents []bson.Raw
	// Capped reports whether the order of the documents matters.
	Capped bool
}

// Snapshot returns the store's state. The documents are shared, not copied.
func (s *Store) Snapshot() State {
	var state State
	dbs := map[string]bool{}
	for _, c := range s.Collections() {
		shown := CollectionState{
			NS: c.ns, Type: TypeCollection, Options: c.options, UUID: c.uuid, Indexes: c.Indexes(), Capped: c.capped,
		}
		documents := c.All()
		if c.capped {
			documents = c.natural()
		}
		shown.Documents = slices.AppendSeq(make([]bson.Raw, 0, c.Len()), documents)
		state.Collections = append(state.Collections, shown)
		if db := c.ns.DB(); !dbs[db] {
			dbs[db] = true
			state.Collections = append(state.Collections, s.views(db)...)
		}
	}
	state.sort()
	return state
}

func (s *State) sort() {
	slices.SortStableFunc(s.Collections, func(a, b CollectionState) int { return strings.Compare(string(a.NS), string(b.NS)) })
}

// Load returns a store that holds a state. Views come with the documents of
// their system.views. Of documents with equal _ids the last one stays: a copy
// that was taken while writes went on may have seen both.
func Load(state State, cfg Config) (*Store, error) {
	s := New(cfg)
	for _, shown := range state.Collections {
		if shown.Type != TypeCollection {
			continue
		}
		uuid := shown.UUID
		if uuid.IsZero() {
			uuid = s.newUUID()
		}
		if _, twice := s.byName[shown.NS]; twice {
			return nil, fmt.Errorf("load %s: it is there twice", shown.NS)
		}
		if other, twice := s.byUUID[uuid]; twice {
			return nil, fmt.Errorf("load %s: its UUID %s is that of %s", shown.NS, uuid, other.ns)
		}
		c := newCollection(shown.NS, uuid, shown.Options)
		for _, spec := range shown.Indexes {
			if e, ok := rawbson.Lookup(spec, "clustered"); ok && truth(e.Raw()) {
				continue // comes from the options
			}
			i := newIndex(spec)
			i.spec = spec
			c.indexes = append(c.indexes, i)
		}
		for n, doc := range shown.Documents {
			id, ok := rawbson.Lookup(doc, "_id")
			if !ok {
				return nil, fmt.Errorf("load document %d of %s: it has no _id", n, shown.NS)
			}
			s.noteID(c, id.Raw())
			c.put(doc)
		}
		s.add(c)
	}
	return s, nil
}

// IgnoreFieldOrder returns the state with the fields of all documents sorted by
// name, those of embedded documents too. Updates of the older form ($v: 1) do
// not say where new fields go, so that applying them twice may reorder fields.
func (s State) IgnoreFieldOrder() State {
	sorted := State{slices.Clone(s.Collections)}
	for i := range sorted.Collections {
		c := &sorted.Collections[i]
		c.Documents = slices.Clone(c.Documents)
		for n, doc := range c.Documents {
			c.Documents[n] = SortFields(doc)
		}
	}
	return sorted
}

// SortFields returns a document with its fields, and those of the documents in it,
// sorted by name.
func SortFields(doc bson.Raw) bson.Raw { return sortFields(doc, bson.TypeEmbeddedDocument, 1) }

func sortFields(doc bson.Raw, t bson.Type, depth int) bson.Raw {
	if depth > rawbson.MaxDepth {
		return doc
	}
	fields := split(doc)
	for i := range fields {
		if v := &fields[i].value; v.Type == bson.TypeEmbeddedDocument || v.Type == bson.TypeArray {
			v.Value = sortFields(v.Value, v.Type, depth+1)
		}
	}
	if t == bson.TypeEmbeddedDocument {
		slices.SortStableFunc(fields, func(a, b field) int { return strings.Compare(a.name, b.name) })
	}
	return document(fields...)
}
