package serverupdate

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// number is a number with the server's arithmetic for modifiers: an int32 that
// overflows becomes an int64, an int64 that overflows is a fault, a double makes
// a double of both. Decimals are not implemented.
type number struct {
	typ bson.Type
	i   int64 // for both integers
	f   float64
}

// numberOf reads a number; of any type but decimal.
func numberOf(t bson.Type, raw []byte) number {
	n := number{typ: t}
	switch t {
	case bson.TypeInt32:
		n.i = int64(int32(binary.LittleEndian.Uint32(raw)))
	case bson.TypeInt64:
		n.i = int64(binary.LittleEndian.Uint64(raw))
	case bson.TypeDouble:
		n.f = math.Float64frombits(binary.LittleEndian.Uint64(raw))
	}
	return n
}

func (n number) encode() (bson.Type, []byte) {
	switch n.typ {
	case bson.TypeInt32:
		return n.typ, bsoncore.AppendInt32(nil, int32(n.i))
	case bson.TypeInt64:
		return n.typ, bsoncore.AppendInt64(nil, n.i)
	default:
		return n.typ, bsoncore.AppendDouble(nil, n.f)
	}
}

// String returns the number as the server's messages show it.
func (n number) String() string {
	switch n.typ {
	case bson.TypeInt32:
		return fmt.Sprintf("(NumberInt)%d", n.i)
	case bson.TypeInt64:
		return fmt.Sprintf("(NumberLong)%d", n.i)
	default:
		return "(NumberDouble)" + strconv.FormatFloat(n.f, 'g', 6, 64)
	}
}

// identical reports whether two numbers have the same type and value.
func (n number) identical(m number) bool {
	if n.typ != m.typ {
		return false
	}
	if n.typ == bson.TypeDouble {
		return n.f == m.f || math.IsNaN(n.f) && math.IsNaN(m.f)
	}
	return n.i == m.i
}

func (n number) float() float64 {
	if n.typ == bson.TypeDouble {
		return n.f
	}
	return float64(n.i)
}

// integers makes the number of an operation on two integers. Wide says that the
// result does not fit an int64.
func integers(a, b number, result int64, wide bool) (number, bool) {
	typ := bson.TypeInt64
	if a.typ == bson.TypeInt32 && b.typ == bson.TypeInt32 && result >= math.MinInt32 && result <= math.MaxInt32 {
		typ = bson.TypeInt32
	}
	return number{typ: typ, i: result}, !wide
}

// add is false if the sum of two integers fits none.
func (n number) add(m number) (number, bool) {
	if n.typ == bson.TypeDouble || m.typ == bson.TypeDouble {
		return number{typ: bson.TypeDouble, f: n.float() + m.float()}, true
	}
	sum := n.i + m.i
	return integers(n, m, sum, (n.i < 0) == (m.i < 0) && (sum < 0) != (n.i < 0))
}

// mul is false if the product of two integers fits none.
func (n number) mul(m number) (number, bool) {
	if n.typ == bson.TypeDouble || m.typ == bson.TypeDouble {
		return number{typ: bson.TypeDouble, f: n.float() * m.float()}, true
	}
	negative := (n.i < 0) != (m.i < 0)
	high, low := bits.Mul64(magnitude(n.i), magnitude(m.i))
	limit := uint64(math.MaxInt64)
	if negative {
		limit++
	}
	return integers(n, m, n.i*m.i, high != 0 || low > limit)
}

func magnitude(i int64) uint64 {
	if i < 0 {
		return -uint64(i)
	}
	return uint64(i)
}

// bit combines two integers.
func (n number) bit(op bitOperation) number {
	m := op.operand
	out := number{typ: bson.TypeInt32}
	if n.typ == bson.TypeInt64 || m.typ == bson.TypeInt64 {
		out.typ = bson.TypeInt64
	}
	switch op.name {
	case 'a':
		out.i = n.i & m.i
	case 'o':
		out.i = n.i | m.i
	default:
		out.i = n.i ^ m.i
	}
	return out
}
