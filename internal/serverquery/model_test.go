package serverquery

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
)

// The model says what comparisons find in the plainest words: first it lists
// every value that a path stands for, then it looks for one that fits.

// candidates lists the values at a path; a value of type 0 is a missing one.
func candidates(doc bson.Raw, path []string) []bson.RawValue {
	v, err := doc.LookupErr(path[0])
	if err != nil {
		return []bson.RawValue{{}}
	}
	if array, ok := v.ArrayOK(); ok {
		if len(path) == 1 {
			list, _ := bson.Raw(array).Values()
			return append(list, v)
		}
		return inArray(bson.Raw(array), path[1:])
	}
	if len(path) == 1 {
		return []bson.RawValue{v}
	}
	inner, ok := v.DocumentOK()
	if !ok {
		return []bson.RawValue{{}}
	}
	return candidates(inner, path[1:])
}

// inArray lists the values at a path that continues below an array.
func inArray(array bson.Raw, path []string) []bson.RawValue {
	var out []bson.RawValue
	list, _ := array.Values()
	for i, elem := range list {
		inner, isDocument := elem.DocumentOK()
		if isDocument {
			out = append(out, candidates(inner, path)...)
		}
		nested, isArray := elem.ArrayOK()
		switch {
		case path[0] != strconv.Itoa(i):
		case len(path) == 1:
			out = append(out, elem)
		case isDocument:
			out = append(out, candidates(inner, path[1:])...)
		case isArray:
			out = append(out, inArray(bson.Raw(nested), path[1:])...)
		}
	}
	return out
}

// fits is one comparison of one value.
func fits(op string, v, rhs bson.RawValue) bool {
	equalToo := op != "$lt" && op != "$gt"
	if v.Type == 0 || v.Type == bson.TypeUndefined {
		switch rhs.Type {
		case bson.TypeNull:
			return equalToo
		case bson.TypeMinKey:
			return op == "$gt" || op == "$gte"
		case bson.TypeMaxKey:
			return op == "$lt" || op == "$lte"
		}
		return false
	}
	if bsonorder.Rank(v.Type) != bsonorder.Rank(rhs.Type) {
		return rhs.Type == bson.TypeMinKey && (op == "$gt" || op == "$gte") ||
			rhs.Type == bson.TypeMaxKey && (op == "$lt" || op == "$lte")
	}
	if a, b := notANumber(v), notANumber(rhs); a || b {
		return a && b && equalToo
	}
	c := bsonorder.Compare(v, rhs, nil)
	return map[string]bool{"$eq": c == 0, "$lt": c < 0, "$lte": c <= 0, "$gt": c > 0, "$gte": c >= 0}[op]
}

func notANumber(v bson.RawValue) bool {
	if d, ok := v.Decimal128OK(); ok {
		return d.IsNaN()
	}
	f, ok := v.DoubleOK()
	return ok && math.IsNaN(f)
}

func TestComparisonsFollowTheModel(t *testing.T) {
	found, total := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		doc := bsongen.Document(t)
		var inside []bson.RawValue
		collectValues(doc, &inside, 0)
		rhs := bsongen.Value(t, 2)
		if len(inside) > 0 && rapid.Bool().Draw(t, "from the document") {
			rhs = rapid.SampledFrom(inside).Draw(t, "operand")
		}
		if rhs.Type == bson.TypeUndefined || rhs.Type == bson.TypeRegex {
			return // refused, or a pattern
		}
		var names []string
		collectKeys(doc, &names, 0)
		names = append(names, "0", "zz")
		path := rapid.SliceOfN(rapid.SampledFrom(names), 1, 3).Draw(t, "path")
		for _, name := range path {
			if !plainName(name) {
				return
			}
		}
		dotted := strings.Join(path, ".")
		op := rapid.SampledFrom([]string{"$eq", "$lt", "$lte", "$gt", "$gte", "$ne", "$in", "$nin", "$not"}).Draw(t, "operator")
		want, operand := false, any(rhs)
		inner := op
		switch op {
		case "$ne", "$in", "$nin":
			inner = "$eq"
		case "$not":
			inner, operand = "$gte", bson.D{{Key: "$gte", Value: rhs}}
		}
		for _, v := range candidates(doc, path) {
			want = want || finds(op, inner, v, rhs)
		}
		if op == "$in" || op == "$nin" {
			if isOperators(fromRaw(rhs)) {
				return
			}
			operand = bson.A{rhs}
		}
		if op == "$ne" || op == "$nin" || op == "$not" {
			want = !want
		}
		filter, err := bson.Marshal(bson.D{{Key: dotted, Value: bson.D{{Key: op, Value: operand}}}})
		if err != nil {
			return // a value that the driver does not write
		}
		m, err := Compile(filter, Options{})
		if err != nil {
			t.Fatalf("%v: %v", bson.Raw(filter), err)
		}
		got, err := m.Match(doc)
		if err != nil || got != want {
			t.Fatalf("%v on %v: %t, %v; want %t", bson.Raw(filter), doc, got, err, want)
		}
		total++
		if got {
			found++
		}
	})
	t.Logf("%d of %d filters found their document", found, total)
	if found == 0 || found == total {
		t.Error("the property was not tested on both sides")
	}
}

