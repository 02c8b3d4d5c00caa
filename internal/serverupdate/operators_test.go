package serverupdate

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// testOptions are surroundings that say little: filters match by equality of one
// field, the clock stands still.
func testOptions() Options {
	ts := bson.Timestamp{T: 7}
	return Options{
		Clock: func() bson.DateTime { return 1234 },
		Tick:  func() bson.Timestamp { ts.I++; return ts },
		NewID: func() bson.ObjectID { return bson.ObjectID{1} },
		Match: matchEqual,
		Log:   LogDelta,
	}
}

func matchEqual(filter bson.RawValue) (Matcher, error) {
	fields := elems(filter.Value)
	return func(doc bson.RawValue) (bool, error) {
		for _, f := range fields {
			if f.Is("$fail") {
				return false, errors.New("cannot match")
			}
			v, want := doc, f.Raw()
			if inner, ok := f.Document(); ok && len(inner) > 5 && elems(inner)[0].Is("$eq") {
				want = elems(inner)[0].Raw()
			}
			for name := range strings.SplitSeq(f.Name(), ".") {
				e, _ := rawbson.Lookup(v.Value, name)
				v = e.Raw()
			}
			if v.Type != want.Type || bsonorder.Compare(v, want, nil) != 0 {
				return false, nil
			}
		}
		return true, nil
	}, nil
}

type operatorCase struct {
	name, doc, u, want, delta string // want and delta are what comes out; or want is a message
	filters                   string
	matched                   int // the index, from 1; 0 for none
}

func runOperators(t *testing.T, cases []operatorCase) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			o := testOptions()
			if tt.filters != "" {
				o.ArrayFilters = parse(t, tt.filters).Value
			}
			doc := parseDoc(t, tt.doc)
			var r Result
			s, err := Compile(parse(t, tt.u), o)
			if err == nil {
				r, err = s.Apply(doc, tt.matched-1)
			}
			if !strings.HasPrefix(tt.want, "{") && tt.want != "no-op" {
				if e, ok := errors.AsType[*Error](err); !ok || e.Message != tt.want {
					t.Errorf("got %s, error %v, want %s", r.Doc, err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want, delta := tt.doc, ""
			if tt.want != "no-op" {
				want, delta = tt.want, tt.delta
			}
			if r.NoOp != (tt.want == "no-op") {
				t.Errorf("no-op %v", r.NoOp)
			}
			if diff := cmp.Diff(show(parseDoc(t, want)), show(r.Doc)); diff != "" {
				t.Errorf("document (-want +got):\n%s", diff)
			}
			got := ""
			if r.Delta != nil {
				got = show(r.Delta)
			}
			if delta != "" {
				delta = show(parseDoc(t, delta))
			}
			if diff := cmp.Diff(delta, got); diff != "" {
				t.Errorf("delta (-want +got):\n%s", diff)
			}
		})
	}
}

