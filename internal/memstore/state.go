package memstore

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// The types of what listCollections shows.
const (
	TypeCollection = "collection"
	TypeView       = "view"
	TypeTimeseries = "timeseries"
)

// State is what a server holds, to be compared with what another does.
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
	// Capped tells whether the order of the documents matters.
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
			documents = c.Natural()
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
			if err := c.checkID(id.Raw()); err != nil {
				return nil, fmt.Errorf("load document %d of %s: %w", n, shown.NS, err)
			}
			c.put(doc)
		}
		s.add(c)
	}
	return s, nil
}

// Hash returns a hash of all that Diff compares.
func (s State) Hash() [sha256.Size]byte {
	h := sha256.New()
	put := func(b []byte) {
		var size [8]byte
		binary.LittleEndian.PutUint64(size[:], uint64(len(b)))
		h.Write(size[:])
		h.Write(b)
	}
	for _, c := range s.Collections {
		put([]byte(c.NS))
		put([]byte(c.Type))
		put(c.Options)
		put(binary.LittleEndian.AppendUint64(nil, uint64(len(c.Indexes))))
		byName := indexesByName(c.Indexes)
		for _, name := range slices.Sorted(maps.Keys(byName)) {
			put(byName[name])
		}
		put(binary.LittleEndian.AppendUint64(nil, uint64(len(c.Documents))))
		for _, doc := range c.Documents {
			put(doc)
		}
	}
	return [sha256.Size]byte(h.Sum(nil))
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
			c.Documents[n] = sortFields(doc, bson.TypeEmbeddedDocument, 1)
		}
	}
	return sorted
}

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

// MaxDifferences is how many differences Diff gives before it stops.
const MaxDifferences = 20

// Diff says how got differs from want, one difference a string: which
// collection, which document or property, and both sides in extended JSON. UUIDs
// are not compared, nor is the order of the indexes, in which versions of the
// server differ. It is empty where the states are the same, and ends after
// MaxDifferences.
func Diff(want, got State) []string {
	var d differences
	d.merge(want.Collections, got.Collections)
	return d.found
}

type differences struct{ found []string }

func (d *differences) full() bool { return len(d.found) >= MaxDifferences }

func (d *differences) add(format string, args ...any) {
	if !d.full() {
		d.found = append(d.found, fmt.Sprintf(format, args...))
	}
}

func (d *differences) merge(want, got []CollectionState) {
	for len(want) > 0 || len(got) > 0 {
		switch {
		case len(got) == 0 || len(want) > 0 && want[0].NS < got[0].NS:
			d.add("%s: missing, want a %s", want[0].NS, want[0].Type)
			want = want[1:]
		case len(want) == 0 || got[0].NS < want[0].NS:
			d.add("%s: there is a %s that should not be there", got[0].NS, got[0].Type)
			got = got[1:]
		default:
			d.collection(&want[0], &got[0])
			want, got = want[1:], got[1:]
		}
	}
}

func (d *differences) collection(want, got *CollectionState) {
	if want.Type != got.Type {
		d.add("%s: type %s, want %s", want.NS, got.Type, want.Type)
	}
	if !bytes.Equal(want.Options, got.Options) {
		d.add("%s: options %s, want %s", want.NS, show(got.Options), show(want.Options))
	}
	d.indexes(want, got)
	if want.Capped {
		d.natural(want, got)
	} else {
		d.byID(want, got)
	}
}

func (d *differences) indexes(want, got *CollectionState) {
	rest := indexesByName(got.Indexes)
	for _, spec := range want.Indexes {
		name := indexName(spec)
		other, ok := rest[name]
		delete(rest, name)
		switch {
		case !ok:
			d.add("%s: index %s: missing, want %s", want.NS, name, show(spec))
		case !bytes.Equal(spec, other):
			d.add("%s: index %s: %s, want %s", want.NS, name, show(other), show(spec))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rest)) {
		d.add("%s: index %s: %s, want none", want.NS, name, show(rest[name]))
	}
}

func indexesByName(specs []bson.Raw) map[string]bson.Raw {
	byName := make(map[string]bson.Raw, len(specs))
	for _, spec := range specs {
		byName[indexName(spec)] = spec
	}
	return byName
}

func indexName(spec bson.Raw) string {
	e, _ := rawbson.Lookup(spec, "name")
	name, _ := e.Text()
	return name
}

func (d *differences) natural(want, got *CollectionState) {
	for i := range max(len(want.Documents), len(got.Documents)) {
		switch {
		case d.full():
			return
		case i >= len(want.Documents):
			d.add("%s: document %d in natural order: %s, want none", want.NS, i, show(got.Documents[i]))
		case i >= len(got.Documents):
			d.add("%s: document %d in natural order: none, want %s", want.NS, i, show(want.Documents[i]))
		case !bytes.Equal(want.Documents[i], got.Documents[i]):
			d.add("%s: document %d in natural order: %s, want %s", want.NS, i, show(got.Documents[i]), show(want.Documents[i]))
		}
	}
}

func (d *differences) byID(want, got *CollectionState) {
	if slices.EqualFunc(want.Documents, got.Documents, func(a, b bson.Raw) bool { return bytes.Equal(a, b) }) {
		return
	}
	// Sorted anew: how text in _ids sorts may differ from server to server.
	compare := func(a, b bson.Raw) int { return bsonorder.Compare(idOf(a), idOf(b), nil) }
	w, g := slices.SortedStableFunc(slices.Values(want.Documents), compare), slices.SortedStableFunc(slices.Values(got.Documents), compare)
	for (len(w) > 0 || len(g) > 0) && !d.full() {
		c := 0
		switch {
		case len(g) == 0:
			c = -1
		case len(w) == 0:
			c = 1
		default:
			c = compare(w[0], g[0])
		}
		switch {
		case c < 0:
			d.add("%s: _id %s: missing, want %s", want.NS, idOf(w[0]), show(w[0]))
			w = w[1:]
		case c > 0:
			d.add("%s: _id %s: %s, want none", want.NS, idOf(g[0]), show(g[0]))
			g = g[1:]
		default:
			if !bytes.Equal(w[0], g[0]) {
				d.add("%s: _id %s: %s, want %s", want.NS, idOf(w[0]), show(g[0]), show(w[0]))
			}
			w, g = w[1:], g[1:]
		}
	}
}

func idOf(doc bson.Raw) bson.RawValue {
	e, _ := rawbson.Lookup(doc, "_id")
	return e.Raw()
}

// show returns a document as extended JSON that fits a line.
func show(doc bson.Raw) string {
	const long = 300
	text := doc.String()
	if text == "" {
		text = hex.EncodeToString(doc)
	}
	if len(text) > long {
		text = fmt.Sprintf("%s... (%d bytes of BSON)", text[:long], len(doc))
	}
	return text
}
