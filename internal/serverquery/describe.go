package serverquery

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
)

// maxConsidered is how many values of a field the server shows.
const maxConsidered = 10

// report builds a description field by field.
type report struct{ dst []byte }

func (r *report) text(name, text string) { r.dst = bsoncore.AppendStringElement(r.dst, name, text) }

func (r *report) considered(values []val, more bool) {
	if len(values) == 1 {
		r.dst = append(bsoncore.AppendHeader(r.dst, bsoncore.Type(values[0].t), "consideredValue"), values[0].b...)
	} else {
		array := bsoncore.NewArrayBuilder()
		for _, v := range values {
			array.AppendValue(bsoncore.Value{Type: bsoncore.Type(v.t), Data: v.b})
		}
		r.dst = bsoncore.AppendArrayElement(r.dst, "consideredValues", array.Build())
	}
	if more {
		r.dst = bsoncore.AppendBooleanElement(r.dst, "consideredValuesTruncated", true)
	}
}

// names adds a name, or several in order: consideredType or consideredTypes.
func (r *report) names(field string, names []string) {
	slices.Sort(names)
	names = slices.Compact(names)
	switch len(names) {
	case 0:
	case 1:
		r.text(field, names[0])
	default:
		array := bsoncore.NewArrayBuilder()
		for _, name := range names {
			array.AppendString(name)
		}
		r.dst = bsoncore.AppendArrayElement(r.dst, field+"s", array.Build())
	}
}

func typesOf(values []val) []string {
	var names []string
	for _, v := range values {
		names = append(names, bsontext.TypeName(v.t))
	}
	return names
}

var numberTypes = []string{"decimal", "double", "int", "long"}

// describe says in the server's words why a document did not match.
func (n *pathNode) describe(doc []byte) bson.Raw {
	var r report
	r.text("operatorName", n.note.operator)
	r.dst = bsoncore.AppendDocumentElement(r.dst, "specifiedAs", n.note.spec)
	why, expected := leafReason(n.leaf)
	if _, ok := n.leaf.(existence); ok {
		r.text("reason", why)
		return bsoncore.BuildDocument(nil, r.dst)
	}
	seen := &collector{limit: maxConsidered}
	end := elementsOnly
	if n.end == arrayOnly {
		end = arrayOnly
	}
	visit(doc, n.path, seen, end)
	present := len(seen.values) > 0 || visit(doc, n.path, existence{}, elementsAndArray).ok
	switch {
	case !present:
		r.text("reason", "field was missing")
		return bsoncore.BuildDocument(nil, r.dst)
	case len(expected) > 0 && !slices.ContainsFunc(seen.values, func(v val) bool {
		return slices.Contains(expected, bsontext.TypeName(v.t))
	}):
		r.text("reason", "type did not match")
		r.names("consideredType", typesOf(seen.values))
		r.names("expectedType", slices.Clone(expected))
	default:
		r.text("reason", why)
	}
	r.considered(seen.values, seen.more)
	if _, ok := n.leaf.(*typeSet); ok {
		r.names("consideredType", typesOf(seen.values))
	}
	return bsoncore.BuildDocument(nil, r.dst)
}

// leafReason returns the words for a leaf, and the names of the types that it is
// about, if it is about some only.
func leafReason(l leaf) (reason string, types []string) {
	switch l.(type) {
	case existence:
		return "path does not exist", nil
	case *typeSet:
		return "type did not match", nil
	case *membership:
		return "no matching value found in array", nil
	case *pattern:
		return "regular expression did not match", []string{"regex", "string", "symbol"}
	case *modulus:
		return "$mod did not evaluate to expected remainder", numberTypes
	case *size:
		return "array length was not equal to given size", []string{"array"}
	case *elemMatchValue, *elemMatchObject:
		return "array did not satisfy the child predicate", []string{"array"}
	default:
		return "comparison failed", nil
	}
}