func TestArithmetic(t *testing.T) {
	d := func(v string) string { return `{"_id": 1, "n": ` + v + `}` }
	u := func(v string) string { return `{"u": {"n": ` + v + `}}` }
	runOperators(t, []operatorCase{
		{name: "ints", doc: d(`1`), u: `{"$inc": {"n": 2}}`, want: d(`3`), delta: u(`3`)},
		{name: "nothing to add", doc: d(`1`), u: `{"$inc": {"n": 0}}`, want: "no-op"},
		{name: "a long zero makes a long", doc: d(`1`), u: `{"$inc": {"n": "@long:0"}}`, want: d(`"@long:1"`), delta: u(`"@long:1"`)},
		{name: "int overflow", doc: d(`2147483647`), u: `{"$inc": {"n": 1}}`, want: d(`"@long:2147483648"`), delta: u(`"@long:2147483648"`)},
		{
			name: "long overflow", doc: d(`"@long:9223372036854775807"`), u: `{"$inc": {"n": 1}}`,
			want: "Failed to apply $inc operations to current value ((NumberLong)9223372036854775807) for document {_id: 1}",
		},
		{
			name: "long underflow", doc: d(`"@long:-9223372036854775808"`), u: `{"$inc": {"n": -1}}`,
			want: "Failed to apply $inc operations to current value ((NumberLong)-9223372036854775808) for document {_id: 1}",
		},
		{name: "smallest long", doc: d(`"@long:-9223372036854775807"`), u: `{"$inc": {"n": -1}}`, want: d(`"@long:-9223372036854775808"`), delta: u(`"@long:-9223372036854775808"`)},
		{name: "double", doc: d(`1`), u: `{"$inc": {"n": 0.5}}`, want: d(`1.5`), delta: u(`1.5`)},
		{name: "to a decimal", doc: d(`"@dec:1.50"`), u: `{"$inc": {"n": 1}}`, want: "the arithmetic of decimals ($inc) is not implemented"},
		{name: "a decimal", doc: d(`1`), u: `{"$mul": {"n": "@dec:1"}}`, want: "the arithmetic of decimals ($inc and $mul) is not implemented"},
		{name: "new", doc: `{"_id": 1}`, u: `{"$inc": {"n": 2}}`, want: d(`2`), delta: `{"i": {"n": 2}}`},
		{name: "product", doc: d(`3`), u: `{"$mul": {"n": 2}}`, want: d(`6`), delta: u(`6`)},
		{name: "product overflow", doc: d(`65536`), u: `{"$mul": {"n": 65536}}`, want: d(`"@long:4294967296"`), delta: u(`"@long:4294967296"`)},
		{
			name: "product overflows a long", doc: d(`"@long:4294967296"`), u: `{"$mul": {"n": "@long:-4294967296"}}`,
			want: "Failed to apply $mul operations to current value ((NumberLong)4294967296) for document {_id: 1}",
		},
		{name: "product of the smallest", doc: d(`"@long:4294967296"`), u: `{"$mul": {"n": "@long:-2147483648"}}`, want: d(`"@long:-9223372036854775808"`), delta: u(`"@long:-9223372036854775808"`)},
		{name: "new product", doc: `{"_id": 1}`, u: `{"$mul": {"n": "@long:2"}}`, want: d(`"@long:0"`), delta: `{"i": {"n": "@long:0"}}`},
		{name: "no number", doc: d(`1`), u: `{"$mul": {"n": "x"}}`, want: `Cannot multiply with non-numeric argument: {n: "x"}`},
		{
			name: "on no number", doc: `{"_id": "i", "a": {"n": null}}`, u: `{"$mul": {"a.n": 1}}`,
			want: `Cannot apply $mul to a value of non-numeric type. {_id: "i"} has the field 'n' of non-numeric type null`,
		},
		{name: "bits", doc: d(`6`), u: `{"$bit": {"n": {"and": 5, "or": 8, "xor": 1}}}`, want: d(`13`), delta: u(`13`)},
		{name: "bits that are there", doc: d(`6`), u: `{"$bit": {"n": {"or": 2}}}`, want: "no-op"},
		{name: "long bits", doc: d(`6`), u: `{"$bit": {"n": {"or": "@long:8"}}}`, want: d(`"@long:14"`), delta: u(`"@long:14"`)},
		{name: "new bits", doc: `{"_id": 1}`, u: `{"$bit": {"n": {"xor": 5}}}`, want: d(`5`), delta: `{"i": {"n": 5}}`},
		{
			name: "bits of a double", doc: d(`6.5`), u: `{"$bit": {"n": {"xor": 5}}}`,
			want: "Cannot apply $bit to a value of non-integral type._id: 1 has the field n of non-integer type double",
		},
		{name: "no bits", doc: d(`6`), u: `{"$bit": {"n": {}}}`, want: "You must pass in at least one bitwise operation. The format is: {$bit: {field: {and/or/xor: #}}"},
		{name: "min", doc: d(`5`), u: `{"$min": {"n": 4}}`, want: d(`4`), delta: u(`4`)},
		{name: "min of the same value", doc: d(`5`), u: `{"$min": {"n": 5.0}}`, want: "no-op"},
		{name: "max of a greater type", doc: d(`5`), u: `{"$max": {"n": "a"}}`, want: d(`"a"`), delta: u(`"a"`)},
		{name: "max of less", doc: d(`5`), u: `{"$max": {"n": null}}`, want: "no-op"},
		{name: "new min", doc: `{"_id": 1}`, u: `{"$min": {"n": 5}}`, want: d(`5`), delta: `{"i": {"n": 5}}`},
		{name: "date", doc: d(`5`), u: `{"$currentDate": {"n": true}}`, want: d(`"@date:1234"`), delta: u(`"@date:1234"`)},
		{name: "same date", doc: d(`"@date:1234"`), u: `{"$currentDate": {"n": {"$type": "date"}}}`, want: d(`"@date:1234"`), delta: u(`"@date:1234"`)},
		{name: "timestamp", doc: d(`5`), u: `{"$currentDate": {"n": {"$type": "timestamp"}}}`, want: d(`"@ts:7:1"`), delta: u(`"@ts:7:1"`)},
		{name: "other date", doc: d(`5`), u: `{"$currentDate": {"n": {"$x": 1}}}`, want: "Unrecognized $currentDate option: $x"},
	})
}

