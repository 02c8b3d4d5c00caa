package bsongen

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// Made draws what a pipeline may make of doc, before the server puts _id in front
// and takes it from doc where there is none: [Mutate], with _id at any place, or of
// another type with an equal value, or left out.
func Made(t *rapid.T, doc bson.Raw) bson.Raw {
	fields := fieldsOf(Mutate(t, doc))
	at := slices.IndexFunc(fields, func(f field) bool { return f.name == "_id" })
	if at < 0 || rapid.Bool().Draw(t, "_id as it is") {
		return documentOf(fields)
	}
	id := fields[at]
	fields = slices.Delete(fields, at, at+1)
	if rapid.IntRange(0, 5).Draw(t, "left out") == 0 {
		return documentOf(fields)
	}
	id.value = equalID(t, id.value)
	return documentOf(slices.Insert(fields, rapid.IntRange(0, len(fields)).Draw(t, "place of _id"), id))
}

// MoveID returns doc with _id at any place.
func MoveID(t *rapid.T, doc bson.Raw) bson.Raw {
	fields := fieldsOf(doc)
	at := slices.IndexFunc(fields, func(f field) bool { return f.name == "_id" })
	if at < 0 {
		return doc
	}
	id := fields[at]
	fields = slices.Delete(fields, at, at+1)
	return documentOf(slices.Insert(fields, rapid.IntRange(0, len(fields)).Draw(t, "place of _id"), id))
}

// equalID draws a value that the server takes for the same _id: mostly id itself,
// for an int32 now and then a number of another type.
func equalID(t *rapid.T, id bson.RawValue) bson.RawValue {
	n, ok := id.Int32OK()
	if !ok {
		return id
	}
	switch rapid.IntRange(0, 7).Draw(t, "type of _id") {
	case 0:
		return bson.RawValue{Type: bson.TypeInt64, Value: bsoncore.AppendInt64(nil, int64(n))}
	case 1:
		return bson.RawValue{Type: bson.TypeDouble, Value: bsoncore.AppendDouble(nil, float64(n))}
	}
	return id
}

// IDDelta draws a [Delta] that has _id in one of its sections too: one that a
// server may have logged for a document with this _id, and again has nothing to do
// with any other field.
func IDDelta(t *rapid.T, id bson.RawValue) bson.Raw {
	diff := fieldsOf(Delta(t))
	letter := rapid.SampledFrom([]string{"i", "i", "i", "u", "d"}).Draw(t, "section of _id")
	value := equalID(t, id)
	if letter == "d" {
		value = bson.RawValue{Type: bson.TypeBoolean, Value: []byte{0}}
	}
	// Sections come in this order, those of changes inside after them.
	const order = "dui"
	rank := func(name string) int {
		if i := slices.Index([]byte(order), name[0]); i >= 0 && len(name) == 1 {
			return i
		}
		return len(order)
	}
	at := slices.IndexFunc(diff, func(f field) bool { return rank(f.name) >= rank(letter) })
	if at < 0 {
		at = len(diff)
	}
	if at == len(diff) || diff[at].name != letter {
		diff = slices.Insert(diff, at, field{letter, container(bson.TypeEmbeddedDocument, finish([]byte{0, 0, 0, 0}))})
	}
	section := fieldsOf(bson.Raw(diff[at].value.Value))
	section = slices.Insert(section, rapid.IntRange(0, len(section)).Draw(t, "place in the section"), field{"_id", value})
	diff[at].value.Value = documentOf(section)
	return documentOf(diff)
}

func fieldsOf(doc bson.Raw) (fields []field) {
	for it := rawbson.NewIter(doc); it.Next(); {
		fields = append(fields, field{it.Name(), it.Raw()})
	}
	return fields
}

func documentOf(fields []field) bson.Raw {
	out := []byte{0, 0, 0, 0}
	for _, f := range fields {
		out = appendElem(out, f.name, f.value)
	}
	return finish(out)
}
