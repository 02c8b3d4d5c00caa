package bsontext

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

const (
	// maxDepth is the nesting, in levels, below which the server writes dots.
	maxDepth = 100
	// Above the first length, in bytes with the terminator, the server writes so
	// many bytes as the second says.
	longString, cutString = 160, 150
	longBytes, cutBytes   = 80, 70
)

// Value returns v as the server prints it: 1, "x", { a: 1 }, [ 1 ], new Date(0).
// Invalid BSON is printed as ?type= and the number of its type.
func Value(v bson.RawValue) string { return string(AppendValue(nil, v)) }

// Document returns doc as the server prints a whole document: { a: 1 }, or {}.
// A corrupt document is printed up to its fault.
func Document(doc bson.Raw) string { return string(appendDocument(nil, doc, false, 0)) }

// Array returns an array as the server prints it: [ 1, 2 ], or [].
func Array(array bson.Raw) string { return string(appendDocument(nil, array, true, 0)) }

// Element returns a field as the server prints one without braces: a: 1.
func Element(name string, v bson.RawValue) string {
	return string(AppendValue(append([]byte(name), ": "...), v))
}

// Braced returns a field as the server's update code prints one: {a: 1}.
func Braced(name string, v bson.RawValue) string { return "{" + Element(name, v) + "}" }

// AppendValue appends [Value] of v to dst.
func AppendValue(dst []byte, v bson.RawValue) []byte {
	if v.Validate() != nil {
		return appendUnknown(dst, v.Type)
	}
	return appendValue(dst, v.Type, v.Value, 0)
}

func appendUnknown(dst []byte, t bson.Type) []byte {
	return strconv.AppendInt(append(dst, "?type="...), int64(t), 10)
}

func appendDocument(dst []byte, doc []byte, array bool, depth int) []byte {
	opening, closing := byte('{'), byte('}')
	if array {
		opening, closing = '[', ']'
	}
	dst = append(dst, opening)
	it := rawbson.NewIter(doc)
	first := true
	for it.Next() {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(dst, ' ')
		if depth > maxDepth {
			dst = append(dst, "..."...)
			continue
		}
		if !array {
			dst = append(append(dst, it.Key...), ": "...)
		}
		dst = appendValue(dst, it.Type, it.Value, depth)
	}
	if !first {
		dst = append(dst, ' ')
	}
	return append(dst, closing)
}

// appendValue takes a value whose length is checked.
func appendValue(dst []byte, t bson.Type, raw []byte, depth int) []byte {
	switch t {
	case bson.TypeEmbeddedDocument:
		return appendDocument(dst, raw, false, depth+1)
	case bson.TypeArray:
		return appendDocument(dst, raw, true, depth+1)
	case bson.TypeDouble:
		return appendDouble(dst, math.Float64frombits(binary.LittleEndian.Uint64(raw)))
	case bson.TypeInt32:
		return strconv.AppendInt(dst, int64(int32(binary.LittleEndian.Uint32(raw))), 10)
	case bson.TypeInt64:
		return strconv.AppendInt(dst, int64(binary.LittleEndian.Uint64(raw)), 10)
	case bson.TypeDecimal128:
		d := bson.NewDecimal128(binary.LittleEndian.Uint64(raw[8:]), binary.LittleEndian.Uint64(raw))
		return append(dst, d.String()...)
	case bson.TypeBoolean:
		return strconv.AppendBool(dst, raw[0] != 0)
	case bson.TypeNull:
		return append(dst, "null"...)
	case bson.TypeUndefined:
		return append(dst, "undefined"...)
	case bson.TypeMinKey:
		return append(dst, "MinKey"...)
	case bson.TypeMaxKey:
		return append(dst, "MaxKey"...)
	case bson.TypeDateTime:
		dst = strconv.AppendInt(append(dst, "new Date("...), int64(binary.LittleEndian.Uint64(raw)), 10)
		return append(dst, ')')
	case bson.TypeTimestamp:
		dst = strconv.AppendUint(append(dst, "Timestamp("...), uint64(binary.LittleEndian.Uint32(raw[4:])), 10)
		dst = strconv.AppendUint(append(dst, ", "...), uint64(binary.LittleEndian.Uint32(raw)), 10)
		return append(dst, ')')
	case bson.TypeObjectID:
		return append(hex.AppendEncode(append(dst, "ObjectId('"...), raw), "')"...)
	case bson.TypeRegex:
		pattern, options, _ := strings.Cut(string(raw[:len(raw)-1]), "\x00")
		return append(dst, "/"+pattern+"/"+options...)
	default:
		return appendLong(dst, t, raw)
	}
}

