package serverquery

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// parseTypes reads the operand of $type: a number, a name, or an array of them.
func parseTypes(name string, v val) (*typeSet, error) {
	s := &typeSet{}
	if v.t != bson.TypeArray {
		return s, s.add(v)
	}
	for _, e := range elems(v.b) {
		if err := s.add(valueOf(&e)); err != nil {
			return nil, err
		}
	}
	if len(s.types) == 0 && !s.number {
		return nil, failedToParse("%s must match at least one type", name)
	}
	return s, nil
}

func (s *typeSet) add(v val) error {
	if text, ok := v.text(); ok && v.t == bson.TypeString {
		if text == "number" {
			s.number = true
			return nil
		}
		for _, n := range types {
			if bsontext.TypeName(n.t) == text {
				s.types = append(s.types, n.t)
				return nil
			}
		}
		return badValue("Unknown type name alias: %s", text)
	}
	if !v.number() {
		return badValue("type must be represented as a number or a string")
	}
	number, ok := v.whole()
	if ok && number == 0 {
		return badValue("Invalid numerical type code: 0. Instead use {$exists:false}.")
	}
	for _, n := range types {
		if ok && n.number == number {
			s.types = append(s.types, n.t)
			return nil
		}
	}
	return badValue("Invalid numerical type code: %s", bsontext.Value(v.raw()))
}

func parseModulus(v val) (*modulus, error) {
	if v.t != bson.TypeArray {
		return nil, badValue("malformed mod, needs to be an array")
	}
	list := elems(v.b)
	switch {
	case len(list) < 2:
		return nil, badValue("malformed mod, not enough elements")
	case len(list) > 2:
		return nil, badValue("malformed mod, too many elements")
	}
	var n [2]int64
	for i, what := range []string{"divisor", "remainder"} {
		e := valueOf(&list[i])
		if !e.number() {
			return nil, badValue("malformed mod, %s not a number", what)
		}
		var ok bool
		if n[i], ok = cutOff(e); !ok {
			return nil, badValue("malformed mod, %s value is invalid :: caused by :: Unable to coerce NaN/Inf to integral type", what)
		}
	}
	if n[0] == 0 {
		return nil, badValue("divisor cannot be 0")
	}
	return &modulus{n[0], n[1]}, nil
}

func parseSize(e *rawbson.Elem) (*size, error) {
	v := valueOf(e)
	what := ""
	n, ok := v.whole()
	switch {
	case !v.number():
		what = "Expected a number in"
	case !ok:
		what = "Expected an integer"
	case n < 0:
		what = "Expected a non-negative number in"
	default:
		return &size{n}, nil
	}
	return nil, failedToParse("Failed to parse $size. %s: %s", what, bsontext.Element("$size", v.raw()))
}
