package oplog

import (
	"encoding/binary"
	"math"
	"strconv"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// HashNamespace returns the seed for the documents of a namespace, which is also
// the hash of operations that need one writer per namespace: murmur3, 32 bits.
// Unlike the server's, it is the same in every process.
func HashNamespace(ns Namespace) uint32 {
	return murmur32([]byte(ns), 0)
}

// HashID returns the murmur3 hash of a document's _id, seeded with the hash of its
// namespace. Two _ids that are equal to the server under the simple collation have
// the same hash whatever their types: int32 1, int64 1, double 1.0 and decimal 1,
// also inside documents. Under any other collation different strings may be equal:
// there all documents of the collection need the same hash.
func HashID(seed uint32, id bson.RawValue) uint32 {
	if !isNested(id.Type) {
		var buf [96]byte // on the stack, since it is not passed to the recursive function
		return murmur32(appendScalar(buf[:0], id.Type, id.Value), seed)
	}
	buf := keyBuffers.Get().(*[]byte)
	*buf = AppendIDKey((*buf)[:0], id)
	h := murmur32(*buf, seed)
	keyBuffers.Put(buf)
	return h
}

var keyBuffers = sync.Pool{New: func() any { return new([]byte) }}

// AppendIDKey appends bytes that are the same for two _ids that are equal to the
// server under the simple collation. Different _ids may have the same bytes, but
// only beyond the precision of a double.
func AppendIDKey(dst []byte, id bson.RawValue) []byte {
	return appendKey(dst, id.Type, id.Value, 1)
}

// Types that the server compares with one another share a tag. Numbers are
// converted to double, as in the server's own hash: equal numbers stay equal, and
// different whole numbers above 2^53 may become equal.
const (
	tagNumber = 10
	tagString = 15
	tagObject = 20
	tagArray  = 25
	tagCode   = 65
)

func isNested(t bson.Type) bool {
	return t == bson.TypeEmbeddedDocument || t == bson.TypeArray || t == bson.TypeCodeWithScope
}

func appendKey(dst []byte, t bson.Type, v []byte, depth int) []byte {
	switch t {
	case bson.TypeEmbeddedDocument:
		return appendFields(append(dst, tagObject), v, true, depth+1)
	case bson.TypeArray:
		return appendFields(append(dst, tagArray), v, false, depth+1)
	case bson.TypeCodeWithScope:
		scope := rawbson.Scope(v)
		dst = append(append(dst, tagCode), v[4:len(v)-len(scope)]...)
		return appendFields(dst, scope, true, depth+1)
	default:
		return appendScalar(dst, t, v)
	}
}

func appendScalar(dst []byte, t bson.Type, v []byte) []byte {
	switch t {
	case bson.TypeInt32:
		return appendNumber(dst, float64(int32(binary.LittleEndian.Uint32(v))))
	case bson.TypeInt64:
		return appendNumber(dst, float64(int64(binary.LittleEndian.Uint64(v))))
	case bson.TypeDouble:
		return appendNumber(dst, math.Float64frombits(binary.LittleEndian.Uint64(v)))
	case bson.TypeDecimal128:
		return appendNumber(dst, decimalToDouble(v))
	case bson.TypeString, bson.TypeSymbol:
		return append(append(dst, tagString), v...)
	default:
		// Equal values of the other types have equal bytes. Their type numbers are
		// offset to differ from the tags.
		return append(append(dst, 128+byte(t)), v...)
	}
}

func appendFields(dst, doc []byte, names bool, depth int) []byte {
	if depth > rawbson.MaxDepth {
		return dst
	}
	it := rawbson.NewIter(doc)
	for it.Next() {
		if names {
			dst = append(append(dst, it.Key...), 0)
		}
		dst = appendKey(dst, it.Type, it.Value, depth)
	}
	return append(dst, 0)
}

func appendNumber(dst []byte, f float64) []byte {
	switch {
	case f == 0:
		f = 0 // -0 becomes 0
	case f != f:
		f = math.NaN() // one of many representations
	}
	return binary.LittleEndian.AppendUint64(append(dst, tagNumber), math.Float64bits(f))
}

// The largest coefficient of 34 decimal digits. A larger one is not canonical, and
// means zero.
const (
	maxCoefficientHigh = 0x1ed09bead87c0
	maxCoefficientLow  = 0x378d8e63ffffffff
)

func decimalToDouble(v []byte) float64 {
	low := binary.LittleEndian.Uint64(v)
	high := binary.LittleEndian.Uint64(v[8:])
	if high>>61&3 != 3 {
		coefficient := high & (1<<49 - 1)
		if coefficient > maxCoefficientHigh || coefficient == maxCoefficientHigh && low > maxCoefficientLow {
			return 0
		}
	}
	f, err := strconv.ParseFloat(bson.NewDecimal128(high, low).String(), 64)
	if err != nil && f == 0 {
		return math.NaN()
	}
	return f
}
