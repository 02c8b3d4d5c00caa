package serverupdate

import (
	"cmp"
	"math/big"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
)

// maxCompareDepth bounds recursion on values that only exist between stages.
// What can be stored is nested far less.
const maxCompareDepth = 1000

// rank is the place of a type in the server's order. A missing value counts as
// undefined.
func rank(t bson.Type) int {
	if t == missing {
		t = bson.TypeUndefined
	}
	return bsonorder.Rank(t)
}

// compare orders two values as the server's comparison expressions do under the
// simple collation: -1, 0 or 1.
func (ev *evaluation) compare(a, b value) (int, error) { return ev.compareAt(a, b, 1) }

func (ev *evaluation) compareAt(a, b value, depth int) (int, error) {
	if depth > maxCompareDepth {
		return 0, refuse(codeOverflow, "compare values: nested deeper than %d levels", maxCompareDepth)
	}
	// Values that a pipeline builds may share parts, and so take far longer to
	// walk than to build.
	if err := ev.spend(1); err != nil {
		return 0, err
	}
	if c := cmp.Compare(rank(a.typ), rank(b.typ)); c != 0 {
		return c, nil
	}
	switch a.typ {
	case bson.TypeEmbeddedDocument:
		return ev.compareDocuments(a.doc, b.doc, depth)
	case bson.TypeArray:
		for i := range min(len(a.arr), len(b.arr)) {
			if c, err := ev.compareAt(a.arr[i], b.arr[i], depth+1); c != 0 || err != nil {
				return c, err
			}
		}
		return cmp.Compare(len(a.arr), len(b.arr)), nil
	case missing, bson.TypeUndefined:
		return 0, nil
	default:
		return bsonorder.Compare(
			bson.RawValue{Type: a.typ, Value: a.raw}, bson.RawValue{Type: b.typ, Value: b.raw}, nil), nil
	}
}

func (ev *evaluation) compareDocuments(a, b *document, depth int) (int, error) {
	if a == b {
		return 0, nil
	}
	left, right := a.fields(), b.fields()
	for i := range min(len(left), len(right)) {
		l, r := left[i], right[i]
		if c := cmp.Compare(rank(l.val.typ), rank(r.val.typ)); c != 0 {
			return c, nil
		}
		if c := cmp.Compare(l.name, r.name); c != 0 {
			return c, nil
		}
		if c, err := ev.compareAt(l.val, r.val, depth+1); c != 0 || err != nil {
			return c, err
		}
	}
	return cmp.Compare(len(left), len(right)), nil
}

// rational is a number's exact value, unless it is not finite.
func (v value) rational() (r *big.Rat, finite bool) {
	return bsonorder.Finite(bson.RawValue{Type: v.typ, Value: v.raw})
}