func TestArrays(t *testing.T) {
	runOperators(t, []operatorCase{
		{name: "push", doc: `{"_id": 1, "a": [1]}`, u: `{"$push": {"a": 2}}`, want: `{"_id": 1, "a": [1, 2]}`, delta: `{"sa": {"a": true, "u1": 2}}`},
		{name: "push to an empty array", doc: `{"_id": 1, "a": []}`, u: `{"$push": {"a": 2}}`, want: `{"_id": 1, "a": [2]}`, delta: `{"u": {"a": [2]}}`},
		{
			name: "push several", doc: `{"_id": 1, "o": {"a": [1]}}`, u: `{"$push": {"o.a": {"$each": [2, 3]}}}`,
			want: `{"_id": 1, "o": {"a": [1, 2, 3]}}`, delta: `{"so": {"sa": {"a": true, "u1": 2, "u2": 3}}}`,
		},
		{name: "push nothing", doc: `{"_id": 1, "a": [1]}`, u: `{"$push": {"a": {"$each": []}}}`, want: "no-op"},
		{name: "sort what is sorted", doc: `{"_id": 1, "a": [1, 2]}`, u: `{"$push": {"a": {"$each": [], "$sort": 1}}}`, want: `{"_id": 1, "a": [1, 2]}`, delta: `{"u": {"a": [1, 2]}}`},
		{name: "push and cut", doc: `{"_id": 1, "a": [1]}`, u: `{"$push": {"a": {"$each": [2], "$slice": -1}}}`, want: `{"_id": 1, "a": [2]}`, delta: `{"u": {"a": [2]}}`},
		{name: "push unknown clause", doc: `{"_id": 1}`, u: `{"$push": {"a": {"$each": [], "$x": 1}}}`, want: "Unrecognized clause in $push: $x"},
		{name: "add", doc: `{"_id": 1, "a": [1]}`, u: `{"$addToSet": {"a": {"$each": [1.0, 2, 2, 3]}}}`, want: `{"_id": 1, "a": [1, 2, 3]}`, delta: `{"u": {"a": [1, 2, 3]}}`},
		{name: "add what is there", doc: `{"_id": 1, "a": [{"x": 1}]}`, u: `{"$addToSet": {"a": {"x": 1}}}`, want: "no-op"},
		{name: "add to nothing", doc: `{"_id": 1}`, u: `{"$addToSet": {"a": {"$each": [1, 1]}}}`, want: `{"_id": 1, "a": [1]}`, delta: `{"i": {"a": [1]}}`},
		{name: "add more clauses", doc: `{"_id": 1}`, u: `{"$addToSet": {"a": {"$each": [], "x": 1}}}`, want: `Found unexpected fields after $each in $addToSet: { $each: [], x: 1 }`},
		{name: "pop", doc: `{"_id": 1, "a": [1, 2]}`, u: `{"$pop": {"a": 1}}`, want: `{"_id": 1, "a": [1]}`, delta: `{"u": {"a": [1]}}`},
		{name: "pop the first", doc: `{"_id": 1, "a": [1, 2]}`, u: `{"$pop": {"a": -1.0}}`, want: `{"_id": 1, "a": [2]}`, delta: `{"u": {"a": [2]}}`},
		{name: "pop nothing", doc: `{"_id": 1, "a": []}`, u: `{"$pop": {"a": 1, "b.c": 1}}`, want: "no-op"},
		{name: "pop 2", doc: `{"_id": 1}`, u: `{"$pop": {"a": 2}}`, want: "$pop expects 1 or -1, found: 2"},
		{name: "pop a string", doc: `{"_id": 1}`, u: `{"$pop": {"a": "x"}}`, want: `Expected a number in: a: "x"`},
		{name: "pop through a scalar", doc: `{"_id": 1, "a": 1}`, u: `{"$pop": {"a.b": 1}}`, want: "Cannot use the part (b) of (a.b) to traverse the element ({a: 1})"},
		{name: "pull a value", doc: `{"_id": 1, "a": [1, 2, 1.0]}`, u: `{"$pull": {"a": 1}}`, want: `{"_id": 1, "a": [2]}`, delta: `{"u": {"a": [2]}}`},
		{name: "pull an array", doc: `{"_id": 1, "a": [1, [1]]}`, u: `{"$pull": {"a": [1]}}`, want: `{"_id": 1, "a": [1]}`, delta: `{"u": {"a": [1]}}`},
		{name: "pull objects", doc: `{"_id": 1, "a": [{"x": 1, "y": 1}, 1, {"x": 2}]}`, u: `{"$pull": {"a": {"x": 1}}}`, want: `{"_id": 1, "a": [1, {"x": 2}]}`, delta: `{"u": {"a": [1, {"x": 2}]}}`},
		{name: "pull by predicate", doc: `{"_id": 1, "a": [1, 2]}`, u: `{"$pull": {"a": {"$eq": 1}}}`, want: `{"_id": 1, "a": [2]}`, delta: `{"u": {"a": [2]}}`},
		{name: "pull nothing", doc: `{"_id": 1, "a": [1, 2]}`, u: `{"$pull": {"a": 3, "b.c": 1}}`, want: "no-op"},
		{name: "pull all", doc: `{"_id": 1, "a": [1, 2, 3]}`, u: `{"$pullAll": {"a": [3, 1.0]}}`, want: `{"_id": 1, "a": [2]}`, delta: `{"u": {"a": [2]}}`},
		{name: "pull all of no array", doc: `{"_id": 1}`, u: `{"$pullAll": {"a": 1}}`, want: "$pullAll requires an array argument but was given a int"},
		{name: "elements", doc: `{"_id": 1, "a": [1, {"x": 1}]}`, u: `{"$set": {"a.0": 2, "a.1.y": 3, "a.4": 5}}`, want: `{"_id": 1, "a": [2, {"x": 1, "y": 3}, null, null, 5]}`, delta: `{"sa": {"a": true, "u0": 2, "s1": {"i": {"y": 3}}, "u4": 5}}`},
		{name: "element by path", doc: `{"_id": 1, "a": []}`, u: `{"$set": {"a.1.x.y": 1, "a.1.z": 2}}`, want: `{"_id": 1, "a": [null, {"x": {"y": 1}, "z": 2}]}`, delta: `{"sa": {"a": true, "u1": {"x": {"y": 1}, "z": 2}}}`},
		{name: "unset null", doc: `{"_id": 1, "a": [null]}`, u: `{"$unset": {"a.0": 1}}`, want: `{"_id": 1, "a": [null]}`, delta: `{"sa": {"a": true, "u0": null}}`},
	})
}

