// Package arg reads arguments of commands, as leniently as the server does.
package arg

import (
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// Flag reads a boolean that may come as a number.
func Flag(v bson.RawValue) (on, ok bool) {
	if b, ok := v.BooleanOK(); ok {
		return b, true
	}
	f, ok := v.AsFloat64OK()
	return f != 0, ok
}

// Int64 is the server's way from any number to an integer: doubles and decimals that are too large
// become the nearest one, and anything but a number becomes 0. An infinite decimal becomes 0, too, unlike the server's.
func Int64(v bson.RawValue) int64 {
	f, ok := v.DoubleOK()
	if _, decimal := v.Decimal128OK(); decimal {
		if r, finite := bsonorder.Finite(v); finite {
			f, _ = r.Float64()
			ok = true
		}
	}
	if ok {
		switch {
		case math.IsNaN(f):
			return 0
		case f >= math.MaxInt64:
			return math.MaxInt64
		case f <= math.MinInt64:
			return math.MinInt64
		}
		return int64(f)
	}
	n, _ := v.AsInt64OK()
	return n
}

// Text returns a field that is a string.
func Text(doc bson.Raw, name string) (string, bool) {
	e, ok := rawbson.Lookup(doc, name)
	if !ok {
		return "", false
	}
	return e.Text()
}

// Has reports whether a document has a field.
func Has(doc bson.Raw, name string) bool {
	_, ok := rawbson.Lookup(doc, name)
	return ok
}

// Count returns the number of a document's fields.
func Count(doc bson.Raw) int {
	n := 0
	for it := rawbson.NewIter(doc); it.Next(); {
		n++
	}
	return n
}

// First returns the first field of a document, the zero value if there is none.
func First(doc bson.Raw) rawbson.Elem {
	it := rawbson.NewIter(doc)
	it.Next()
	return it.Elem
}

// Append appends a field under another name.
func Append(dst []byte, name string, e *rawbson.Elem) []byte {
	return append(bsoncore.AppendHeader(dst, bsoncore.Type(e.Type), name), e.Value...)
}
