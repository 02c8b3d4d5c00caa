package bsongen

import (
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// Mutate draws a document that doc, which must be valid, may have become by an
// update: fields and array elements replaced, removed, moved, added, at any
// depth. A top-level _id stays as it is.
func Mutate(t *rapid.T, doc bson.Raw) bson.Raw { return mutateDocument(t, doc, 1) }

type field struct {
	name  string
	value bson.RawValue
}

func mutateDocument(t *rapid.T, doc []byte, depth int) bson.Raw {
	var fields []field
	for it := rawbson.NewIter(doc); it.Next(); {
		f := field{it.Name(), it.Raw()}
		if depth == 1 && f.name == "_id" {
			fields = append(fields, f)
			continue
		}
		switch rapid.IntRange(0, 11).Draw(t, "change") {
		case 0:
			continue
		case 1:
			f.value = Value(t, depth)
		case 2, 3, 4:
			f.value = mutateValue(t, f.value, depth)
		}
		fields = append(fields, f)
	}
	if len(fields) > 2 && rapid.IntRange(0, 4).Draw(t, "move") == 0 {
		from := rapid.IntRange(1, len(fields)-1).Draw(t, "from")
		f := fields[from]
		fields = append(slices.Delete(fields, from, from+1), f)
	}
	if rapid.IntRange(0, 2).Draw(t, "add") == 0 {
		added := field{Name(t), Value(t, depth)}
		if !slices.ContainsFunc(fields, func(f field) bool { return f.name == added.name }) {
			at := len(fields)
			if depth > 1 || at > 1 {
				at = rapid.IntRange(min(1, at), at).Draw(t, "at")
			}
			fields = slices.Insert(fields, at, added)
		}
	}
	return documentOf(fields)
}

func mutateValue(t *rapid.T, v bson.RawValue, depth int) bson.RawValue {
	switch v.Type {
	case bson.TypeEmbeddedDocument:
		return container(v.Type, mutateDocument(t, v.Value, depth+1))
	case bson.TypeArray:
		return mutateArray(t, v.Value, depth+1)
	}
	return Value(t, depth)
}

func mutateArray(t *rapid.T, doc []byte, depth int) bson.RawValue {
	var elems []bson.RawValue
	for it := rawbson.NewIter(doc); it.Next(); {
		v := it.Raw()
		if rapid.IntRange(0, 3).Draw(t, "change") == 0 {
			v = mutateValue(t, v, depth)
		}
		elems = append(elems, v)
	}
	switch rapid.IntRange(0, 3).Draw(t, "resize") {
	case 0:
		elems = elems[:rapid.IntRange(0, len(elems)).Draw(t, "length")]
	case 1:
		for range rapid.IntRange(1, 3).Draw(t, "grow") {
			elems = append(elems, Value(t, depth))
		}
	}
	return array(elems)
}

// Delta draws a diff that obeys the grammar of $v:2 updates and has nothing to
// do with any document: it may update missing fields, insert existing ones and
// change inside values of another type. It leaves the top-level _id alone and
// has no binary section.
func Delta(t *rapid.T) bson.Raw { return objectDiff(t, 1, false) }

// BinaryDelta is [Delta] with binary sections, which 8.0 and newer write.
func BinaryDelta(t *rapid.T) bson.Raw { return objectDiff(t, 1, true) }

func objectDiff(t *rapid.T, depth int, binary bool) bson.Raw {
	var taken []string
	if depth == 1 {
		taken = append(taken, "_id")
	}
	draw := func(most int) (drawn []string) {
		for range rapid.IntRange(0, most).Draw(t, "fields") {
			name := Name(t)
			if !slices.Contains(taken, name) {
				taken = append(taken, name)
				drawn = append(drawn, name)
			}
		}
		return drawn
	}
	diff := []byte{0, 0, 0, 0}
	section := func(letter string, fields []string, draw func() bson.RawValue) {
		if len(fields) == 0 {
			return
		}
		doc := []byte{0, 0, 0, 0}
		for _, name := range fields {
			doc = appendElem(doc, name, draw())
		}
		diff = appendElem(diff, letter, container(bson.TypeEmbeddedDocument, finish(doc)))
	}
	value := func() bson.RawValue { return Value(t, depth) }
	section("d", draw(3), func() bson.RawValue {
		return bson.RawValue{Type: bson.TypeBoolean, Value: []byte{0}}
	})
	section("u", draw(3), value)
	section("i", draw(3), value)
	if binary {
		section("b", draw(2), func() bson.RawValue { return binaryDiff(t) })
	}
	if depth < maxDepth {
		for _, name := range draw(3) {
			diff = appendElem(diff, "s"+name, container(bson.TypeEmbeddedDocument, subDiff(t, depth+1, binary)))
		}
	}
	if len(diff) == 4 {
		// An empty diff is not in the grammar.
		name := rapid.SampledFrom([]string{"a", "b", "0"}).Draw(t, "name")
		section("u", []string{name}, value)
	}
	return finish(diff)
}

func binaryDiff(t *rapid.T) bson.RawValue {
	doc := bsoncore.AppendInt32Element([]byte{0, 0, 0, 0}, "o", rapid.Int32Range(0, 12).Draw(t, "offset"))
	doc = bsoncore.AppendBinaryElement(doc, "d", 0, rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(t, "data"))
	return container(bson.TypeEmbeddedDocument, finish(doc))
}

func subDiff(t *rapid.T, depth int, binary bool) bson.Raw {
	if rapid.Bool().Draw(t, "array") {
		return arrayDiff(t, depth, binary)
	}
	return objectDiff(t, depth, binary)
}

func arrayDiff(t *rapid.T, depth int, binary bool) bson.Raw {
	diff := bsoncore.AppendBooleanElement([]byte{0, 0, 0, 0}, "a", true)
	end := 9
	if rapid.Bool().Draw(t, "resize") {
		end = rapid.IntRange(0, 8).Draw(t, "length")
		diff = bsoncore.AppendInt32Element(diff, "l", int32(end))
	}
	for i := range end {
		switch rapid.IntRange(0, 7).Draw(t, "element") {
		case 0:
			diff = appendElem(diff, "u"+strconv.Itoa(i), Value(t, depth))
		case 1:
			if depth < maxDepth {
				diff = appendElem(diff, "s"+strconv.Itoa(i), container(bson.TypeEmbeddedDocument, subDiff(t, depth+1, binary)))
			}
		}
	}
	return finish(diff)
}