func TestPositional(t *testing.T) {
	const doc = `{"_id": 1, "a": [{"k": 1}, {"k": 2}, {"k": 1}]}`
	runOperators(t, []operatorCase{
		{name: "matched", doc: doc, matched: 2, u: `{"$set": {"a.$.v": 9}}`, want: `{"_id": 1, "a": [{"k": 1}, {"k": 2, "v": 9}, {"k": 1}]}`, delta: `{"sa": {"a": true, "s1": {"i": {"v": 9}}}}`},
		{name: "matched among others", doc: doc, matched: 2, u: `{"$set": {"a.$.v": 9, "a.1.k": 0, "a.2": 5, "a.0": 4}}`, want: `{"_id": 1, "a": [4, {"k": 0, "v": 9}, 5]}`, delta: `{"sa": {"a": true, "u0": 4, "s1": {"u": {"k": 0}, "i": {"v": 9}}, "u2": 5}}`},
		{name: "conflict by match", doc: doc, matched: 2, u: `{"$set": {"a.$.v": 9, "a.1.v": 0}}`, want: "Update created a conflict at 'a.1.v'"},
		{name: "not matched", doc: doc, u: `{"$set": {"a.$.v": 9}}`, want: "The positional operator did not find the match needed from the query."},
		{name: "twice", doc: doc, u: `{"$set": {"a.$.v.$": 9}}`, want: "Too many positional (i.e. '$') elements found in path 'a.$.v.$'"},
		{name: "first", doc: doc, u: `{"$set": {"$.v": 9}}`, want: "Cannot have positional (i.e. '$') element in the first position in path '$.v'"},
		{name: "all", doc: doc, u: `{"$inc": {"a.$[].k": 1}}`, want: `{"_id": 1, "a": [{"k": 2}, {"k": 3}, {"k": 2}]}`, delta: `{"u": {"a": [{"k": 2}, {"k": 3}, {"k": 2}]}}`},
		{name: "all of none", doc: `{"_id": 1, "a": []}`, u: `{"$inc": {"a.$[].k": 1}}`, want: "no-op"},
		{name: "all of no array", doc: `{"_id": 1, "a": 1}`, u: `{"$inc": {"a.$[].k": 1}}`, want: "Cannot apply array updates to non-array element a: 1"},
		{name: "all of nothing", doc: `{"_id": 1, "a": {}}`, u: `{"$inc": {"a.b.c.$[].k": 1}}`, want: "The path 'a.b.c' must exist in the document in order to apply array updates."},
		{name: "filtered, one", doc: doc, filters: `[{"x.k": 2}]`, u: `{"$set": {"a.$[x].v": 9}}`, want: `{"_id": 1, "a": [{"k": 1}, {"k": 2, "v": 9}, {"k": 1}]}`, delta: `{"sa": {"a": true, "s1": {"i": {"v": 9}}}}`},
		{name: "filtered, several", doc: doc, filters: `[{"x.k": 1}]`, u: `{"$set": {"a.$[x]": 0}}`, want: `{"_id": 1, "a": [0, {"k": 2}, 0]}`, delta: `{"u": {"a": [0, {"k": 2}, 0]}}`},
		{name: "filtered, one of several changes", doc: `{"_id": 1, "a": [{"k": 1}, {"k": 1, "v": 2}]}`, filters: `[{"x.k": 1}]`, u: `{"$max": {"a.$[x].v": 2}}`, want: `{"_id": 1, "a": [{"k": 1, "v": 2}, {"k": 1, "v": 2}]}`, delta: `{"sa": {"a": true, "u0": {"k": 1, "v": 2}}}`},
		{name: "filters meet", doc: `{"_id": 1, "a": [{"k": 1}]}`, filters: `[{"x.k": 1}, {"y.k": 1}]`, u: `{"$set": {"a.$[x].v": 1, "a.$[y].w": 2}}`, want: `{"_id": 1, "a": [{"k": 1, "v": 1, "w": 2}]}`, delta: `{"sa": {"a": true, "s0": {"i": {"v": 1, "w": 2}}}}`},
		{name: "filters conflict", doc: `{"_id": 1, "a": [{"k": 1}]}`, filters: `[{"x.k": 1}, {"y.k": 1}]`, u: `{"$set": {"a.$[x].v": 1, "a.$[y].v": 2}}`, want: "Update created a conflict at 'a.0.v'"},
		{name: "nested", doc: `{"_id": 1, "a": [{"b": [1, 2]}, {"b": [2]}]}`, filters: `[{"x": 2}]`, u: `{"$set": {"a.$[].b.$[x]": 5}}`, want: `{"_id": 1, "a": [{"b": [1, 5]}, {"b": [5]}]}`, delta: `{"u": {"a": [{"b": [1, 5]}, {"b": [5]}]}}`},
		{name: "no filter", doc: doc, u: `{"$set": {"a.$[x]": 0}}`, want: "No array filter found for identifier 'x' in path 'a.$[x]'"},
		{name: "filter first", doc: doc, filters: `[{"x": 1}]`, u: `{"$set": {"$[x]": 0}}`, want: "Cannot have array filter identifier (i.e. '$[<id>]') element in the first position in path '$[x]'"},
		{name: "unused filter", doc: doc, filters: `[{"x": 1}]`, u: `{"$set": {"b": 0}}`, want: "The array filter for identifier 'x' was not used in the update { $set: { b: 0 } }"},
		{name: "same filter twice", doc: doc, filters: `[{"x": 1}, {"x.y": 1}]`, u: `{"$set": {"a.$[x]": 0}}`, want: "Found multiple array filters with the same top-level field name x"},
		{name: "empty filter", doc: doc, filters: `[{}]`, u: `{"$set": {"b": 0}}`, want: "Cannot use an expression without a top-level field name in arrayFilters"},
		{name: "two names", doc: doc, filters: `[{"$and": [{"x": 1}, {"y": 1}]}]`, u: `{"$set": {"b": 0}}`, want: "Error parsing array filter :: caused by :: Expected a single top-level field name, found 'x' and 'y'"},
		{name: "bad name", doc: doc, filters: `[{"X": 1}]`, u: `{"$set": {"b": 0}}`, want: "Error parsing array filter :: caused by :: The top-level field name must be an alphanumeric string beginning with a lowercase letter, found 'X'"},
		{name: "element and all", doc: doc, u: `{"$set": {"a.0": 1, "a.$[]": 0}}`, want: "Updating the path 'a.$[]' would create a conflict at 'a'"},
		{name: "pipeline", doc: doc, filters: `[{"x": 1}]`, u: `[{"$set": {"b": 0}}]`, want: "arrayFilters may not be specified for pipeline-style updates"},
	})
}

