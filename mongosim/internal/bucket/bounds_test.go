package bucket

import (
	"bytes"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog/update"
)

// genValue makes values of mixed types, nested up to a depth.
func genValue(depth int) *rapid.Generator[any] {
	leaves := []*rapid.Generator[any]{
		rapid.Map(rapid.Int32Range(-3, 3), func(n int32) any { return n }),
		rapid.Map(rapid.Float64Range(-3, 3), func(f float64) any { return f }),
		rapid.Map(rapid.StringMatching("[ab]{0,2}"), func(s string) any { return s }),
		rapid.Just[any](nil),
	}
	if depth == 0 {
		return rapid.OneOf(leaves...)
	}
	inner := genValue(depth - 1)
	return rapid.OneOf(append(leaves,
		rapid.Map(genDocument(inner), func(d bson.D) any { return d }),
		rapid.Map(rapid.SliceOfN(inner, 0, 3), func(l []any) any { return bson.A(l) }))...)
}

func genDocument(value *rapid.Generator[any]) *rapid.Generator[bson.D] {
	return rapid.Custom(func(t *rapid.T) bson.D {
		d := bson.D{}
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 0, 4, rapid.ID).Draw(t, "names") {
			d = append(d, bson.E{Key: name, Value: value.Draw(t, name)})
		}
		return d
	})
}

// TestBounds checks for any measurements that the differences, applied one after
// the other, give the bounds as a whole, and that no scalar lies outside of them.
func TestBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := newBounds()
		var sides [2]bson.Raw
		for i, d := range rapid.SliceOfN(genDocument(genValue(2)), 1, 6).Draw(t, "documents") {
			doc, err := bson.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			b.add(doc, "", nil)
			for s := range sides {
				whole := b.document(side(s))
				if i == 0 {
					sides[s] = whole
					continue
				}
				if diff, found := b.changes(side(s)); found {
					if sides[s], err = update.ApplyDelta(sides[s], diff); err != nil {
						t.Fatalf("%s: %v", diff, err)
					}
				}
				// A delta puts new fields at the end.
				got := Normalized(&rawbson.Elem{Type: bson.TypeEmbeddedDocument, Value: sides[s]})
				want := Normalized(&rawbson.Elem{Type: bson.TypeEmbeddedDocument, Value: whole})
				if !bytes.Equal(got.Value, want.Value) {
					t.Fatalf("side %d: differences lead to %s, want %s", s, sides[s], whole)
				}
			}
			b.root.settle()
			elems, err := bson.Raw(doc).Elements()
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range elems {
				low, high := sides[lowest].Lookup(e.Key()), sides[highest].Lookup(e.Key())
				if e.Value().Type == bson.TypeEmbeddedDocument || e.Value().Type == bson.TypeArray {
					continue
				}
				if bsonorder.Compare(low, e.Value(), nil) > 0 || bsonorder.Compare(high, e.Value(), nil) < 0 {
					t.Fatalf("%s is not between %s and %s", e.Value(), low, high)
				}
			}
		}
	})
}
