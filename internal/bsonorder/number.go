package bsonorder

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/big"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func compareNumbers(at bson.Type, a []byte, bt bson.Type, b []byte) int {
	an, aWhole := whole(at, a)
	bn, bWhole := whole(bt, b)
	switch {
	case at == bson.TypeDecimal128 || bt == bson.TypeDecimal128:
		return compareExactly(exactOf(at, a), exactOf(bt, b))
	case aWhole && bWhole:
		return cmp.Compare(an, bn)
	case aWhole:
		return compareWholeToDouble(an, double(b))
	case bWhole:
		return -compareWholeToDouble(bn, double(a))
	default:
		// cmp.Compare has NaN equal to itself and below the rest, and -0 equal
		// to 0, as the server does.
		return cmp.Compare(double(a), double(b))
	}
}

func whole(t bson.Type, v []byte) (int64, bool) {
	switch t {
	case bson.TypeInt32:
		return int64(int32(binary.LittleEndian.Uint32(v))), true
	case bson.TypeInt64:
		return int64(binary.LittleEndian.Uint64(v)), true
	default:
		return 0, false
	}
}

func double(v []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(v)) }

// compareWholeToDouble does not convert n to a double: above 2^53 that would
// make neighbours equal.
func compareWholeToDouble(n int64, f float64) int {
	switch {
	case math.IsNaN(f), f < math.MinInt64:
		return 1
	case f >= math.MaxInt64: // the constant becomes 2^63
		return -1
	}
	integer := math.Trunc(f)
	return cmp.Or(cmp.Compare(n, int64(integer)), cmp.Compare(integer, f))
}

// exact is any number: its class, and its value if it is finite.
type exact struct {
	class int
	value *big.Rat
}

const (
	classNaN = iota
	classNegativeInfinity
	classFinite
	classInfinity
)

// maxCoefficient is the most that the 34 digits of a decimal can say.
var maxCoefficient = new(big.Int).Sub(new(big.Int).Exp(big.NewInt(10), big.NewInt(34), nil), big.NewInt(1))

// Finite returns the exact value of a number of any type. It is false for
// one that is not finite; v must be a number.
func Finite(v bson.RawValue) (*big.Rat, bool) {
	e := exactOf(v.Type, v.Value)
	return e.value, e.class == classFinite
}

func exactOf(t bson.Type, v []byte) exact {
	if n, ok := whole(t, v); ok {
		return exact{classFinite, new(big.Rat).SetInt64(n)}
	}
	if t == bson.TypeDouble {
		f := double(v)
		switch {
		case math.IsNaN(f):
			return exact{class: classNaN}
		case math.IsInf(f, -1):
			return exact{class: classNegativeInfinity}
		case math.IsInf(f, 1):
			return exact{class: classInfinity}
		}
		return exact{classFinite, new(big.Rat).SetFloat64(f)}
	}
	d := bson.NewDecimal128(binary.LittleEndian.Uint64(v[8:]), binary.LittleEndian.Uint64(v))
	switch {
	case d.IsInf() < 0:
		return exact{class: classNegativeInfinity}
	case d.IsInf() > 0:
		return exact{class: classInfinity}
	}
	coefficient, exponent, err := d.BigInt()
	if err != nil {
		return exact{class: classNaN}
	}
	if coefficient.CmpAbs(maxCoefficient) > 0 {
		return exact{classFinite, new(big.Rat)} // a non-canonical coefficient counts as zero
	}
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exponent, -exponent))), nil)
	if exponent < 0 {
		return exact{classFinite, new(big.Rat).SetFrac(coefficient, power)}
	}
	return exact{classFinite, new(big.Rat).SetInt(coefficient.Mul(coefficient, power))}
}

func compareExactly(a, b exact) int {
	if a.class != classFinite || b.class != classFinite {
		return cmp.Compare(a.class, b.class)
	}
	return a.value.Cmp(b.value)
}
