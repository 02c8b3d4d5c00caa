package serverupdate

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"math/big"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// maxCompareDepth bounds recursion on values that only exist between stages.
// What can be stored is nested far less.
const maxCompareDepth = 1000

// canonical is the server's order of types. Types with the same number compare
// by value.
func canonical(t bson.Type) int {
	switch t {
	case bson.TypeMinKey:
		return -1
	case missing, bson.TypeUndefined:
		return 0
	case bson.TypeNull:
		return 5
	case bson.TypeDecimal128, bson.TypeDouble, bson.TypeInt32, bson.TypeInt64:
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
	default:
		return 127
	}
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
	if c := cmp.Compare(canonical(a.typ), canonical(b.typ)); c != 0 {
		return c, nil
	}
	switch a.typ {
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		return compareNumbers(a, b), nil
	case bson.TypeString, bson.TypeSymbol, bson.TypeJavaScript:
		return cmp.Compare(a.text(), b.text()), nil
	case bson.TypeEmbeddedDocument:
		return ev.compareDocuments(a.doc, b.doc, depth)
	case bson.TypeArray:
		for i := range min(len(a.arr), len(b.arr)) {
			if c, err := ev.compareAt(a.arr[i], b.arr[i], depth+1); c != 0 || err != nil {
				return c, err
			}
		}
		return cmp.Compare(len(a.arr), len(b.arr)), nil
	case bson.TypeBinary:
		// Length, subtype, bytes: the encoding begins with exactly these, but
		// the length is little endian.
		if c := cmp.Compare(len(a.raw), len(b.raw)); c != 0 {
			return c, nil
		}
		return bytes.Compare(a.raw[4:], b.raw[4:]), nil
	case bson.TypeObjectID, bson.TypeBoolean:
		return bytes.Compare(a.raw, b.raw), nil
	case bson.TypeDateTime:
		return cmp.Compare(a.int64(), b.int64()), nil
	case bson.TypeTimestamp:
		return cmp.Compare(binary.LittleEndian.Uint64(a.raw), binary.LittleEndian.Uint64(b.raw)), nil
	case bson.TypeRegex:
		// Pattern, then options, each ended by a zero byte, which sorts before
		// any other: one comparison does both.
		return bytes.Compare(a.raw, b.raw), nil
	case bson.TypeDBPointer:
		if c := cmp.Compare(len(a.raw), len(b.raw)); c != 0 {
			return c, nil
		}
		return bytes.Compare(a.raw[4:], b.raw[4:]), nil
	case bson.TypeCodeWithScope:
		return ev.compareScopes(a, b, depth)
	default:
		return 0, nil
	}
}

func (ev *evaluation) compareDocuments(a, b *document, depth int) (int, error) {
	if a == b {
		return 0, nil
	}
	left, right := a.fields(), b.fields()
	for i := range min(len(left), len(right)) {
		l, r := left[i], right[i]
		if c := cmp.Compare(canonical(l.val.typ), canonical(r.val.typ)); c != 0 {
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

func (ev *evaluation) compareScopes(a, b value, depth int) (int, error) {
	scopeA, scopeB := rawbson.Scope(a.raw), rawbson.Scope(b.raw)
	codeA := a.raw[8 : len(a.raw)-len(scopeA)-1]
	codeB := b.raw[8 : len(b.raw)-len(scopeB)-1]
	if c := bytes.Compare(codeA, codeB); c != 0 {
		return c, nil
	}
	return ev.compareDocuments(newDocument(scopeA), newDocument(scopeB), depth+1)
}

// class sorts numbers that are no rationals: NaN is below all others.
type class int

const (
	notANumber class = iota
	minusInfinity
	finite
	plusInfinity
)

// rational is a number's exact value; it is nil unless the class is finite.
func (v value) rational() (*big.Rat, class) {
	switch v.typ {
	case bson.TypeInt32:
		return big.NewRat(int64(v.int32()), 1), finite
	case bson.TypeInt64:
		return big.NewRat(v.int64(), 1), finite
	case bson.TypeDouble:
		f := v.float()
		switch {
		case math.IsNaN(f):
			return nil, notANumber
		case math.IsInf(f, -1):
			return nil, minusInfinity
		case math.IsInf(f, 1):
			return nil, plusInfinity
		}
		return new(big.Rat).SetFloat64(f), finite
	}
	d := v.decimal()
	switch {
	case d.IsNaN():
		return nil, notANumber
	case d.IsInf() < 0:
		return nil, minusInfinity
	case d.IsInf() > 0:
		return nil, plusInfinity
	}
	n, exp, err := d.BigInt()
	if err != nil {
		return nil, notANumber
	}
	r := new(big.Rat).SetInt(n)
	if n.Sign() == 0 {
		return r, finite
	}
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exp, -exp))), nil)
	if exp < 0 {
		return r.Quo(r, new(big.Rat).SetInt(power)), finite
	}
	return r.Mul(r, new(big.Rat).SetInt(power)), finite
}

func compareNumbers(a, b value) int {
	if a.typ == bson.TypeInt32 && b.typ == bson.TypeInt32 {
		return cmp.Compare(a.int32(), b.int32())
	}
	l, lc := a.rational()
	r, rc := b.rational()
	if lc != finite || rc != finite {
		return cmp.Compare(lc, rc)
	}
	return l.Cmp(r)
}
