package serverquery

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
)

var numberRank = bsonorder.Rank(bson.TypeInt32)

type operator uint8

const (
	opEq operator = iota
	opLt
	opLte
	opGt
	opGte
)

// comparison is $eq, $lt, $lte, $gt and $gte.
type comparison struct {
	op   operator
	rhs  val
	rank int
	nan  bool
	coll *bsonorder.Collator
}

func newComparison(op operator, rhs val, coll *bsonorder.Collator) *comparison {
	return &comparison{op: op, rhs: rhs, rank: rhs.rank(), nan: isNaN(rhs), coll: coll}
}

func isNaN(v val) bool {
	switch v.t {
	case bson.TypeDouble:
		f := v.double()
		return math.IsNaN(f)
	case bson.TypeDecimal128:
		high := binary.LittleEndian.Uint64(v.b[8:])
		return high>>58&0x1f == 0x1f
	default:
		return false
	}
}

func (c *comparison) test(v val) (bool, int) {
	if c.op == opEq && v.t == c.rhs.t && bytes.Equal(v.b, c.rhs.b) {
		return true, 0
	}
	if v.t != c.rhs.t && v.rank() != c.rank {
		switch {
		case c.rhs.t == bson.TypeNull && (v.t == 0 || v.t == bson.TypeUndefined):
			return c.op == opEq || c.op == opLte || c.op == opGte, 0
		case c.rhs.t == bson.TypeMaxKey:
			return c.op == opLt || c.op == opLte, 0
		case c.rhs.t == bson.TypeMinKey:
			return c.op == opGt || c.op == opGte, 0
		}
		return false, 0
	}
	if c.nan || c.rank == numberRank && isNaN(v) {
		// NaN is found by NaN alone, and is neither above nor below a number.
		return c.nan && isNaN(v) && (c.op == opEq || c.op == opLte || c.op == opGte), 0
	}
	order := compareValues(v, c.rhs, c.coll)
	switch c.op {
	case opEq:
		return order == 0, 0
	case opLt:
		return order < 0, 0
	case opLte:
		return order <= 0, 0
	case opGt:
		return order > 0, 0
	default:
		return order >= 0, 0
	}
}

// membership is $in. Values are in order and without repetition.
type membership struct {
	values  []val
	regexes []*pattern
	null    bool
	coll    *bsonorder.Collator
}

func (m *membership) test(v val) (bool, int) {
	if v.missing() {
		return m.null, 0
	}
	_, ok := slices.BinarySearchFunc(m.values, v, func(a, b val) int { return compareValues(a, b, m.coll) })
	if ok {
		return true, 0
	}
	for _, re := range m.regexes {
		if ok, _ := re.test(v); ok {
			return true, 0
		}
	}
	return false, 0
}

// existence is $exists: true.
type existence struct{}

func (existence) test(v val) (bool, int) { return !v.missing(), 0 }

// typeSet is $type.
type typeSet struct {
	types  []bson.Type
	number bool
}

func (s *typeSet) test(v val) (bool, int) {
	return slices.Contains(s.types, v.t) || s.number && v.number(), 0
}

// size is $size; a negative one fits nothing.
type size struct{ n int64 }

func (s *size) test(v val) (bool, int) {
	return v.t == bson.TypeArray && s.n >= 0 && int64(len(elems(v.b))) == s.n, 0
}

// modulus is $mod.
type modulus struct{ divisor, remainder int64 }

func (m *modulus) test(v val) (bool, int) {
	n, ok := cutOff(v)
	if !ok {
		return false, 0
	}
	return n%m.divisor == m.remainder, 0
}

// cutOff is the integer part of a number, if an int64 holds it.
func cutOff(v val) (int64, bool) {
	switch v.t {
	case bson.TypeDouble:
		f := v.double()
		f = math.Trunc(f)
		if f >= -(1<<63) && f < 1<<63 {
			return int64(f), true
		}
		return 0, false
	case bson.TypeDecimal128:
		r, finite := bsonorder.Finite(v.raw())
		if !finite {
			return 0, false
		}
		q := r.Num()
		if !r.IsInt() {
			q = q.Quo(q, r.Denom())
		}
		return q.Int64(), q.IsInt64()
	default:
		return v.whole()
	}
}

// elemMatchValue is $elemMatch with operators: it wants an array.
type elemMatchValue struct{ sub node }

func (m *elemMatchValue) test(v val) (bool, int) {
	if v.t != bson.TypeArray {
		return false, 0
	}
	it := rawbson.NewIter(v.b)
	for n := 1; it.Next(); n++ {
		if m.sub.matchValue(valueOf(&it.Elem)).ok {
			return true, n
		}
	}
	return false, 0
}

// elemMatchObject is $elemMatch with fields.
type elemMatchObject struct{ sub node }

func (m *elemMatchObject) test(v val) (bool, int) {
	if v.t != bson.TypeArray {
		return false, 0
	}
	it := rawbson.NewIter(v.b)
	for n := 1; it.Next(); n++ {
		if (it.Type == bson.TypeEmbeddedDocument || it.Type == bson.TypeArray) && m.sub.match(it.Value).ok {
			return true, n
		}
	}
	return false, 0
}
