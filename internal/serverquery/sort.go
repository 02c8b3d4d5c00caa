package serverquery

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// Sort is a compiled order of documents.
type Sort struct {
	keys    []sortKey
	natural int
	coll    *bsonorder.Collator
}

type sortKey struct {
	path []string
	sign int
}

// maxSortKeys is how many fields the server sorts by.
const maxSortKeys = 32

// CompileSort compiles {a: 1, "b.c": -1}, or {$natural: 1}. A nil or empty spec
// keeps documents as they come. The server's refusals are [*servererr.Error]s.
func CompileSort(spec bson.Raw, o Options) (*Sort, error) {
	s := &Sort{coll: o.Collator}
	if len(spec) == 0 {
		return s, nil
	}
	if err := validate(spec); err != nil {
		return nil, err
	}
	list := elems(spec)
	if len(list) > maxSortKeys {
		return nil, servererr.New(13103, "too many compound keys")
	}
	for _, e := range list {
		v := valueOf(&e)
		name := e.Name()
		switch {
		case v.t == bson.TypeEmbeddedDocument:
			if _, meta := rawbson.Lookup(v.b, "$meta"); meta {
				return nil, notImplemented("sorting by $meta")
			}
			return nil, servererr.New(15974, "Illegal key in $sort specification: %s", bsontext.Element(name, v.raw()))
		case !v.number():
			return nil, servererr.New(15974, "Illegal key in $sort specification: %s", bsontext.Element(name, v.raw()))
		}
		n, _ := v.whole()
		if n != 1 && n != -1 {
			return nil, servererr.New(15975, "$sort key ordering must be 1 (for ascending) or -1 (for descending)")
		}
		if name == "$natural" {
			if len(list) > 1 {
				return nil, badValue("$natural sort cannot be set to a value other than -1 or 1, and cannot stand with other keys.")
			}
			s.natural = int(n)
			return s, nil
		}
		if err := checkFieldPath(name); err != nil {
			return nil, err
		}
		s.keys = append(s.keys, sortKey{splitPath(name), int(n)})
	}
	return s, nil
}

// checkFieldPath refuses a dotted path that the server's pipelines do not read.
func checkFieldPath(path string) error {
	switch {
	case path == "":
		return servererr.New(40352, "FieldPath cannot be constructed with empty string")
	case strings.HasSuffix(path, "."):
		return servererr.New(40353, "FieldPath must not end with a '.'.")
	}
	for part := range strings.SplitSeq(path, ".") {
		switch {
		case part == "":
			return servererr.New(15998, "FieldPath field names may not be empty strings.")
		case part[0] == '$' && part != "$id" && part != "$ref" && part != "$db":
			return servererr.New(16410, "FieldPath field names may not start with '$'. Consider using $getField or $setField.")
		}
	}
	return nil
}

// Natural returns 1 or -1 if the order is that of the store or the reverse of
// it, and 0 otherwise.
func (s *Sort) Natural() int { return s.natural }

// Empty reports whether there is no order to make.
func (s *Sort) Empty() bool { return len(s.keys) == 0 }

// Docs sorts docs in place; documents of equal keys keep their order. The server
// refuses documents that have arrays in two of the fields. With $natural, and
// without keys, Docs leaves them as they are.
func (s *Sort) Docs(docs []bson.Raw) error {
	return s.order(docs, func() error { return nil })
}

// order is Docs, and ends with an error of look, which is called for each document
// and each comparison.
func (s *Sort) order(docs []bson.Raw, look func() error) error {
	if len(s.keys) == 0 {
		return nil
	}
	type keyed struct {
		key []val
		doc bson.Raw
	}
	list := make([]keyed, len(docs))
	for i, doc := range docs {
		if err := look(); err != nil {
			return err
		}
		key, err := s.key(doc)
		if err != nil {
			return err
		}
		list[i] = keyed{key, doc}
	}
	var stopped error
	slices.SortStableFunc(list, func(a, b keyed) int {
		if stopped == nil {
			stopped = look()
		}
		if stopped != nil {
			return 0 // to be done soon
		}
		return s.compare(a.key, b.key)
	})
	if stopped != nil {
		return stopped
	}
	for i := range list {
		docs[i] = list[i].doc
	}
	return nil
}

func (s *Sort) compare(a, b []val) int {
	for i, k := range s.keys {
		if c := compareValues(a[i], b[i], s.coll); c != 0 {
			return c * k.sign
		}
	}
	return 0
}

// key is the sort key of doc: of all tuples that an array gives, the first one
// in this order.
func (s *Sort) key(doc []byte) ([]val, error) {
	start := make([]cursor, len(s.keys))
	for i, k := range s.keys {
		start[i] = cursor{val{bson.TypeEmbeddedDocument, doc}, k.path, ""}
	}
	var best []val
	err := expand(start, func(key []val) {
		if best == nil || s.compare(key, best) < 0 {
			best = slices.Clone(key)
		}
	})
	return best, err
}

// cursor is the position in one key's path. At is the array that it has reached.
type cursor struct {
	v    val
	rest []string
	at   string
}

// advance follows the path up to its end or to the next array. A missing value
// sorts as null.
func (c cursor) advance() cursor {
	for {
		switch {
		case c.v.t == bson.TypeArray:
			// A number may mean a place in the array, as long as it is there.
			if len(c.rest) > 0 && isNumber(c.rest[0]) {
				if e, ok := rawbson.Lookup(c.v.b, c.rest[0]); ok {
					c.v, c.rest, c.at = valueOf(&e), c.rest[1:], c.at+"."+e.Name()
					if len(c.rest) == 0 {
						return c
					}
					continue
				}
			}
			return c
		case len(c.rest) == 0:
			return c
		case c.v.t != bson.TypeEmbeddedDocument:
			return cursor{v: val{t: bson.TypeNull}}
		}
		e, ok := rawbson.Lookup(c.v.b, c.rest[0])
		if !ok {
			return cursor{v: val{t: bson.TypeNull}}
		}
		c.v, c.rest, c.at = valueOf(&e), c.rest[1:], c.at+"."+e.Name()
	}
}

// expand hands take every tuple of values at the cursors. An array stands for its
// elements, in all keys that lead to it at once.
func expand(cursors []cursor, take func(key []val)) error {
	next := make([]cursor, len(cursors))
	array := -1
	for i, c := range cursors {
		next[i] = c.advance()
		if next[i].v.t != bson.TypeArray || next[i].at == done {
			continue
		}
		if array >= 0 && next[i].at != next[array].at {
			return badValue("cannot sort with keys that are parallel arrays")
		}
		array = i
	}
	if array < 0 {
		key := make([]val, len(next))
		for i, c := range next {
			key[i] = c.v
		}
		take(key)
		return nil
	}
	shared := next[array]
	list := elems(shared.v.b)
	if len(list) == 0 {
		// An empty array sorts below null; what would lie in it is null.
		list = []rawbson.Elem{{Type: bson.TypeUndefined}}
	}
	for _, e := range list {
		step := slices.Clone(next)
		for i := range step {
			if step[i].v.t != bson.TypeArray || step[i].at != shared.at {
				continue
			}
			step[i].v = valueOf(&e)
			switch {
			case len(step[i].rest) == 0:
				step[i].at = done // an array in an array counts as it is
			case e.Type == bson.TypeEmbeddedDocument:
				step[i].at += "." + e.Name()
			default:
				step[i] = cursor{v: val{t: bson.TypeNull}, at: done}
			}
		}
		if err := expand(step, take); err != nil {
			return err
		}
	}
	return nil
}

// done marks a cursor whose value is not expanded further.
const done = "\x00"
