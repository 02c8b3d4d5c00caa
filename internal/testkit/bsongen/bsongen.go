package bsongen

import (
	"bytes"
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// maxDepth is how deep drawn values nest, in levels.
const maxDepth = 5

// names are the field names in play: common ones several times.
var names = []string{
	"a", "b", "c", "a", "b", "c", "d", "i", "u", "s", "l", "o", "sa", "ua", "u0", "s1",
	"", "0", "1", "2", "01", "10", "-1", "1e1", "a.b", "a.0", ".", "a.", "$", "$x", "$set", "$v", "$a.b",
	"_id", "é", "日本", "with space", "\xff\xfe", "a-name-that-is-long-enough-to-weigh-something-in-a-reckoning-of-sizes",
}

// Name draws a field name.
func Name(t *rapid.T) string { return rapid.SampledFrom(names).Draw(t, "name") }

// Document draws a valid document that starts with an _id and has no two fields
// of one name at the same place.
func Document(t *rapid.T) bson.Raw {
	doc := []byte{0, 0, 0, 0}
	doc = bsoncore.AppendInt32Element(doc, "_id", rapid.Int32Range(0, 3).Draw(t, "id"))
	return finish(appendFields(t, doc, 8, 1, []string{"_id"}))
}

// Repeat returns doc with some of its top-level fields a second time, under the
// same name with another value.
func Repeat(t *rapid.T, doc bson.Raw) bson.Raw {
	out := slices.Clone(doc[:len(doc)-1])
	for it := rawbson.NewIter(doc); it.Next(); {
		if !it.Is("_id") && rapid.Bool().Draw(t, "repeat") {
			out = appendElem(out, it.Name(), Value(t, 2))
		}
	}
	return finish(out)
}

// Value draws a value of any type. A container at depth 1 is as deep as the
// package goes, a larger depth leaves fewer levels.
func Value(t *rapid.T, depth int) bson.RawValue {
	kind := rapid.IntRange(0, 30).Draw(t, "kind")
	if depth >= maxDepth && kind < 12 {
		kind += 12
	}
	switch {
	case kind < 7:
		return container(bson.TypeEmbeddedDocument, finish(appendFields(t, []byte{0, 0, 0, 0}, 5, depth+1, nil)))
	case kind < 12:
		n := rapid.IntRange(0, 5).Draw(t, "length")
		elems := make([]bson.RawValue, n)
		for i := range elems {
			elems[i] = Value(t, depth+1)
		}
		return array(elems)
	case kind < 22:
		// The common types, more often.
		return scalar(t, rapid.SampledFrom([]bson.Type{bson.TypeInt32, bson.TypeString, bson.TypeString, bson.TypeNull}).Draw(t, "type"))
	}
	return scalar(t, rapid.SampledFrom(scalarTypes).Draw(t, "type"))
}

var scalarTypes = []bson.Type{
	bson.TypeDouble, bson.TypeString, bson.TypeBinary, bson.TypeUndefined, bson.TypeObjectID, bson.TypeBoolean,
	bson.TypeDateTime, bson.TypeNull, bson.TypeRegex, bson.TypeDBPointer, bson.TypeJavaScript, bson.TypeSymbol,
	bson.TypeCodeWithScope, bson.TypeInt32, bson.TypeTimestamp, bson.TypeInt64, bson.TypeDecimal128,
	bson.TypeMinKey, bson.TypeMaxKey,
}

func scalar(t *rapid.T, typ bson.Type) bson.RawValue {
	var b []byte
	switch typ {
	case bson.TypeDouble, bson.TypeDateTime, bson.TypeInt64, bson.TypeTimestamp:
		b = fixed(t, 8)
	case bson.TypeInt32:
		b = bsoncore.AppendInt32(nil, rapid.Int32Range(-2, 9).Draw(t, "int32"))
	case bson.TypeDecimal128:
		b = fixed(t, 16)
	case bson.TypeObjectID:
		b = fixed(t, 12)
	case bson.TypeBoolean:
		b = bsoncore.AppendBoolean(nil, rapid.Bool().Draw(t, "bool"))
	case bson.TypeString, bson.TypeSymbol, bson.TypeJavaScript:
		b = bsoncore.AppendString(nil, text(t))
	case bson.TypeBinary:
		subtype := rapid.SampledFrom([]byte{0, 0, 2, 3, 4, 7, 128}).Draw(t, "subtype")
		data := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "data")
		// By hand: the library wraps the data of subtype 2 in a second length.
		b = append(bsoncore.AppendInt32(nil, int32(len(data))), subtype)
		b = append(b, data...)
	case bson.TypeRegex:
		b = bsoncore.AppendRegex(nil, "^a.*$", rapid.SampledFrom([]string{"", "i", "msx"}).Draw(t, "options"))
	case bson.TypeDBPointer:
		b = append(bsoncore.AppendString(nil, "db.c"), fixed(t, 12)...)
	case bson.TypeCodeWithScope:
		scope := finish(bsoncore.AppendInt32Element([]byte{0, 0, 0, 0}, "x", rapid.Int32().Draw(t, "x")))
		b = bsoncore.AppendCodeWithScope(nil, text(t), scope)
	}
	return bson.RawValue{Type: typ, Value: b}
}

func fixed(t *rapid.T, n int) []byte { return rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "bytes") }

func text(t *rapid.T) string {
	n := rapid.SampledFrom([]int{0, 1, 3, 3, 30, 300}).Draw(t, "size")
	return string(bytes.Repeat([]byte{rapid.SampledFrom([]byte("xyz$\x00")).Draw(t, "letter")}, n))
}

// appendFields appends up to n fields with names that are not in taken.
func appendFields(t *rapid.T, dst []byte, n, depth int, taken []string) []byte {
	for range rapid.IntRange(0, n).Draw(t, "fields") {
		name := Name(t)
		if slices.Contains(taken, name) {
			continue
		}
		taken = append(taken, name)
		dst = appendElem(dst, name, Value(t, depth))
	}
	return dst
}

func appendElem(dst []byte, name string, v bson.RawValue) []byte {
	dst = bsoncore.AppendHeader(dst, bsoncore.Type(v.Type), name)
	return append(dst, v.Value...)
}

// finish closes a document that was begun with four bytes for its length.
func finish(doc []byte) bson.Raw {
	doc = append(doc, 0)
	return bson.Raw(bsoncore.UpdateLength(doc, 0, int32(len(doc))))
}

func container(typ bson.Type, doc []byte) bson.RawValue { return bson.RawValue{Type: typ, Value: doc} }

func array(elems []bson.RawValue) bson.RawValue {
	doc := []byte{0, 0, 0, 0}
	for i, v := range elems {
		doc = appendElem(doc, strconv.Itoa(i), v)
	}
	return container(bson.TypeArray, finish(doc))
}
