package indexspec

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// Missing returns the specifications that the collection does not have yet, and refuses
// those that conflict with what it has.
func Missing(v Version, coll *storage.Collection, specs []bson.Raw) ([]bson.Raw, error) {
	existing := make([]bson.Raw, 0, len(coll.Indexes)+len(specs))
	for _, index := range coll.Indexes {
		existing = append(existing, index.Spec)
	}
	var added []bson.Raw
	for _, spec := range specs {
		same, err := findIndex(v, existing, spec)
		if err != nil {
			return nil, err
		}
		if !same {
			added = append(added, spec)
			existing = append(existing, spec)
		}
	}
	return added, nil
}

// findIndex reports whether an index with the name and the signature is there.
func findIndex(v Version, existing []bson.Raw, spec bson.Raw) (bool, error) {
	name, _ := arg.Text(spec, "name")
	for _, old := range existing {
		if oldName, _ := arg.Text(old, "name"); oldName != name {
			continue
		}
		switch {
		case signature(v, old) != signature(v, spec):
			return false, servererr.New(servererr.IndexKeySpecsConflict,
				"An existing index has the same name as the requested index. When index names are not specified, they are auto generated and can cause conflicts. Please refer to our documentation. Requested index: %s, existing index: %s",
				bsontext.Document(spec), bsontext.Document(old))
		case differentOptions(old, spec):
			return false, servererr.New(servererr.IndexOptionsConflict,
				"An equivalent index already exists with the same name but different options. Requested index: %s, existing index: %s",
				bsontext.Document(spec), bsontext.Document(old))
		}
		return true, nil
	}
	for _, old := range existing {
		if signature(v, old) == signature(v, spec) {
			if differentOptions(old, spec) {
				return false, servererr.New(servererr.IndexOptionsConflict,
					"An equivalent index already exists with a different name and options. Requested index: %s, existing index: %s",
					bsontext.Document(spec), bsontext.Document(old))
			}
			oldName, _ := arg.Text(old, "name")
			return false, servererr.New(servererr.IndexOptionsConflict, "Index already exists with a different name: %s", oldName)
		}
	}
	return false, nil
}

// differentOptions compares the options that are not part of the signature.
func differentOptions(old, spec bson.Raw) bool {
	for _, name := range []string{
		"unique", "sparse", "expireAfterSeconds", "weights", "default_language", "language_override", "textIndexVersion",
		"2dsphereIndexVersion", "bits", "min", "max",
	} {
		if field(old, name) != field(spec, name) {
			return true
		}
	}
	return false
}

// signature is what distinguishes indexes: key, collation, partial filter, and
// since 5.0 unique and sparse. Key directions compare as numbers.
func signature(v Version, spec bson.Raw) string {
	e, _ := rawbson.Lookup(spec, "key")
	key, _ := e.Document()
	var b strings.Builder
	it := rawbson.NewIter(key)
	for it.Next() {
		b.WriteString(it.Name())
		b.WriteByte(0)
		v := it.Raw()
		if f, ok := v.AsFloat64OK(); ok {
			if f < 0 {
				b.WriteString("-")
			} else {
				b.WriteString("+")
			}
		} else {
			b.WriteString(v.String())
		}
		b.WriteByte(0)
	}
	parts := []string{"collation", "partialFilterExpression", "wildcardProjection"}
	if v.atLeast(5, 0) {
		parts = append(parts, "unique", "sparse")
	}
	for _, name := range parts {
		b.WriteString(field(spec, name))
		b.WriteByte(1)
	}
	return b.String()
}

// field is the value of a field as text that is equal for equal values; numbers
// compare by value.
func field(doc bson.Raw, name string) string {
	e, ok := rawbson.Lookup(doc, name)
	if !ok {
		return ""
	}
	if e.Type == bson.TypeBoolean || name == "sparse" || name == "unique" {
		if on, ok := arg.Flag(e.Raw()); ok {
			if !on {
				return ""
			}
			return "true"
		}
	}
	if n, number := e.Int64(); number {
		return string(bsontext.AppendValue(nil, bson.RawValue{Type: bson.TypeInt64, Value: bsoncore.AppendInt64(nil, n)}))
	}
	return string(bsontext.AppendValue(nil, e.Raw()))
}
