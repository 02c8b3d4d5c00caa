package ddl

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// fields is a document split into its fields, in order. Values are views.
type fields []field

type field struct {
	name  string
	value bson.RawValue
}

func split(doc bson.Raw) fields {
	var all fields
	it := rawbson.NewIter(doc)
	for it.Next() {
		all = append(all, field{string(it.Key), it.Raw()})
	}
	return all
}

func (f fields) document() bson.Raw {
	i, doc := bsoncore.AppendDocumentStart(nil)
	for _, x := range f {
		doc = appendValue(doc, x.name, x.value)
	}
	doc = append(doc, 0)
	return bson.Raw(bsoncore.UpdateLength(doc, i, int32(len(doc))-i))
}

func appendValue(dst []byte, name string, v bson.RawValue) []byte {
	dst = bsoncore.AppendHeader(dst, bsoncore.Type(v.Type), name)
	return append(dst, v.Value...)
}

// appendTo adds the fields to a command.
func (f fields) appendTo(cmd *bsoncore.DocumentBuilder) *bsoncore.DocumentBuilder {
	for _, x := range f {
		cmd.AppendValue(x.name, bsoncore.Value{Type: bsoncore.Type(x.value.Type), Data: x.value.Value})
	}
	return cmd
}

func (f fields) get(name string) (bson.RawValue, bool) {
	for _, x := range f {
		if x.name == name {
			return x.value, true
		}
	}
	return bson.RawValue{}, false
}

// truth returns a field as the server reads a flag.
func (f fields) truth(name string) bool {
	v, ok := f.get(name)
	e := rawbson.Elem{Type: v.Type, Value: v.Value}
	return ok && e.Truth()
}

// set returns the fields with one set, in its place or at the end.
func (f fields) set(name string, v bson.RawValue) fields {
	f = slices.Clone(f)
	for i := range f {
		if f[i].name == name {
			f[i].value = v
			return f
		}
	}
	return append(f, field{name, v})
}

// without returns the fields without those named.
func (f fields) without(names ...string) fields {
	return slices.DeleteFunc(slices.Clone(f), func(x field) bool { return slices.Contains(names, x.name) })
}

// only returns the fields named.
func (f fields) only(names ...string) fields {
	return slices.DeleteFunc(slices.Clone(f), func(x field) bool { return !slices.Contains(names, x.name) })
}

// setFlag sets a flag that the server omits where it is false.
func (f fields) setFlag(name string, on bool) fields {
	if on {
		return f.set(name, boolValue(true))
	}
	return f.without(name)
}

func (f fields) names() []string {
	names := make([]string, len(f))
	for i := range f {
		names[i] = f[i].name
	}
	return names
}

func boolValue(b bool) bson.RawValue {
	return bson.RawValue{Type: bson.TypeBoolean, Value: bsoncore.AppendBoolean(nil, b)}
}

func stringValue(s string) bson.RawValue {
	return bson.RawValue{Type: bson.TypeString, Value: bsoncore.AppendString(nil, s)}
}

func documentValue(doc bson.Raw) bson.RawValue {
	return bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: doc}
}

// textOf returns a string field of a document, "" where there is none.
func textOf(doc bson.Raw, name string) string {
	e, _ := rawbson.Lookup(doc, name)
	text, _ := e.Text()
	return text
}
