package serverquery

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// property is a field with a schema of its own.
type property struct {
	name   string
	schema *schema
}

func (s *schema) parseObjects(words map[string]rawbson.Elem, depth int) error {
	properties, err := s.parseProperties(words, depth)
	if err != nil {
		return err
	}
	if err := s.parseAdditional(words, properties); err != nil {
		return err
	}
	return s.parseRequired(words)
}

func (s *schema) parseProperties(words map[string]rawbson.Elem, depth int) ([]property, error) {
	e, ok := words["properties"]
	if !ok {
		return nil, nil
	}
	doc, ok := e.Document()
	if !ok {
		return nil, mustBe("properties", "an object")
	}
	var list []property
	for _, f := range elems(doc) {
		inner, ok := f.Document()
		if !ok {
			return nil, mustBe("properties", "an object of schemas; '"+f.Name()+"' is none and")
		}
		sub, err := parseSchema(inner, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, property{f.Name(), sub})
	}
	s.rules = append(s.rules, func(v val) bool {
		if v.t != bson.TypeEmbeddedDocument {
			return true
		}
		for _, p := range list {
			if e, present := rawbson.Lookup(v.b, p.name); present && !p.schema.accepts(valueOf(&e)) {
				return false
			}
		}
		return true
	})
	return list, nil
}

func (s *schema) parseAdditional(words map[string]rawbson.Elem, properties []property) error {
	e, ok := words["additionalProperties"]
	if !ok {
		return nil
	}
	allowed, ok := e.Bool()
	switch {
	case !ok && e.Type == bson.TypeEmbeddedDocument:
		return notImplemented("$jsonSchema keyword 'additionalProperties' with a schema")
	case !ok:
		return mustBe("additionalProperties", "an object or a boolean")
	case allowed:
		return nil
	}
	s.rules = append(s.rules, func(v val) bool {
		if v.t != bson.TypeEmbeddedDocument {
			return true
		}
		return !slices.ContainsFunc(elems(v.b), func(f rawbson.Elem) bool {
			return !slices.ContainsFunc(properties, func(p property) bool { return f.Is(p.name) })
		})
	})
	return nil
}

func (s *schema) parseRequired(words map[string]rawbson.Elem) error {
	e, ok := words["required"]
	if !ok {
		return nil
	}
	array, ok := e.Array()
	if !ok {
		return mustBe("required", "an array")
	}
	var names []string
	for _, f := range elems(array) {
		name, ok := f.Text()
		if !ok {
			return mustBe("required", "an array of strings")
		}
		if slices.Contains(names, name) {
			return failedToParse("$jsonSchema keyword 'required' array cannot contain duplicate values")
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return failedToParse("$jsonSchema keyword 'required' cannot be an empty array")
	}
	s.rules = append(s.rules, func(v val) bool {
		return v.t != bson.TypeEmbeddedDocument || !slices.ContainsFunc(names, func(name string) bool {
			_, ok := rawbson.Lookup(v.b, name)
			return !ok
		})
	})
	return nil
}
