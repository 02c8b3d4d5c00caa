package serverquery

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// outcome is the outcome of a match. Index is 1 more than the number of the array
// element that made it match, the outermost if there are several, and 0 if no
// array was searched.
type outcome struct {
	ok    bool
	index int
	err   error
}

func found(ok bool) outcome { return outcome{ok: ok} }

// leaf judges the values that a path leads to, one by one.
type leaf interface {
	// test may be given the missing value. The index is as in outcome.
	test(v val) (ok bool, index int)
}

// atEnd says which values an array at the end of a path stands for.
type atEnd int

const (
	elementsAndArray atEnd = iota // its elements, then itself
	arrayOnly                     // itself
	elementsOnly                  // its elements
)

// visit calls the leaf with each value of the path in doc, until one matches.
// This is the server's element iterator: on the way, an array stands for its
// elements that are documents, and for the one that the path numbers.
func visit(doc []byte, path []string, l leaf, end atEnd) outcome {
	for i, name := range path {
		last := i == len(path)-1
		e, ok := rawbson.Lookup(doc, name)
		switch {
		case !ok:
			return judge(l, val{})
		case e.Type == bson.TypeArray:
			return visitArray(e.Value, path[i+1:], l, end)
		case last:
			return judge(l, valueOf(&e))
		case e.Type != bson.TypeEmbeddedDocument:
			return judge(l, val{})
		}
		doc = e.Value
	}
	return judge(l, val{})
}

func judge(l leaf, v val) outcome {
	ok, index := l.test(v)
	return outcome{ok: ok, index: index}
}

func visitArray(array []byte, rest []string, l leaf, end atEnd) outcome {
	whole := val{bson.TypeArray, array}
	if len(rest) == 0 && end == arrayOnly {
		return judge(l, whole)
	}
	it := rawbson.NewIter(array)
	for n := 1; it.Next(); n++ {
		v := valueOf(&it.Elem)
		if len(rest) == 0 {
			if ok, _ := l.test(v); ok {
				return outcome{ok: true, index: n}
			}
			continue
		}
		if v.t == bson.TypeEmbeddedDocument {
			if o := visit(v.b, rest, l, end); o.ok {
				return outcome{ok: true, index: n}
			}
		}
		// A numbered element is not a search, so its own number is not reported.
		if !isNumber(rest[0]) || !it.Is(rest[0]) {
			continue
		}
		if o := visitNumbered(v, rest[1:], l, end); o.ok {
			return o
		}
	}
	if len(rest) == 0 && end == elementsAndArray {
		return judge(l, whole)
	}
	return outcome{}
}

func visitNumbered(v val, rest []string, l leaf, end atEnd) outcome {
	switch {
	case len(rest) == 0:
		return judge(l, v)
	case v.t == bson.TypeEmbeddedDocument:
		return visit(v.b, rest, l, end)
	case v.t == bson.TypeArray:
		return visitArray(v.b, rest, l, end)
	default:
		return outcome{}
	}
}

func isNumber(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// collector is a leaf that keeps all values and fits none.
type collector struct {
	values []val
	limit  int
	more   bool
}

func (c *collector) test(v val) (bool, int) {
	switch {
	case v.missing():
	case len(c.values) == c.limit:
		c.more = true
		return true, 0
	default:
		c.values = append(c.values, v)
	}
	return false, 0
}
