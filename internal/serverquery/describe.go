package serverquery

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
)

// maxConsidered is how many values of a field the server shows.
const maxConsidered = 10

// reasons are the server's words for a failed operator, and for one that should
// have failed.
type reasons struct{ failed, matched string }

func (r reasons) pick(inverted bool) string {
	if inverted {
		return r.matched
	}
	return r.failed
}

// report builds a description field by field.
type report struct{ dst []byte }

func (r *report) text(name, text string) { r.dst = bsoncore.AppendStringElement(r.dst, name, text) }

func (r *report) note(n note) {
	r.text("operatorName", n.operator)
	r.dst = bsoncore.AppendDocumentElement(r.dst, "specifiedAs", n.spec)
}

func (r *report) value(name string, v val) {
	r.dst = append(bsoncore.AppendHeader(r.dst, bsoncore.Type(v.t), name), v.b...)
}

func (r *report) values(name string, values []val) {
	array := bsoncore.NewArrayBuilder()
	for _, v := range values {
		array.AppendValue(bsoncore.Value{Type: bsoncore.Type(v.t), Data: v.b})
	}
	r.dst = bsoncore.AppendArrayElement(r.dst, name, array.Build())
}

func (r *report) considered(values []val, more bool) {
	if len(values) == 1 {
		r.value("consideredValue", values[0])
	} else {
		r.values("consideredValues", values)
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

func (r *report) done() bson.Raw { return bsoncore.BuildDocument(nil, r.dst) }

func typesOf(values []val) []string {
	var names []string
	for _, v := range values {
		names = append(names, bsontext.TypeName(v.t))
	}
	return names
}

var numberTypes = []string{"decimal", "double", "int", "long"}

func (n *pathNode) describe(doc []byte, inverted bool) bson.Raw {
	var r report
	r.note(n.note)
	why, expected := leafReasons(n)
	if _, ok := n.leaf.(existence); ok {
		r.text("reason", why.pick(inverted))
		return r.done()
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
		return r.done()
	case len(expected) > 0 && !slices.ContainsFunc(seen.values, func(v val) bool {
		return slices.Contains(expected, bsontext.TypeName(v.t))
	}):
		r.text("reason", "type did not match")
		r.names("consideredType", typesOf(seen.values))
		r.names("expectedType", slices.Clone(expected))
	default:
		r.text("reason", why.pick(inverted))
	}
	r.considered(seen.values, seen.more)
	if _, ok := n.leaf.(*typeSet); ok {
		r.names("consideredType", typesOf(seen.values))
	}
	return r.done()
}

// leafReasons returns the words for a leaf, and the names of the types that it
// is about, if it is about some only.
func leafReasons(n *pathNode) (reasons, []string) {
	switch n.leaf.(type) {
	case existence:
		return reasons{"path does not exist", "path does exist"}, nil
	case *typeSet:
		return reasons{"type did not match", "type did match"}, nil
	case *membership:
		return reasons{"no matching value found in array", "matching value found in array"}, nil
	case *pattern:
		return reasons{"regular expression did not match", "regular expression did match"},
			[]string{"regex", "string", "symbol"}
	case *modulus:
		return reasons{"$mod did not evaluate to expected remainder", "$mod did evaluate to expected remainder"}, numberTypes
	case *size:
		return reasons{"array length was not equal to given size", "array length was equal to given size"}, []string{"array"}
	case *elemMatchValue, *elemMatchObject:
		return reasons{"array did not satisfy the child predicate", "array did satisfy the child predicate"}, []string{"array"}
	default:
		return reasons{"comparison failed", "comparison succeeded"}, nil
	}
}

// clauses describes a list: its name, and the parts that made it fail.
func clauses(operator, field string, parts []node, doc []byte, inverted bool, take func(matched bool) bool) bson.Raw {
	array := bsoncore.NewArrayBuilder()
	for i, part := range parts {
		o := part.match(doc)
		if o.err == nil && !take(o.ok) {
			continue
		}
		details := part.describe(doc, inverted)
		if details == nil {
			continue
		}
		clause := bsoncore.AppendInt32Element(nil, "index", int32(i))
		clause = bsoncore.AppendDocumentElement(clause, "details", details)
		array.AppendDocument(bsoncore.BuildDocument(nil, clause))
	}
	var r report
	r.text("operatorName", operator)
	r.dst = bsoncore.AppendArrayElement(r.dst, field, array.Build())
	return r.done()
}

func fails(matched bool) bool { return !matched }

func holds(matched bool) bool { return matched }

func (n *allNode) describe(doc []byte, inverted bool) bson.Raw {
	if n.note.operator == "$all" {
		var r report
		r.note(n.note)
		why := reasons{"array did not contain all specified values", "array did contain all specified values"}
		first, _ := n.parts[0].(*pathNode)
		seen := &collector{limit: maxConsidered}
		visit(doc, first.path, seen, elementsOnly)
		if len(seen.values) == 0 && !visit(doc, first.path, existence{}, elementsAndArray).ok {
			r.text("reason", "field was missing")
			return r.done()
		}
		r.text("reason", why.pick(inverted))
		r.considered(seen.values, seen.more)
		return r.done()
	}
	if inverted {
		return clauses("$and", "clausesSatisfied", n.parts, doc, true, holds)
	}
	return clauses("$and", "clausesNotSatisfied", n.parts, doc, false, fails)
}

func (n *anyNode) describe(doc []byte, inverted bool) bson.Raw {
	operator := "$or"
	if n.nor {
		operator, inverted = "$nor", !inverted
	}
	if inverted {
		return clauses(operator, "clausesSatisfied", n.parts, doc, true, holds)
	}
	return clauses(operator, "clausesNotSatisfied", n.parts, doc, false, fails)
}

func (n *notNode) describe(doc []byte, inverted bool) bson.Raw {
	details := n.part.describe(doc, !inverted)
	if n.hidden || details == nil {
		return details
	}
	var r report
	r.text("operatorName", "$not")
	r.dst = bsoncore.AppendDocumentElement(r.dst, "details", details)
	return r.done()
}

func (n *constNode) describe([]byte, bool) bson.Raw {
	var r report
	r.note(n.note)
	if strings.HasSuffix(n.note.operator, "True") {
		r.text("reason", "expression always evaluates to true")
	} else {
		r.text("reason", "expression always evaluates to false")
	}
	return r.done()
}

func (n *exprNode) describe(doc []byte, inverted bool) bson.Raw {
	var r report
	r.note(n.note)
	v, ok, err := n.expr.Eval(doc)
	if err != nil {
		r.text("reason", "failed to evaluate aggregation expression")
		return r.done()
	}
	r.text("reason", reasons{"expression did not match", "expression did match"}.pick(inverted))
	if ok {
		r.value("expressionResult", fromRaw(v))
	}
	return r.done()
}
