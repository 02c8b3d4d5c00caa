package storage

import (
	"slices"
	"strings"
	"unsafe"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// indexKey is a key of an index for a document: one value for each field.
type indexKey struct {
	bytes  string
	values []bson.RawValue
}

// keys returns the keys of a document in their order, each once. An array gives a
// key for each of its elements, as in the server's key generator; two arrays that
// do not lie in one another are refused with CannotIndexParallelArrays.
func (c *constraint) keys(doc bson.Raw) ([]indexKey, error) {
	if c.partial != nil && !c.partial(doc) {
		return nil, nil
	}
	switch {
	case c.special != nil:
		return nil, c.special(doc)
	case c.hashed:
		return nil, c.refuseArrays(doc)
	}
	g := generator{c: c}
	start := state{paths: slices.Clone(c.fields), fixed: make([]bson.RawValue, len(c.fields))}
	if err := g.expand(start, doc, make([]positional, len(c.fields))); err != nil {
		return nil, err
	}
	if len(g.out) == 0 && !c.sparse {
		for i := range start.fixed {
			start.fixed[i] = null
		}
		g.emit(start.fixed)
	}
	if len(g.out) > 1 {
		slices.SortStableFunc(g.out, func(a, b indexKey) int { return strings.Compare(a.bytes, b.bytes) })
		g.out = slices.CompactFunc(g.out, func(a, b indexKey) bool { return a.bytes == b.bytes })
	}
	return g.out, nil
}

var (
	null      = bson.RawValue{Type: bson.TypeNull}
	undefined = bson.RawValue{Type: bson.TypeUndefined}
)

// generator makes the keys of one document.
type generator struct {
	c   *constraint
	out []indexKey
}

// state is how far the fields of an index have been followed.
type state struct {
	// paths are the remainders of the fields' paths; fixed has the values of those
	// that are followed to their end.
	paths []string
	fixed []bson.RawValue
	// missing counts the fields that the document does not have.
	missing int
}

// positional is the element of an array that a path names by its number, as in
// "a.0.b", followed as far as there is no further array.
type positional struct {
	array bson.Raw
	elem  rawbson.Elem
	named bool
	// value is the value that the path leads to, rest the part of the path that
	// is left.
	value rawbson.Elem
	found bool
	rest  string
}

// follow goes along a path to its end, or to the first array on it; rest is the
// remainder of the path.
func follow(obj bson.Raw, path string) (e rawbson.Elem, rest string, found bool) {
	for {
		name, tail, _ := strings.Cut(path, ".")
		e, found = rawbson.Lookup(obj, name)
		if !found || tail == "" || e.Type == bson.TypeArray {
			return e, tail, found
		}
		inner, isDoc := e.Document()
		if !isDoc {
			return rawbson.Elem{}, tail, false
		}
		obj, path = inner, tail
	}
}

// next follows the path of one field further.
func (g *generator) next(obj bson.Raw, path string, p *positional) (e rawbson.Elem, rest string, found, nested bool, err error) {
	name, _, _ := strings.Cut(path, ".")
	if _, has := rawbson.Lookup(obj, name); has {
		if p.named {
			return e, "", false, false, ambiguous(p)
		}
		e, rest, found = follow(obj, path)
		return e, rest, found, false, nil
	}
	if p.named {
		return p.value, p.rest, p.found, p.elem.Type == bson.TypeArray, nil
	}
	return e, "", false, false, nil
}

// ambiguous is the refusal of {a: [{0: 1}]} under an index on a.0.
func ambiguous(p *positional) error {
	const most = 1024
	array := bsontext.Document(p.array)
	if len(array) >= most {
		array = array[:most/3] + " .......... " + array[len(array)-most/3:]
	}
	return servererr.New(ambiguousArrayField, "Ambiguous field name found in array (do not use numeric field names in "+
		"embedded elements in an array), field: '%s' for array: %s", p.elem.Name(), array)
}

// Numbers without a name of the server's errors about index keys.
const (
	ambiguousArrayField servererr.Code = 16746
	hashedArray         servererr.Code = 16766
)

func (g *generator) expand(s state, obj bson.Raw, pos []positional) error {
	var array rawbson.Elem
	var hasArray bool
	through := make([]bool, len(s.paths)) // the fields that go through array
	unembedded := true
	for i, path := range s.paths {
		if path == "" {
			continue
		}
		e, rest, found, nested, err := g.next(obj, path, &pos[i])
		s.paths[i] = rest
		switch {
		case err != nil:
			return err
		case !found:
			s.fixed[i], s.paths[i] = null, ""
			s.missing++
		case e.Type != bson.TypeArray:
			s.fixed[i] = e.Raw()
		case hasArray && unsafe.SliceData(e.Value) != unsafe.SliceData(array.Value):
			return servererr.New(servererr.CannotIndexParallelArrays,
				"cannot index parallel arrays [%s] [%s]", e.Name(), array.Name())
		default:
			array, hasArray, through[i] = e, true, true
			unembedded = unembedded && !nested
		}
	}
	if !hasArray {
		if !g.c.sparse || s.missing < len(s.paths) {
			g.emit(s.fixed)
		}
		return nil
	}
	return g.expandArray(s, array, through, unembedded)
}

func (g *generator) expandArray(s state, array rawbson.Elem, through []bool, unembedded bool) error {
	elements := bson.Raw(array.Value)
	it := rawbson.NewIter(elements)
	if !it.Next() {
		// An empty array counts as undefined.
		return g.expandElement(s, undefined, undefined, through, make([]positional, len(s.paths)))
	}
	pos := make([]positional, len(s.paths))
	for i, path := range s.paths {
		if path == "" || !through[i] {
			continue
		}
		name, _, _ := strings.Cut(path, ".")
		p := &pos[i]
		if p.elem, p.named = rawbson.Lookup(elements, name); p.named {
			p.array = elements
			p.value, p.rest, p.found = follow(elements, path)
		}
	}
	for more := true; more; more = it.Next() {
		element := it.Raw()
		whole := element
		if !unembedded {
			whole = array.Raw()
		}
		if err := g.expandElement(s, element, whole, through, pos); err != nil {
			return err
		}
	}
	return nil
}

// expandElement continues with one element of an array. Fields that end at the
// array get the value end.
func (g *generator) expandElement(s state, element, end bson.RawValue, through []bool, pos []positional) error {
	inner := state{paths: slices.Clone(s.paths), fixed: slices.Clone(s.fixed), missing: s.missing}
	for i := range inner.paths {
		if through[i] && inner.paths[i] == "" {
			inner.fixed[i] = end
		}
	}
	obj := emptyDocument
	if element.Type == bson.TypeEmbeddedDocument {
		obj = element.Value
	}
	return g.expand(inner, obj, pos)
}

var emptyDocument = bson.Raw{5, 0, 0, 0, 0}

func (g *generator) emit(values []bson.RawValue) {
	var buf []byte
	for i, v := range values {
		at := len(buf)
		buf = bsonorder.AppendKey(buf, v, g.c.coll)
		if g.c.descending[i] {
			bsonorder.Invert(buf[at:])
		}
	}
	g.out = append(g.out, indexKey{string(buf), slices.Clone(values)})
}

// refuseArrays looks for an array on any path of a hashed index.
func (c *constraint) refuseArrays(doc bson.Raw) error {
	for _, path := range c.fields {
		if e, rest, found := follow(doc, path); found && e.Type == bson.TypeArray {
			at := strings.TrimSuffix(strings.TrimSuffix(path, rest), ".")
			return servererr.New(hashedArray,
				"Error: hashed indexes do not currently support array values. Found array at path: %s", at)
		}
	}
	return nil
}
