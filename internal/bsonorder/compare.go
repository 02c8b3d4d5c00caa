package bsonorder

import (
	"bytes"
	"cmp"
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// Compare returns -1, 0 or 1 for a before, equal to or after b in the server's
// order. Types come first, then values. Numbers of all types are compared
// exactly, by value: NaN is equal to itself and smaller than any other, and -0
// is 0. Strings are compared by coll, by their bytes where it is nil. Field
// names always go by their bytes.
func Compare(a, b bson.RawValue, coll *Collator) int {
	return compare(a.Type, a.Value, b.Type, b.Value, coll, 1)
}

// Rank returns the place of a type among the others. Types that share one are
// compared by value.
func Rank(t bson.Type) int {
	switch t {
	case bson.TypeMinKey:
		return -1
	case bson.TypeUndefined:
		return 0
	case bson.TypeNull:
		return 5
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		return 10
	case bson.TypeString, bson.TypeSymbol:
		return 15
	case bson.TypeEmbeddedDocument:
		return 20
	case bson.TypeArray:
		return 25
	case bson.TypeBinary:
		return 30
	case bson.TypeObjectID:
		return 35
	case bson.TypeBoolean:
		return 40
	case bson.TypeDateTime:
		return 45
	case bson.TypeTimestamp:
		return 47
	case bson.TypeRegex:
		return 50
	case bson.TypeDBPointer:
		return 55
	case bson.TypeJavaScript:
		return 60
	case bson.TypeCodeWithScope:
		return 65
	case bson.TypeMaxKey:
		return 127
	default: // not a BSON type: an unvalidated value
		return 128 + int(t)
	}
}

func compare(at bson.Type, a []byte, bt bson.Type, b []byte, coll *Collator, depth int) int {
	if c := cmp.Compare(Rank(at), Rank(bt)); c != 0 {
		return c
	}
	if len(a) < fixedSize(at) || len(b) < fixedSize(bt) {
		return bytes.Compare(a, b)
	}
	switch at {
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		return compareNumbers(at, a, bt, b)
	case bson.TypeString, bson.TypeSymbol:
		return coll.compare(text(a), text(b))
	case bson.TypeEmbeddedDocument:
		return compareFields(a, b, true, coll, depth+1)
	case bson.TypeArray:
		return compareFields(a, b, false, coll, depth+1)
	case bson.TypeBinary:
		// The length comes first: a longer value is greater whatever it holds.
		c := cmp.Compare(binary.LittleEndian.Uint32(a), binary.LittleEndian.Uint32(b))
		return cmp.Or(c, bytes.Compare(a[4:], b[4:]))
	case bson.TypeDateTime:
		return cmp.Compare(int64(binary.LittleEndian.Uint64(a)), int64(binary.LittleEndian.Uint64(b)))
	case bson.TypeTimestamp:
		return cmp.Compare(binary.LittleEndian.Uint64(a), binary.LittleEndian.Uint64(b))
	case bson.TypeDBPointer:
		return cmp.Or(cmp.Compare(len(a), len(b)), bytes.Compare(a, b))
	case bson.TypeJavaScript:
		return bytes.Compare(text(a), text(b))
	case bson.TypeCodeWithScope:
		aCode, aScope := codeAndScope(a)
		bCode, bScope := codeAndScope(b)
		if c := bytes.Compare(aCode, bCode); c != 0 {
			return c
		}
		return compareFields(aScope, bScope, true, nil, depth+1) // the server has no collation here
	default:
		// Object ids, booleans and regular expressions: the bytes are in order,
		// the zero between pattern and options included.
		return bytes.Compare(a, b)
	}
}

// fixedSize returns the number of bytes that the code above requires.
func fixedSize(t bson.Type) int {
	switch t {
	case bson.TypeInt64, bson.TypeDouble, bson.TypeDateTime, bson.TypeTimestamp:
		return 8
	case bson.TypeDecimal128:
		return 16
	case bson.TypeInt32:
		return 4
	case bson.TypeBinary, bson.TypeString, bson.TypeSymbol, bson.TypeJavaScript:
		return 5
	case bson.TypeCodeWithScope:
		return 14
	default:
		return 0
	}
}

// text returns a string's bytes without length and terminator.
func text(v []byte) []byte { return v[4 : len(v)-1] }

// codeAndScope takes a value apart. Without a valid length all of it is code.
func codeAndScope(v []byte) (code, scope []byte) {
	n := uint64(binary.LittleEndian.Uint32(v[4:]))
	if n == 0 || n > uint64(len(v)-8) {
		return v, nil
	}
	return v[8 : 8+n-1], v[8+n:]
}

// compareFields compares documents field by field: type, name, value. A
// document that ends first is smaller.
func compareFields(a, b []byte, names bool, coll *Collator, depth int) int {
	if depth > rawbson.MaxDepth {
		return bytes.Compare(a, b)
	}
	ai, bi := rawbson.NewIter(a), rawbson.NewIter(b)
	for {
		aMore, bMore := ai.Next(), bi.Next()
		switch {
		case !aMore && !bMore:
			return 0
		case !aMore:
			return -1
		case !bMore:
			return 1
		}
		if c := cmp.Compare(Rank(ai.Type), Rank(bi.Type)); c != 0 {
			return c
		}
		if names {
			if c := bytes.Compare(ai.Key, bi.Key); c != 0 {
				return c
			}
		}
		if c := compare(ai.Type, ai.Value, bi.Type, bi.Value, coll, depth); c != 0 {
			return c
		}
	}
}