func TestRename(t *testing.T) {
	runOperators(t, []operatorCase{
		{name: "new", doc: `{"_id": 1, "a": {"x": 1}, "b": 2}`, u: `{"$rename": {"a": "c"}}`, want: `{"_id": 1, "b": 2, "c": {"x": 1}}`, delta: `{"d": {"a": false}, "i": {"c": {"x": 1}}}`},
		{name: "deep", doc: `{"_id": 1, "a": {"x": 1}}`, u: `{"$rename": {"a.x": "b.c.d"}}`, want: `{"_id": 1, "a": {}, "b": {"c": {"d": 1}}}`, delta: `{"i": {"b": {"c": {"d": 1}}}, "sa": {"d": {"x": false}}}`},
		{name: "over another", doc: `{"_id": 1, "a": 1, "b": 2}`, u: `{"$rename": {"a": "b"}}`, want: `{"_id": 1, "b": 1}`, delta: `{"d": {"a": false}, "u": {"b": 1}}`},
		{name: "over an equal one", doc: `{"_id": 1, "a": 1, "b": 1.0}`, u: `{"$rename": {"a": "b"}}`, want: `{"_id": 1, "b": 1.0}`, delta: `{"d": {"a": false}}`},
		{name: "what is not there", doc: `{"_id": 1, "a": {}}`, u: `{"$rename": {"a.x": "b", "z": "y"}}`, want: "no-op"},
		{name: "through a scalar", doc: `{"_id": 1, "a": {"b": 1}}`, u: `{"$rename": {"a.b.c": "d"}}`, want: "cannot use the part (b of a.b.c) to traverse the element ({b: 1})"},
		{name: "out of an array", doc: `{"_id": 1, "a": [{"b": 1}]}`, u: `{"$rename": {"a.0.b": "d"}}`, want: "The source field cannot be an array element, 'a.0.b' in doc with _id: 1 has an array field called 'a'"},
		{name: "into an array", doc: `{"_id": 1, "a": [{"b": 1}], "d": 1}`, u: `{"$rename": {"d": "a.0.c"}}`, want: "The destination field cannot be an array element, 'a.0.c' in doc with _id: 1 has an array field called 'a'"},
		{name: "to itself", doc: `{"_id": 1}`, u: `{"$rename": {"a": "a"}}`, want: `The source and target field for $rename must differ: a: "a"`},
		{name: "below itself", doc: `{"_id": 1}`, u: `{"$rename": {"a": "a.b"}}`, want: `The source and target field for $rename must not be on the same path: a: "a.b"`},
		{name: "dynamic", doc: `{"_id": 1}`, u: `{"$rename": {"a": "b.$[]"}}`, want: "The destination field for $rename may not be dynamic: b.$[]"},
		{name: "to a number", doc: `{"_id": 1}`, u: `{"$rename": {"a": 1}}`, want: "The 'to' field for $rename must be a string: a: 1"},
		{name: "to nothing", doc: `{"_id": 1}`, u: `{"$rename": {"a": ""}}`, want: "An empty update path is not valid."},
		{name: "a set source", doc: `{"_id": 1}`, u: `{"$rename": {"a": "b"}, "$set": {"a": 1}}`, want: "Updating the path 'a' would create a conflict at 'a'"},
		{name: "_id", doc: `{"_id": 1}`, u: `{"$rename": {"_id": "b"}}`, want: "Unsetting the path '_id' using $rename would modify the immutable field '_id'"},
		{name: "onto _id", doc: `{"_id": 1, "a": 2}`, u: `{"$rename": {"a": "_id"}}`, want: "Performing an update on the path '_id' would modify the immutable field '_id'"},
	})
}