// appendLong prints the types that are cut where they are long, and those that
// hold a string.
func appendLong(dst []byte, t bson.Type, raw []byte) []byte {
	switch t {
	case bson.TypeString, bson.TypeSymbol:
		dst = append(dst, '"')
		if s := raw[4:]; len(s) > longString {
			return append(append(dst, s[:cutString]...), `..."`...)
		}
		return append(append(dst, text(raw)...), '"')
	case bson.TypeJavaScript:
		if s := raw[4:]; len(s) > longBytes {
			return append(append(dst, s[:cutBytes]...), "..."...)
		}
		return append(dst, text(raw)...)
	case bson.TypeCodeWithScope:
		dst = append(append(dst, "CodeWScope( "...), text(raw[4:])...)
		return append(appendDocument(append(dst, ", "...), rawbson.Scope(raw), false, 0), ')')
	case bson.TypeDBPointer:
		dst = append(append(dst, "DBRef('"...), text(raw)...)
		return append(hex.AppendEncode(append(dst, "',"...), raw[len(raw)-12:]), ')')
	case bson.TypeBinary:
		return appendBinary(dst, raw)
	default:
		return appendUnknown(dst, t)
	}
}

// text is the string at the start of raw, without its length and terminator.
func text(raw []byte) []byte {
	return raw[4 : 4+binary.LittleEndian.Uint32(raw)-1]
}

func appendBinary(dst []byte, raw []byte) []byte {
	subtype, data := raw[4], raw[5:]
	if subtype == 2 && len(data) >= 4 {
		data = data[4:] // it has its length inside once more
	}
	if subtype == 4 && len(data) == 16 {
		s := hex.EncodeToString(data)
		return append(dst, `UUID("`+s[:8]+"-"+s[8:12]+"-"+s[12:16]+"-"+s[16:20]+"-"+s[20:]+`")`...)
	}
	dst = append(strconv.AppendUint(append(dst, "BinData("...), uint64(subtype), 10), ", "...)
	end := ")"
	if len(data) > longBytes {
		data, end = data[:cutBytes], "...)"
	}
	dst = append(dst, strings.ToUpper(hex.EncodeToString(data))...)
	return append(dst, end...)
}

// appendDouble writes sixteen digits at most, and .0 if there is no point: after an
// exponent, nan and inf too, as the server does.
func appendDouble(dst []byte, f float64) []byte {
	start := len(dst)
	switch {
	case math.IsNaN(f):
		if math.Signbit(f) {
			dst = append(dst, '-')
		}
		dst = append(dst, "nan"...)
	case math.IsInf(f, 1):
		dst = append(dst, "inf"...)
	case math.IsInf(f, -1):
		dst = append(dst, "-inf"...)
	default:
		dst = appendGeneral(dst, f)
	}
	if slices.Contains(dst[start:], '.') {
		return dst
	}
	return append(dst, ".0"...)
}

// appendGeneral is C's %.16g, whose trailing zeros are cut; Go's writes another
// form of exponents and goes over to them elsewhere.
func appendGeneral(dst []byte, f float64) []byte {
	const digits = 16
	if f == 0 {
		return strconv.AppendFloat(dst, f, 'f', 0, 64)
	}
	mantissa, exp, _ := strings.Cut(strconv.FormatFloat(f, 'e', digits-1, 64), "e")
	e, _ := strconv.Atoi(exp) // it is what FormatFloat wrote
	if e < -4 || e >= digits {
		return append(append(dst, trimZeros(mantissa)...), "e"+exp...)
	}
	return append(dst, trimZeros(strconv.FormatFloat(f, 'f', digits-1-e, 64))...)
}

func trimZeros(s string) string {
	if !strings.Contains(s, ".") {
		return s
	}
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}
