package serverquery

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// maxSchemaDepth is how deep schemas may be nested in each other, in levels.
const maxSchemaDepth = 100

// schema is a compiled $jsonSchema. Each rule concerns values of one kind and
// accepts all others. They stand in the order in which the server checks them.
type schema struct {
	rules []rule
	types *typeSet
}

// rule reports whether it accepts a value.
type rule func(v val) bool

// schemaNode is $jsonSchema.
type schemaNode struct{ schema *schema }

func (n *schemaNode) match(doc []byte) outcome {
	return found(n.schema.accepts(val{bson.TypeEmbeddedDocument, doc}))
}

func (n *schemaNode) matchValue(v val) outcome { return found(n.schema.accepts(v)) }

func (s *schema) acceptsType(v val) bool {
	if s.types == nil {
		return true
	}
	ok, _ := s.types.test(v)
	return ok
}

func (s *schema) accepts(v val) bool {
	if !s.acceptsType(v) {
		return false
	}
	for _, rule := range s.rules {
		if !rule(v) {
			return false
		}
	}
	return true
}

// known are the keywords that are checked: those of the validators of time-series
// buckets, in the server's order, and type.
var known = []string{"properties", "additionalProperties", "required", "bsonType", "type"}

func parseSchema(doc []byte, depth int) (*schema, error) {
	if depth > maxSchemaDepth {
		return nil, badValue("exceeded maximum depth of %d levels of $jsonSchema", maxSchemaDepth)
	}
	words := map[string]rawbson.Elem{}
	for _, e := range elems(doc) {
		switch name := e.Name(); {
		case slices.Contains(known, name):
			if _, twice := words[name]; twice {
				return nil, failedToParse("Duplicate $jsonSchema keyword: %s", name)
			}
			words[name] = e
		case slices.Contains(unmodelled, name):
			return nil, notImplemented("$jsonSchema keyword '%s'", name)
		case name == "$ref" || name == "$schema" || name == "default" || name == "definitions" || name == "format" || name == "id":
			return nil, failedToParse("$jsonSchema keyword '%s' is not currently supported", name)
		default:
			return nil, failedToParse("Unknown $jsonSchema keyword: %s", name)
		}
	}
	s := &schema{}
	if err := s.parseTypes(words); err != nil {
		return nil, err
	}
	return s, s.parseObjects(words, depth)
}

// unmodelled are keywords that the server has and this package does not.
var unmodelled = []string{
	"allOf", "anyOf", "oneOf", "not", "dependencies", "multipleOf", "minProperties", "maxProperties",
	"patternProperties", "uniqueItems", "additionalItems", "encrypt", "encryptMetadata",
	"maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "pattern", "maxLength", "minLength",
	"minItems", "maxItems", "items", "enum", "title", "description",
}

func mustBe(keyword, what string) error {
	return servererr.New(servererr.TypeMismatch, "$jsonSchema keyword '%s' must be %s", keyword, what)
}

func (s *schema) parseTypes(words map[string]rawbson.Elem) error {
	e, hasType := words["type"]
	if b, ok := words["bsonType"]; ok {
		if hasType {
			return failedToParse("Cannot specify both $jsonSchema keywords 'type' and 'bsonType'")
		}
		e = b
	} else if !hasType {
		return nil
	}
	list := []rawbson.Elem{e}
	if array, ok := e.Array(); ok {
		if list = elems(array); len(list) == 0 {
			return failedToParse("$jsonSchema keyword '%s' must name at least one type", e.Name())
		}
	}
	s.types = &typeSet{}
	for i := range list {
		text, ok := list[i].Text()
		switch {
		case !ok:
			return mustBe(e.Name(), "either a string or an array of strings")
		case !hasType:
			if err := s.types.add(valueOf(&list[i])); err != nil {
				return err
			}
		case text == "integer":
			return failedToParse("$jsonSchema type 'integer' is not currently supported.")
		case text == "boolean":
			s.types.types = append(s.types.types, bson.TypeBoolean)
		case text == "object" || text == "array" || text == "number" || text == "string" || text == "null":
			if err := s.types.add(valueOf(&list[i])); err != nil {
				return err
			}
		default:
			return badValue("Unknown type name alias: %s", text)
		}
	}
	return nil
}
