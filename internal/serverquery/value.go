package serverquery

import (
	"bytes"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// val is one value of a document, a view. The zero val is the missing one.
type val struct {
	t bson.Type
	b []byte
}

func valueOf(e *rawbson.Elem) val { return val{e.Type, e.Value} }

func fromRaw(v bson.RawValue) val { return val{v.Type, v.Value} }

func (v val) raw() bson.RawValue { return bson.RawValue{Type: v.t, Value: v.b} }

func (v val) elem() rawbson.Elem { return rawbson.Elem{Type: v.t, Value: v.b} }

func (v val) missing() bool { return v.t == 0 }

func (v val) nullish() bool {
	return v.t == 0 || v.t == bson.TypeNull || v.t == bson.TypeUndefined
}

func (v val) number() bool {
	switch v.t {
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		return true
	default:
		return false
	}
}

// double reads the eight bytes of a double.
func (v val) double() float64 { return math.Float64frombits(uint64(v.int64())) }

// int64 reads the eight bytes of a value that has so many.
func (v val) int64() int64 {
	e := rawbson.Elem{Type: bson.TypeInt64, Value: v.b}
	n, _ := e.Int64()
	return n
}

// whole is a number that is exactly an int64, whatever its type.
func (v val) whole() (int64, bool) {
	switch v.t {
	case bson.TypeInt32, bson.TypeInt64:
		e := v.elem()
		return e.Int64()
	case bson.TypeDouble:
		f := v.double()
		if f >= -(1<<63) && f < 1<<63 && f == math.Trunc(f) {
			return int64(f), true
		}
	case bson.TypeDecimal128:
		if r, finite := bsonorder.Finite(v.raw()); finite && r.IsInt() && r.Num().IsInt64() {
			return r.Num().Int64(), true
		}
	}
	return 0, false
}

// truth is how the server's options read a value: as a condition does.
func (v val) truth() bool {
	switch v.t {
	case 0, bson.TypeNull, bson.TypeUndefined:
		return false
	case bson.TypeBoolean:
		return v.b[0] != 0
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		n, ok := v.whole()
		return !ok || n != 0
	default:
		return true
	}
}

// text is the text of a string or symbol.
func (v val) text() (string, bool) {
	if v.t != bson.TypeString && v.t != bson.TypeSymbol {
		return "", false
	}
	return rawbson.View(v.b[4 : len(v.b)-1]), true
}

// rank is the type bracket. A missing value shares one with undefined.
func (v val) rank() int {
	if v.t == 0 {
		return bsonorder.Rank(bson.TypeUndefined)
	}
	return bsonorder.Rank(v.t)
}

// equal is the server's idea of two values being one.
func (v val) equal(o val, coll *bsonorder.Collator) bool {
	if v.t == o.t && bytes.Equal(v.b, o.b) {
		return true
	}
	return v.rank() == o.rank() && compareValues(v, o, coll) == 0
}

// compareValues orders two values, of which a missing one counts as undefined.
func compareValues(a, b val, coll *bsonorder.Collator) int {
	if a.t == 0 {
		a.t = bson.TypeUndefined
	}
	if b.t == 0 {
		b.t = bson.TypeUndefined
	}
	return bsonorder.Compare(a.raw(), b.raw(), coll)
}

func elems(doc []byte) []rawbson.Elem {
	var out []rawbson.Elem
	for it := rawbson.NewIter(doc); it.Next(); {
		out = append(out, it.Elem)
	}
	return out
}

// types are all types, with the number that queries know them by.
var types = []struct {
	t      bson.Type
	number int64
}{
	{bson.TypeDouble, 1},
	{bson.TypeString, 2},
	{bson.TypeEmbeddedDocument, 3},
	{bson.TypeArray, 4},
	{bson.TypeBinary, 5},
	{bson.TypeUndefined, 6},
	{bson.TypeObjectID, 7},
	{bson.TypeBoolean, 8},
	{bson.TypeDateTime, 9},
	{bson.TypeNull, 10},
	{bson.TypeRegex, 11},
	{bson.TypeDBPointer, 12},
	{bson.TypeJavaScript, 13},
	{bson.TypeSymbol, 14},
	{bson.TypeCodeWithScope, 15},
	{bson.TypeInt32, 16},
	{bson.TypeTimestamp, 17},
	{bson.TypeInt64, 18},
	{bson.TypeDecimal128, 19},
	{bson.TypeMinKey, -1},
	{bson.TypeMaxKey, 127},
}