// TestMessages has the refusals whose words no transcript shows.
func TestMessages(t *testing.T) {
	runOperators(t, []operatorCase{
		{name: "no document of modifiers", doc: `{"_id": 1}`, u: `{"$set": 1}`, want: "Modifiers operate on fields but we found type int instead. For example: {$mod: {<field>: ...}} not {$set: 1}"},
		{name: "empty part", doc: `{"_id": 1}`, u: `{"$set": {"a..b": 1}}`, want: "The update path 'a..b' contains an empty field name, which is not allowed."},
		{name: "_id to an object", doc: `{"_id": 1}`, u: `{"$set": {"_id": {"a": 1}}}`, want: "Updating the path '_id' to _id: { a: 1 } would modify the immutable field '_id'"},
		{name: "_id removed", doc: `{"_id": {"a": 1}}`, u: `{"$unset": {"_id": 1}}`, want: "Performing an update on the path '_id' would modify the immutable field '_id'"},
		{name: "more of _id", doc: `{"_id": {"a": 1}}`, u: `{"$set": {"_id.b": 2}}`, want: "Updating the path '_id' to _id: { a: 1, b: 2 } would modify the immutable field '_id'"},
		{name: "too deep", doc: `{"_id": 1}`, u: `{"$set": {"a": ` + nested(180) + `}}`, want: "Document exceeds maximum nesting depth of 180"},
		{name: "$id alone", doc: `{"_id": 1}`, u: `{"$set": {"$id": 1}}`, want: "Found $id field without a $ref before it, which is invalid."},
		{name: "$ref alone", doc: `{"_id": 1}`, u: `{"$set": {"$ref": "c"}}`, want: "The DBRef $ref field must be followed by a $id field"},
		{name: "an unknown stage", doc: `{"_id": 1}`, u: `[{"$bogus": 1}]`, want: "Unrecognized pipeline stage name: '$bogus'"},
	})
	if _, err := Compile(parse(t, `{"a": 1}`), Options{Multi: true}); err == nil {
		t.Error("a replacement of many documents passed")
	}
	for _, u := range []string{`{"$pull": {"a": {"$gt": 1}}}`, `{"$pull": {"a": {"x": 1}}}`, `{"$currentDate": {"a": true}}`} {
		if _, err := Compile(parse(t, u), Options{}); !errors.Is(err, refuse(codeNotImplemented, "")) {
			t.Errorf("%s: got %v", u, err)
		}
	}
}

