package bsonorder

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/big"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// AppendKey appends bytes that stand for v under coll: the bytes of two values
// compare as [Compare] has the values, so equal values have equal bytes. No key is
// the beginning of another one, so keys can be put one after the other.
func AppendKey(dst []byte, v bson.RawValue, coll *Collator) []byte {
	return appendKey(dst, v.Type, v.Value, coll, 1)
}

// Bytes that no key of a BSON type begins with: lower than all and higher than all.
const (
	keyEnd     = 0x00
	keyUnknown = 0xff
)

func appendKey(dst []byte, t bson.Type, v []byte, coll *Collator, depth int) []byte {
	rank := Rank(t)
	if rank > Rank(bson.TypeMaxKey) { // no type of BSON
		return appendEscaped(append(dst, keyUnknown, byte(t)), v)
	}
	dst = append(dst, byte(rank+2))
	if len(v) < fixedSize(t) {
		return appendEscaped(dst, v)
	}
	switch t {
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		return appendNumber(dst, t, v)
	case bson.TypeString, bson.TypeSymbol:
		return appendEscaped(dst, coll.key(text(v)))
	case bson.TypeEmbeddedDocument:
		return appendFields(dst, v, true, coll, depth+1)
	case bson.TypeArray:
		return appendFields(dst, v, false, coll, depth+1)
	case bson.TypeBinary:
		dst = binary.BigEndian.AppendUint32(dst, binary.LittleEndian.Uint32(v))
		return append(dst, v[4:]...)
	case bson.TypeDateTime:
		return binary.BigEndian.AppendUint64(dst, binary.LittleEndian.Uint64(v)^1<<63)
	case bson.TypeTimestamp:
		return binary.BigEndian.AppendUint64(dst, binary.LittleEndian.Uint64(v))
	case bson.TypeDBPointer:
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(v)))
		return append(dst, v...)
	case bson.TypeJavaScript:
		return appendEscaped(dst, text(v))
	case bson.TypeCodeWithScope:
		code, scope := codeAndScope(v)
		return appendFields(appendEscaped(dst, code), scope, true, nil, depth+1)
	default:
		// Of a fixed size, or, as regular expressions, with their own end.
		return append(dst, v...)
	}
}

// appendEscaped appends bytes of any length so that a prefix sorts before the
// longer value, whatever follows the key.
func appendEscaped(dst, b []byte) []byte {
	for {
		n := bytes.IndexByte(b, 0)
		if n < 0 {
			return append(append(dst, b...), 0, 0)
		}
		dst = append(append(dst, b[:n]...), 0, 0xff)
		b = b[n+1:]
	}
}

func appendFields(dst, doc []byte, names bool, coll *Collator, depth int) []byte {
	if depth > rawbson.MaxDepth {
		return appendEscaped(dst, doc)
	}
	for it := rawbson.NewIter(doc); it.Next(); {
		if !names {
			dst = appendKey(dst, it.Type, it.Value, coll, depth)
			continue
		}
		// The order is type, name, value: the name goes after the first byte.
		at := len(dst)
		dst = appendKey(dst, it.Type, it.Value, coll, depth)
		head := 1
		if dst[at] == keyUnknown {
			head = 2
		}
		dst = insertName(dst, at+head, it.Key)
	}
	return append(dst, keyEnd)
}

func insertName(dst []byte, at int, name []byte) []byte {
	n := len(name) + 1
	dst = append(dst, name...)
	dst = append(dst, 0)
	copy(dst[at+n:], dst[at:len(dst)-n])
	copy(dst[at:], name)
	dst[at+n-1] = 0
	return dst
}

// appendNumber appends the greatest double that is not above the number, and,
// if the number is not a double, its digits.
func appendNumber(dst []byte, t bson.Type, v []byte) []byte {
	if t == bson.TypeDouble {
		return append(appendDouble(dst, double(v)), 0)
	}
	if n, ok := whole(t, v); ok {
		floor := float64(n)
		exactly := compareWholeToDouble(n, floor)
		if exactly == 0 {
			return append(appendDouble(dst, floor), 0)
		}
		if exactly < 0 {
			floor = math.Nextafter(floor, math.Inf(-1))
		}
		return appendDigits(append(appendDouble(dst, floor), 1), big.NewInt(n), 0)
	}
	return appendDecimal(dst, v)
}

func appendDecimal(dst, v []byte) []byte {
	e := exactOf(bson.TypeDecimal128, v)
	switch e.class {
	case classNaN:
		return append(appendDouble(dst, math.NaN()), 0)
	case classNegativeInfinity:
		return append(appendDouble(dst, math.Inf(-1)), 0)
	case classInfinity:
		return append(appendDouble(dst, math.Inf(1)), 0)
	}
	floor, isDouble := e.value.Float64()
	if isDouble {
		return append(appendDouble(dst, floor), 0)
	}
	switch {
	case math.IsInf(floor, 1):
		floor = math.MaxFloat64
	case math.IsInf(floor, -1):
	case e.value.Cmp(new(big.Rat).SetFloat64(floor)) < 0:
		floor = math.Nextafter(floor, math.Inf(-1))
	}
	d := bson.NewDecimal128(binary.LittleEndian.Uint64(v[8:]), binary.LittleEndian.Uint64(v))
	coefficient, exponent, err := d.BigInt()
	if err != nil { // not finite, which was ruled out
		return append(appendDouble(dst, math.NaN()), 0)
	}
	return appendDigits(append(appendDouble(dst, floor), 1), coefficient, exponent)
}

// appendDouble appends 8 bytes in the order of doubles: NaN first, -0 as 0.
func appendDouble(dst []byte, f float64) []byte {
	bits := math.Float64bits(f)
	switch {
	case math.IsNaN(f):
		bits = 0
	case f == 0:
		bits = 1 << 63
	case f < 0:
		bits = ^bits
	default:
		bits |= 1 << 63
	}
	return binary.BigEndian.AppendUint64(dst, bits)
}

// appendDigits appends n times ten to the exponent, n not being 0. Numbers of one
// sign are in order.
func appendDigits(dst []byte, n *big.Int, exponent int) []byte {
	digits := new(big.Int).Abs(n).String()
	at := len(dst)
	dst = binary.BigEndian.AppendUint16(dst, uint16(exponent+len(digits)+1<<15))
	dst = append(dst, strings.TrimRight(digits, "0")...)
	dst = append(dst, 0)
	if n.Sign() < 0 {
		Invert(dst[at:])
	}
	return dst
}

// Invert turns the order of keys around, in place.
func Invert(key []byte) {
	for i := range key {
		key[i] = ^key[i]
	}
}
