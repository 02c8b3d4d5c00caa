package memstore

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// maxDifferences is how many differences Diff gives before it stops.
const maxDifferences = 20

// Diff says how got differs from want, one difference a string: which
// collection, which document or property, and both sides in extended JSON. It is
// empty where the states are the same, and ends after MaxDifferences.
//
// Documents are compared byte for byte. UUIDs are not compared. In the catalog,
// the order of the indexes does not matter, nor the order of the fields of an
// index, of the options and of their timeseries, in which versions of the server
// differ; numbers there are compared by value, and an index's booleans by truth. So does what the
// index of a clustered collection shows of the collection's options, which is not compared twice.
// The contents of any other option are compared byte for byte.
func Diff(want, got State) []string {
	var d differences
	d.merge(want.Collections, got.Collections)
	return d.found
}

type differences struct{ found []string }

func (d *differences) full() bool { return len(d.found) >= maxDifferences }

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
	for _, what := range fieldDifferences(want.Options, got.Options, sameOption) {
		d.add("%s: option %s", want.NS, what)
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
		if !ok {
			d.add("%s: index %s: missing, want %s", want.NS, name, show(spec))
			continue
		}
		for _, what := range fieldDifferences(ownFields(spec), ownFields(other), sameInIndex) {
			d.add("%s: index %s: %s", want.NS, name, what)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rest)) {
		d.add("%s: index %s: %s, want none", want.NS, name, show(rest[name]))
	}
}

// ownFields returns an index without options of its collection: that of a clustered collection shows them,
// in newer versions only. They are compared as options.
func ownFields(spec bson.Raw) bson.Raw {
	if e, ok := rawbson.Lookup(spec, "clustered"); !ok || !truth(e.Raw()) {
		return spec
	}
	return document(unset(unset(split(spec), "expireAfterSeconds"), "collation")...)
}

// fieldDifferences says how the fields of got differ from those of want, in
// whatever order they are.
func fieldDifferences(want, got bson.Raw, same func(name string, a, b bson.RawValue) bool) []string {
	if bytes.Equal(want, got) {
		return nil
	}
	var found []string
	rest := split(got)
	for _, f := range split(want) {
		i := slices.IndexFunc(rest, func(other field) bool { return other.name == f.name })
		if i < 0 {
			found = append(found, fmt.Sprintf("%s: missing, want %s", f.name, showValue(f.value)))
			continue
		}
		if !same(f.name, f.value, rest[i].value) {
			found = append(found, fmt.Sprintf("%s: %s, want %s", f.name, showValue(rest[i].value), showValue(f.value)))
		}
		rest = slices.Delete(rest, i, i+1)
	}
	for _, f := range rest {
		found = append(found, fmt.Sprintf("%s: %s, want none", f.name, showValue(f.value)))
	}
	return found
}

func sameOption(name string, a, b bson.RawValue) bool {
	if name == "timeseries" && a.Type == bson.TypeEmbeddedDocument && b.Type == a.Type {
		return len(fieldDifferences(a.Value, b.Value, func(_ string, a, b bson.RawValue) bool { return sameNumber(a, b) })) == 0
	}
	return sameNumber(a, b)
}

func sameInIndex(name string, a, b bson.RawValue) bool {
	if at := indexPlace(name); at < len(indexNames) && indexNames[at].as == bson.TypeBoolean {
		return truth(a) == truth(b)
	}
	return sameNumber(a, b)
}

// sameNumber reports whether two values are the same bytes, or the same number in
// two types.
func sameNumber(a, b bson.RawValue) bool {
	if a.IsNumber() && b.IsNumber() {
		return bsonorder.Compare(a, b, nil) == 0
	}
	return a.Type == b.Type && bytes.Equal(a.Value, b.Value)
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
	// Sorted again: how text in _ids sorts may differ from server to server.
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

const longest = 300 // of a value that is shown, in bytes

// show returns a document as extended JSON that fits a line.
func show(doc bson.Raw) string {
	text := doc.String()
	if text == "" {
		text = hex.EncodeToString(doc)
	}
	return shorten(text, len(doc))
}

func showValue(v bson.RawValue) string { return shorten(v.String(), len(v.Value)) }

func shorten(text string, size int) string {
	if len(text) <= longest {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes of BSON)", text[:longest], size)
}