func TestFailingMatcher(t *testing.T) {
	for u, filters := range map[string]string{`{"$pull": {"a": {"$fail": 1}}}`: `[]`, `{"$set": {"a.$[x]": 1}}`: `[{"$fail": 1, "x": 1}]`} {
		o := testOptions()
		o.ArrayFilters = parse(t, filters).Value
		s, err := Compile(parse(t, u), o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = s.Apply(parseDoc(t, `{"_id": 1, "a": [{"y": 1}]}`), NoMatch); err == nil || err.Error() != "cannot match" {
			t.Errorf("%s: got %v", u, err)
		}
	}
}

func TestOldForm(t *testing.T) {
	o := testOptions()
	o.Log = LogModifiers
	doc := parseDoc(t, `{"_id": 1, "a": [1], "b": {"c": 1}, "d": 1}`)
	for u, want := range map[string]string{
		`{"$unset": {"b.c": 1}, "$set": {"x.y": 1}, "$push": {"a": 2}}`: `{"$v": 1, "$set": {"a.1": 2, "x.y": 1}, "$unset": {"b.c": true}}`,
		`{"$unset": {"a": 1}, "$set": {"x": 1}, "$rename": {"d": "e"}}`: `{"$v": 1, "$unset": {"a": true, "d": true}, "$set": {"e": 1, "x": 1}}`,
	} {
		s, err := Compile(parse(t, u), o)
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Apply(doc, NoMatch)
		if err != nil || r.Delta != nil {
			t.Fatalf("delta %s, error %v", r.Delta, err)
		}
		if diff := cmp.Diff(show(parseDoc(t, want)), show(r.Modifiers)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", u, diff)
		}
	}
}
