package serverupdate

import (
	"encoding/binary"
	"math"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// missing is the type of the value that is not there: what an absent field
// evaluates to. No BSON type has this number.
const missing = bson.Type(0)

// maxConvertDepth is how many levels of nesting the server converts from its
// own form to BSON.
const maxConvertDepth = 200

// maxBufferSize is how many bytes the server builds before it gives up.
const maxBufferSize = 64 << 20

// value is one value inside the interpreter. Its parts are shared and never
// changed, but for the caches of documents.
type value struct {
	typ bson.Type
	raw []byte    // the BSON value, for types other than object and array
	doc *document // for objects
	arr []value   // for arrays
}

var null = value{typ: bson.TypeNull}

func boolean(b bool) value {
	if b {
		return value{typ: bson.TypeBoolean, raw: []byte{1}}
	}
	return value{typ: bson.TypeBoolean, raw: []byte{0}}
}

func int32Value(n int32) value {
	return value{typ: bson.TypeInt32, raw: bsoncore.AppendInt32(nil, n)}
}

func int64Value(n int64) value {
	return value{typ: bson.TypeInt64, raw: bsoncore.AppendInt64(nil, n)}
}

// narrowInt is an int32 where n fits, as the server narrows sums and sizes.
func narrowInt(n int64) value {
	if n >= math.MinInt32 && n <= math.MaxInt32 {
		return int32Value(int32(n))
	}
	return int64Value(n)
}

func doubleValue(f float64) value {
	return value{typ: bson.TypeDouble, raw: bsoncore.AppendDouble(nil, f)}
}

func stringValue(s string) value {
	return value{typ: bson.TypeString, raw: bsoncore.AppendString(nil, s)}
}

func objectValue(d *document) value {
	return value{typ: bson.TypeEmbeddedDocument, doc: d}
}

func arrayValue(elems []value) value {
	return value{typ: bson.TypeArray, arr: elems}
}

// fromRaw takes valid BSON. Arrays are taken apart at once, objects when they
// are looked into, as on the server.
func fromRaw(typ bson.Type, raw []byte) value {
	switch typ {
	case bson.TypeEmbeddedDocument:
		return objectValue(newDocument(raw))
	case bson.TypeArray:
		var elems []value
		for it := rawbson.NewIter(raw); it.Next(); {
			elems = append(elems, fromRaw(it.Type, it.Value))
		}
		return arrayValue(elems)
	default:
		return value{typ: typ, raw: raw}
	}
}

func (v value) missing() bool { return v.typ == missing }

// nullish reports whether the server's expressions take v for "no value".
func (v value) nullish() bool {
	return v.typ == missing || v.typ == bson.TypeNull || v.typ == bson.TypeUndefined
}

func (v value) isArray() bool  { return v.typ == bson.TypeArray }
func (v value) isObject() bool { return v.typ == bson.TypeEmbeddedDocument }

func (v value) numeric() bool {
	switch v.typ {
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		return true
	default:
		return false
	}
}

// text is the string without its length and terminator. The value must be a
// string, a symbol or code.
func (v value) text() string { return string(v.raw[4 : len(v.raw)-1]) }

func (v value) int32() int32 { return int32(binary.LittleEndian.Uint32(v.raw)) }

func (v value) int64() int64 { return int64(binary.LittleEndian.Uint64(v.raw)) }

func (v value) float() float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64(v.raw))
}

// integral returns a number that is exactly an int32, whatever its type.
func (v value) integral() (int, bool) {
	switch v.typ {
	case bson.TypeInt32:
		return int(v.int32()), true
	case bson.TypeInt64:
		n := v.int64()
		return int(n), n >= math.MinInt32 && n <= math.MaxInt32
	case bson.TypeDouble:
		f := v.float()
		if f >= math.MinInt32 && f <= math.MaxInt32 && f == math.Trunc(f) {
			return int(f), true
		}
	case bson.TypeDecimal128:
		r, finite := v.rational()
		if finite && r.IsInt() && r.Num().IsInt64() {
			n := r.Num().Int64()
			return int(n), n >= math.MinInt32 && n <= math.MaxInt32
		}
	}
	return 0, false
}

// truth is how the server's conditions read any value: only missing, null,
// undefined, false and zero are false.
func (v value) truth() bool {
	switch v.typ {
	case missing, bson.TypeNull, bson.TypeUndefined:
		return false
	case bson.TypeBoolean:
		return v.raw[0] != 0
	case bson.TypeInt32:
		return v.int32() != 0
	case bson.TypeInt64:
		return v.int64() != 0
	case bson.TypeDouble:
		return v.float() != 0
	case bson.TypeDecimal128:
		r, finite := v.rational()
		return !finite || r.Sign() != 0
	default:
		return true
	}
}

// appendTo appends v as an element of a document. A missing value appends
// nothing. Level is that of the document around it, the outermost being 1.
func (v value) appendTo(dst []byte, name string, level int) ([]byte, error) {
	switch v.typ {
	case missing:
		return dst, nil
	case bson.TypeEmbeddedDocument:
		dst = bsoncore.AppendHeader(dst, bsoncore.TypeEmbeddedDocument, name)
		return v.doc.appendBSON(dst, level+1)
	case bson.TypeArray:
		if level+1 > maxConvertDepth {
			return nil, tooDeep()
		}
		dst = bsoncore.AppendHeader(dst, bsoncore.TypeArray, name)
		start, dst := bsoncore.AppendDocumentStart(dst)
		for i, elem := range v.arr {
			var err error
			if dst, err = elem.appendTo(dst, strconv.Itoa(i), level+1); err != nil {
				return nil, err
			}
		}
		return endDocument(dst, start)
	default:
		return appendRaw(dst, v.typ, name, v.raw), nil
	}
}

func appendRaw(dst []byte, typ bson.Type, name string, raw []byte) []byte {
	dst = bsoncore.AppendHeader(dst, bsoncore.Type(typ), name)
	return append(dst, raw...)
}

// endDocument closes a document that was begun at start. What the server's
// buffers cannot hold is refused before the lengths overflow.
func endDocument(dst []byte, start int32) ([]byte, error) {
	if len(dst) > maxBufferSize {
		return nil, tooLong()
	}
	return bsoncore.AppendDocumentEnd(dst, start)
}

func tooLong() *Error {
	return refuse(13548, "build a document: more than %d bytes", maxBufferSize)
}

func tooDeep() *Error {
	return refuse(codeOverflow, "convert a document to BSON: nested deeper than %d levels", maxConvertDepth)
}