// finds reports whether the model finds v by an operator; inner is the one that it
// negates, or itself.
func finds(op, inner string, v, rhs bson.RawValue) bool {
	if op == "$in" || op == "$nin" {
		return v.Type == 0 && rhs.Type == bson.TypeNull || v.Type != 0 && equalValues(v, rhs)
	}
	return fits(inner, v, rhs)
}

func equalValues(a, b bson.RawValue) bool {
	return bsonorder.Rank(a.Type) == bsonorder.Rank(b.Type) && bsonorder.Compare(a, b, nil) == 0
}

func plainName(name string) bool {
	if name == "" || name[0] == '$' {
		return false
	}
	for _, c := range []byte(name) {
		if c == '.' || c == 0 {
			return false
		}
	}
	return true
}

func collectValues(doc bson.Raw, out *[]bson.RawValue, depth int) {
	vals, _ := doc.Values()
	for _, v := range vals {
		*out = append(*out, v)
		if (v.Type == bson.TypeEmbeddedDocument || v.Type == bson.TypeArray) && depth < 4 {
			collectValues(v.Value, out, depth+1)
		}
	}
}

func collectKeys(doc bson.Raw, out *[]string, depth int) {
	list, _ := doc.Elements()
	for _, e := range list {
		*out = append(*out, e.Key())
		if v := e.Value(); (v.Type == bson.TypeEmbeddedDocument || v.Type == bson.TypeArray) && depth < 4 {
			collectKeys(v.Value, out, depth+1)
		}
	}
}

// What Bounds leaves out, the filter does not find.
func TestBoundsLoseNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id, rhs := bsongen.Value(t, 1), bsongen.Value(t, 1)
		if rapid.Bool().Draw(t, "same type") {
			rhs = bson.RawValue{Type: id.Type, Value: id.Value}
		}
		if id.Type == bson.TypeArray || rhs.Type == bson.TypeUndefined || rhs.Type == bson.TypeRegex || isOperators(fromRaw(rhs)) {
			return
		}
		op := rapid.SampledFrom([]string{"$eq", "$lt", "$lte", "$gt", "$gte"}).Draw(t, "operator")
		filter, err := bson.Marshal(bson.D{{Key: "_id", Value: bson.D{{Key: op, Value: rhs}}}})
		if err != nil {
			return
		}
		m, err := Compile(filter, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if ok, _ := m.Match(wrap("_id", fromRaw(id))); ok && !inBounds(m.Bounds("_id"), id) {
			t.Fatalf("%v finds %v, which its bounds leave out", bson.Raw(filter), id)
		}
	})
}

func inBounds(b Bounds, v bson.RawValue) bool {
	if b.Exact && !slices.ContainsFunc(b.Points, func(p bson.RawValue) bool { return bsonorder.Compare(p, v, nil) == 0 }) {
		return false
	}
	if b.Low.Type != 0 {
		if c := bsonorder.Compare(v, b.Low, nil); c < 0 || c == 0 && b.LowOpen {
			return false
		}
	}
	if b.High.Type != 0 {
		if c := bsonorder.Compare(v, b.High, nil); c > 0 || c == 0 && b.HighOpen {
			return false
		}
	}
	return true
}
