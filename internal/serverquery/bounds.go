package serverquery

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// Bounds are a filter's bounds on one field: a store may read only the
// documents within them, and must still apply the filter.
type Bounds struct {
	// Points are the only values that the field can have, in no order, if Exact is
	// set. An empty list means that nothing matches.
	Points []bson.RawValue
	// Exact is true if Points is valid.
	Exact bool
	// Low and High are limits, of type 0 if there is none. An open limit is not
	// itself among the values. Low may lie above High.
	Low, High         bson.RawValue
	LowOpen, HighOpen bool
	// Types are the only ones that the field can have, if there are any.
	Types []bson.Type
}

// Bounds returns the bounds of the filter's equalities and comparisons on the
// field. They hold for documents in which the field is not an array, and no part
// of its path is. Strings under a collation, and null, do not bound anything.
func (m *Matcher) Bounds(field string) Bounds {
	var b Bounds
	b.narrow(m.root, field)
	return b
}

func (b *Bounds) narrow(n node, field string) {
	switch n := n.(type) {
	case *allNode:
		for _, part := range n.parts {
			b.narrow(part, field)
		}
	case *anyNode:
		if len(n.parts) == 1 && !n.nor {
			b.narrow(n.parts[0], field)
		}
	case *pathNode:
		if n.name != field {
			return
		}
		switch l := n.leaf.(type) {
		case *comparison:
			if bounding(l.rhs, l.coll != nil) && (l.op == opEq || !l.nan) {
				b.compare(l)
			}
		case *pattern:
			// Strings, and far after them the expression itself.
			b.compare(&comparison{op: opGte, rhs: val{bson.TypeString, []byte("\x01\x00\x00\x00\x00")}})
		case *typeSet:
			if !slices.Contains(l.types, bson.TypeArray) {
				b.Types = slices.Clone(l.types)
				if l.number {
					b.Types = append(b.Types, bson.TypeDouble, bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128)
				}
			}
		case *membership:
			usable := len(l.regexes) == 0 && !slices.ContainsFunc(l.values, func(v val) bool {
				return !bounding(v, l.coll != nil)
			})
			if usable {
				b.points(l.values)
			}
		}
	}
}

// bounding reports whether a comparison with v matches exactly one side of v in
// an ordered map.
func bounding(v val, collated bool) bool {
	switch v.t {
	case bson.TypeNull, bson.TypeUndefined, bson.TypeMinKey, bson.TypeMaxKey, bson.TypeArray, bson.TypeRegex:
		return false
	case bson.TypeString, bson.TypeSymbol, bson.TypeEmbeddedDocument:
		return !collated
	default:
		return true
	}
}

func (b *Bounds) points(values []val) {
	var kept []bson.RawValue
	for _, v := range values {
		if !b.Exact || slices.ContainsFunc(b.Points, func(p bson.RawValue) bool { return fromRaw(p).equal(v, nil) }) {
			kept = append(kept, v.raw())
		}
	}
	b.Points, b.Exact = kept, true
}

func (b *Bounds) compare(c *comparison) {
	switch c.op {
	case opEq:
		b.points([]val{c.rhs})
	case opGt, opGte:
		open := c.op == opGt
		if order := compareToLimit(c.rhs, b.Low); b.Low.Type == 0 || order > 0 || order == 0 && open {
			b.Low, b.LowOpen = c.rhs.raw(), open
		}
	default:
		open := c.op == opLt
		if order := compareToLimit(c.rhs, b.High); b.High.Type == 0 || order < 0 || order == 0 && open {
			b.High, b.HighOpen = c.rhs.raw(), open
		}
	}
}

func compareToLimit(v val, limit bson.RawValue) int {
	return compareValues(v, fromRaw(limit), nil)
}

// Equality is a path that a filter wants to be equal to a value.
type Equality struct {
	// Path is the dotted path.
	Path string
	// Value is a view into the filter.
	Value bson.RawValue
}

// Equalities returns the equalities that an upsert takes from the filter for the
// new document, ordered by path. The server refuses a path that stands twice,
// and a path below another: NotSingleValueField.
func (m *Matcher) Equalities() ([]Equality, error) {
	var list []Equality
	list, err := equalities(m.root, list)
	slices.SortFunc(list, func(a, b Equality) int { return strings.Compare(a.Path, b.Path) })
	return list, err
}

func equalities(n node, list []Equality) ([]Equality, error) {
	switch n := n.(type) {
	case *allNode:
		for _, part := range n.parts {
			var err error
			if list, err = equalities(part, list); err != nil {
				return nil, err
			}
		}
	case *anyNode:
		if len(n.parts) == 1 && !n.nor {
			return equalities(n.parts[0], list)
		}
	case *pathNode:
		switch l := n.leaf.(type) {
		case *comparison:
			if l.op == opEq {
				return addEquality(list, Equality{n.name, l.rhs.raw()})
			}
		case *membership:
			if len(l.values) == 1 && len(l.regexes) == 0 {
				return addEquality(list, Equality{n.name, l.values[0].raw()})
			}
		}
	}
	return list, nil
}

func addEquality(list []Equality, e Equality) ([]Equality, error) {
	for _, other := range list {
		switch {
		case other.Path == e.Path:
			return nil, servererr.New(servererr.NotSingleValueField,
				"cannot infer query fields to set, path '%s' is matched twice", e.Path)
		case within(e.Path, other.Path), within(other.Path, e.Path):
			return nil, servererr.New(servererr.NotSingleValueField,
				"cannot infer query fields to set, both paths '%s' and '%s' are matched", e.Path, other.Path)
		}
	}
	return append(list, e), nil
}
