package serverquery

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		filter string
		yes    []string
		no     []string
	}{
		{`{}`, []string{`{}`, `{"a":1}`}, nil},
		{
			`{"a":1}`,
			[]string{`{"a":1}`, `{"a":1.0}`, `{"a":{"$numberLong":"1"}}`, `{"a":{"$numberDecimal":"1.00"}}`, `{"a":[2,1]}`},
			[]string{`{}`, `{"a":"1"}`, `{"a":[[1]]}`, `{"a":true}`},
		},
		{`{"a":null}`, []string{`{}`, `{"a":null}`, `{"a":{"$undefined":true}}`, `{"a":[null]}`}, []string{`{"a":0}`, `{"a":[]}`}},
		{
			`{"a.b":null}`,
			[]string{`{}`, `{"a":5}`, `{"a":{}}`, `{"a":[{"b":1},{}]}`, `{"a":{"b":null}}`},
			[]string{`{"a":[]}`, `{"a":[1,2]}`, `{"a":[{"b":1}]}`},
		},
		{`{"a":[1,2]}`, []string{`{"a":[1,2]}`, `{"a":[[1,2]]}`}, []string{`{"a":[2,1]}`, `{"a":[1,2,3]}`, `{"a":1}`}},
		{`{"a":{"b":1}}`, []string{`{"a":{"b":1}}`, `{"a":[{"b":1}]}`}, []string{`{"a":{"b":1,"c":1}}`, `{"a":{"c":1}}`}},
		{`{"a":{"b":1,"c":2}}`, []string{`{"a":{"b":1,"c":2}}`}, []string{`{"a":{"c":2,"b":1}}`}},
		{`{"a":{"$ref":"x","$id":1}}`, []string{`{"a":{"$ref":"x","$id":1}}`}, []string{`{"a":{"$ref":"x","$id":2}}`}},
		// Paths through arrays.
		{
			`{"a.b":1}`,
			[]string{`{"a":{"b":1}}`, `{"a":[{"b":1}]}`, `{"a":[{"b":[2,1]}]}`, `{"a":[0,{"b":1}]}`},
			[]string{`{"a":[[{"b":1}]]}`, `{"a":[1]}`, `{"a.b":1}`},
		},
		{`{"a.0":1}`, []string{`{"a":[1]}`, `{"a":{"0":1}}`, `{"a":[{"0":1}]}`}, []string{`{"a":[2,1]}`, `{"a":[[1]]}`, `{"a":1}`}},
		{`{"a.0":{"x":1}}`, []string{`{"a":[{"x":1}]}`}, []string{`{"a":[0,{"x":1}]}`}},
		{`{"a.0.b":1}`, []string{`{"a":[{"b":1}]}`, `{"a":[[{"b":1}]]}`, `{"a":[{"0":{"b":1}}]}`}, []string{`{"a":[2,{"b":1}]}`}},
		{`{"a.1.0":5}`, []string{`{"a":[0,[5]]}`, `{"a":[0,{"0":5}]}`}, []string{`{"a":[[5],0]}`}},
		{`{"a.00":1}`, []string{`{"a":{"00":1}}`}, []string{`{"a":[1]}`}},
		// Comparisons keep to their type, and null to nothing.
		{`{"a":{"$gt":1}}`, []string{`{"a":2}`, `{"a":1.5}`, `{"a":[0,2]}`}, []string{`{}`, `{"a":1}`, `{"a":"x"}`, `{"a":{"$numberDouble":"NaN"}}`, `{"a":[]}`}},
		{`{"a":{"$lte":null}}`, []string{`{}`, `{"a":null}`}, []string{`{"a":0}`}},
		{`{"a":{"$lt":null}}`, nil, []string{`{}`, `{"a":null}`}},
		{`{"a":{"$gte":{"$numberDouble":"NaN"}}}`, []string{`{"a":{"$numberDouble":"NaN"}}`, `{"a":{"$numberDecimal":"NaN"}}`}, []string{`{"a":1}`}},
		{`{"a":{"$lt":{"$numberDouble":"NaN"}}}`, nil, []string{`{"a":{"$numberDouble":"NaN"}}`, `{"a":1}`}},
		{`{"a":{"$lt":[2]}}`, []string{`{"a":[1]}`, `{"a":[[1]]}`, `{"a":[]}`}, []string{`{"a":[3]}`, `{"a":1}`}},
		{`{"a":{"$gt":{"$minKey":1}}}`, []string{`{"a":1}`, `{}`}, []string{`{"a":{"$minKey":1}}`}},
		{`{"a":{"$lt":{"$maxKey":1}}}`, []string{`{"a":1}`}, []string{`{"a":{"$maxKey":1}}`}},
		{`{"a":{"$ne":1}}`, []string{`{}`, `{"a":2}`, `{"a":[]}`}, []string{`{"a":1}`, `{"a":[2,1]}`}},
		{`{"a":{"$gt":1,"$lt":3}}`, []string{`{"a":2}`, `{"a":[0,5]}`}, []string{`{"a":1}`, `{"a":[0,1]}`}},
		{
			`{"a":{"$gte":{"$timestamp":{"t":5,"i":1}}}}`,
			[]string{`{"a":{"$timestamp":{"t":5,"i":1}}}`, `{"a":{"$timestamp":{"t":6,"i":0}}}`},
			[]string{`{"a":{"$timestamp":{"t":5,"i":0}}}`, `{"a":{"$date":{"$numberLong":"99999999"}}}`},
		},
		// Lists.
		{`{"a":{"$in":[1,"x",null]}}`, []string{`{"a":1}`, `{"a":["x"]}`, `{}`}, []string{`{"a":2}`}},
		{`{"a":{"$in":[[1]]}}`, []string{`{"a":[1]}`, `{"a":[[1]]}`}, []string{`{"a":1}`}},
		{`{"a":{"$in":[]}}`, nil, []string{`{}`, `{"a":1}`}},
		{`{"a":{"$in":[{"$regularExpression":{"pattern":"^x","options":""}},3]}}`, []string{`{"a":"xy"}`, `{"a":3}`}, []string{`{"a":"yx"}`}},
		{`{"a":{"$nin":[1,2]}}`, []string{`{}`, `{"a":3}`}, []string{`{"a":[3,2]}`}},
		{`{"a":{"$all":[1,2]}}`, []string{`{"a":[2,1,0]}`}, []string{`{"a":[1]}`, `{"a":1}`}},
		{`{"a":{"$all":[]}}`, nil, []string{`{"a":[]}`, `{}`}},
		{`{"a":{"$all":[[1]]}}`, []string{`{"a":[1]}`, `{"a":[[1]]}`}, []string{`{"a":1}`}},
		{`{"a":{"$all":[{"$elemMatch":{"x":1}},{"$elemMatch":{"x":2}}]}}`, []string{`{"a":[{"x":1},{"x":2}]}`}, []string{`{"a":[{"x":1}]}`}},
		{`{"a":{"$elemMatch":{"$gt":1,"$lt":3}}}`, []string{`{"a":[0,2]}`}, []string{`{"a":[0,5]}`, `{"a":2}`, `{"a":[[2]]}`}},
		{`{"a":{"$elemMatch":{"x":1,"y":2}}}`, []string{`{"a":[{"x":1,"y":2}]}`}, []string{`{"a":[{"x":1},{"y":2}]}`, `{"a":{"x":1,"y":2}}`}},
		{`{"a":{"$elemMatch":{"$or":[{"x":1},{"y":2}]}}}`, []string{`{"a":[{"y":2}]}`}, []string{`{"a":[{"y":1}]}`}},
		{`{"a":{"$elemMatch":{"$elemMatch":{"$eq":1}}}}`, []string{`{"a":[[1]]}`}, []string{`{"a":[1]}`}},
		{`{"a":{"$elemMatch":{"$not":{"$gt":1}}}}`, []string{`{"a":[1]}`}, []string{`{"a":[2]}`}},
		{`{"a.b":{"$elemMatch":{"$eq":1}}}`, []string{`{"a":[{"b":[1]}]}`}, []string{`{"a":[{"b":1}]}`}},
		{`{"a":{"$size":2}}`, []string{`{"a":[1,2]}`}, []string{`{"a":[1]}`, `{"a":[[1,2]]}`, `{"a":2}`, `{}`}},
		// Logic.
		{`{"$or":[{"a":1},{"b":1}]}`, []string{`{"a":1}`, `{"b":1}`}, []string{`{}`}},
		{`{"$and":[{"a":1},{"b":1}],"c":1}`, []string{`{"a":1,"b":1,"c":1}`}, []string{`{"a":1,"b":1}`, `{"a":1,"c":1}`}},
		{`{"$nor":[{"a":1},{"b":1}]}`, []string{`{}`}, []string{`{"a":1}`, `{"b":1}`}},
		{`{"a":{"$not":{"$gt":1}}}`, []string{`{}`, `{"a":1}`, `{"a":"x"}`}, []string{`{"a":2}`, `{"a":[0,2]}`}},
		{`{"a":{"$not":{"$regularExpression":{"pattern":"x","options":""}}}}`, []string{`{"a":"y"}`, `{}`}, []string{`{"a":"axa"}`}},
		{`{"a":{"$not":{"$gt":1,"$lt":5}}}`, []string{`{"a":6}`, `{"a":0}`}, []string{`{"a":2}`}},
		{`{"$alwaysFalse":1}`, nil, []string{`{}`}},
		{`{"$alwaysTrue":1,"$comment":"x"}`, []string{`{}`}, nil},
		// Types and other leaves.
		{`{"a":{"$exists":true}}`, []string{`{"a":null}`, `{"a":[]}`}, []string{`{}`}},
		{`{"a.b":{"$exists":false}}`, []string{`{"a":[]}`, `{"a":[1]}`, `{}`}, []string{`{"a":[{},{"b":1}]}`}},
		{`{"a":{"$exists":0}}`, []string{`{}`}, []string{`{"a":1}`}},
		{`{"a":{"$type":"array"}}`, []string{`{"a":[]}`, `{"a":[[]]}`}, []string{`{"a":1}`}},
		{`{"a":{"$type":["int",2]}}`, []string{`{"a":1}`, `{"a":"x"}`, `{"a":[1.5,1]}`}, []string{`{"a":1.5}`, `{}`}},
		{`{"a":{"$type":-1}}`, []string{`{"a":{"$minKey":1}}`}, []string{`{"a":1}`}},
		{
			`{"a":{"$mod":[4,0]}}`,
			[]string{`{"a":8}`, `{"a":8.9}`, `{"a":[1,4]}`, `{"a":-4}`, `{"a":{"$numberDecimal":"4.5"}}`},
			[]string{`{"a":"8"}`, `{"a":{"$numberDouble":"Infinity"}}`, `{"a":6}`},
		},
		{`{"a":{"$mod":[-1,0]}}`, []string{`{"a":{"$numberLong":"-9223372036854775808"}}`}, nil},
		{`{"a":{"$regex":"^AB","$options":"i"}}`, []string{`{"a":"abc"}`, `{"a":["x","ab"]}`}, []string{`{"a":"xab"}`, `{"a":1}`}},
		{`{"a":{"$options":"i","$regex":"^AB"}}`, []string{`{"a":"abc"}`}, []string{`{"a":"b"}`}},
		{
			`{"a":{"$regularExpression":{"pattern":"b$","options":""}}}`,
			[]string{`{"a":"ab"}`, `{"a":"ab\n"}`, `{"a":{"$regularExpression":{"pattern":"b$","options":""}}}`},
			[]string{`{"a":"ab\n\n"}`, `{"a":"abc"}`},
		},
		{`{"a":{"$regularExpression":{"pattern":"^b$","options":"m"}}}`, []string{`{"a":"a\nb\nc"}`}, []string{`{"a":"a\nbc"}`}},
		{`{"$expr":{"$gt":["$a","$b"]}}`, []string{`{"a":2,"b":1}`, `{"a":"x","b":1}`}, []string{`{"a":1,"b":1}`}},
		{`{"":1}`, []string{`{"":1}`}, []string{`{"a":1}`}},
	} {
		m := mustCompile(t, c.filter)
		for _, want := range []bool{true, false} {
			list := c.no
			if want {
				list = c.yes
			}
			for _, doc := range list {
				if got, err := m.Match(parseJSON(t, doc)); err != nil || got != want {
					t.Errorf("%s on %s: %t, %v; want %t", c.filter, doc, got, err, want)
				}
			}
		}
	}
}

func TestRefusedFilters(t *testing.T) {
	for _, c := range []struct {
		filter  string
		code    servererr.Code
		message string
	}{
		{`{"$bogus":1}`, 2, "unknown top level operator: $bogus. If you have a field name that starts with a '$' symbol, consider using $getField or $setField."},
		{`{"a":{"$bogus":1}}`, 2, "unknown operator: $bogus"},
		{`{"a":{"$gt":1,"b":1}}`, 2, "unknown operator: b"},
		{`{"$and":1}`, 2, "$and must be an array"},
		{`{"$or":[]}`, 2, "$and/$or/$nor must be a nonempty array"},
		{`{"$or":[1]}`, 2, "$or/$and/$nor entries need to be full objects"},
		{`{"a":{"$in":1}}`, 2, "$in needs an array"},
		{`{"a":{"$in":[{"$gt":1}]}}`, 2, "cannot nest $ under $in"},
		{`{"a":{"$not":1}}`, 2, "$not needs a regex or a document"},
		{`{"a":{"$not":{}}}`, 2, "$not cannot be empty"},
		{`{"a":{"$gt":{"$undefined":true}}}`, 2, "cannot compare to undefined"},
		{`{"a":{"$gt":{"$regularExpression":{"pattern":"x","options":""}}}}`, 2, "Can't have RegEx as arg to predicate over field 'a'."},
		{`{"a":{"$ne":{"$regularExpression":{"pattern":"x","options":""}}}}`, 2, "Can't have regex as arg to $ne."},
		{`{"a":{"$elemMatch":1}}`, 2, "$elemMatch needs an Object"},
		{`{"a":{"$all":1}}`, 2, "$all needs an array"},
		{`{"a":{"$all":[{"$gt":1}]}}`, 2, "no $ expressions in $all"},
		{`{"a":{"$all":[{"$elemMatch":{"x":1}},1]}}`, 2, "$all/$elemMatch has to be consistent"},
		{`{"a":{"$type":"nope"}}`, 2, "Unknown type name alias: nope"},
		{`{"a":{"$type":99}}`, 2, "Invalid numerical type code: 99"},
		{`{"a":{"$type":[]}}`, 9, "$type must match at least one type"},
		{`{"a":{"$mod":[0,1]}}`, 2, "divisor cannot be 0"},
		{`{"a":{"$mod":[1]}}`, 2, "malformed mod, not enough elements"},
		{`{"a":{"$size":-1}}`, 9, "Failed to parse $size. Expected a non-negative number in: $size: -1"},
		{`{"a":{"$options":"i"}}`, 2, "$options needs a $regex"},
		{`{"a":{"$regex":1}}`, 2, "$regex has to be a string"},
		{`{"a":{"$regex":"(?=x)"}}`, 238, ""},
		{`{"a":{"$regex":"(x)\\1"}}`, 238, ""},
		{`{"a":{"$regex":"x","$options":"x"}}`, 238, ""},
		{`{"a":{"$regex":"x","$options":"q"}}`, 51108, "invalid flag in regex options: q"},
		{`{"a":{"$regex":"["}}`, 51091, ""},
		{`{"a":{"$regex":"[(?"}}`, 238, ""},
		{`{"$expr":{"$nope":1}}`, 168, "Unrecognized expression '$nope'"},
		{`{"a":{"$elemMatch":{"$expr":true}}}`, 2, "$expr can only be applied to the top-level document"},
		{`{"$where":"1"}`, 238, "$where is not implemented"},
		{`{"$text":{"$search":"x"}}`, 238, "$text is not implemented"},
		{`{"a":{"$near":[1,2]}}`, 238, "$near is not implemented"},
		{`{"$alwaysTrue":2}`, 9, ""},
		{`{"$jsonSchema":{"allOf":[]}}`, 238, "$jsonSchema keyword 'allOf' is not implemented"},
		{`{"$jsonSchema":{"minimum":1}}`, 238, "$jsonSchema keyword 'minimum' is not implemented"},
		{`{"$jsonSchema":{"additionalProperties":{}}}`, 238, "$jsonSchema keyword 'additionalProperties' with a schema is not implemented"},
		{`{"$jsonSchema":{"nope":1}}`, 9, "Unknown $jsonSchema keyword: nope"},
		{`{"$jsonSchema":1}`, 14, "$jsonSchema must be an object"},
	} {
		_, err := Compile(parseJSON(t, c.filter), Options{})
		wantRefusal(t, c.filter, err, c.code, c.message)
	}
	_, err := Compile(bson.Raw{1, 2}, Options{})
	wantRefusal(t, "no BSON", err, servererr.InvalidBSON, "")
}

func TestNestingIsLimited(t *testing.T) {
	nest := func(n int) bson.Raw {
		return parseJSON(t, strings.Repeat(`{"$and":[`, n)+`{"a":1}`+strings.Repeat(`]}`, n))
	}
	if _, err := Compile(nest(99), Options{}); err != nil {
		t.Error(err)
	}
	_, err := Compile(nest(110), Options{})
	wantRefusal(t, "110 levels of $and", err, servererr.BadValue, "")
	not := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "$gt", 1))
	for range 205 {
		not = bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "$not", not))
	}
	_, err = Compile(bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "a", not)), Options{})
	wantRefusal(t, "205 levels of $not", err, servererr.BadValue, "")
}

func TestMatchIndex(t *testing.T) {
	for _, c := range []struct {
		filter, doc string
		want        int
	}{
		{`{"a":2}`, `{"a":[1,2,2]}`, 1},
		{`{"a":2}`, `{"a":2}`, -1},
		{`{"a":{"$gte":1},"b":7}`, `{"a":[0,1],"b":[9,8,7]}`, 2},
		{`{"a.b":3}`, `{"a":[{"b":1},{"b":[2,3]}]}`, 1},
		{`{"a.0.b":3}`, `{"a":[{"b":[2,3]}]}`, 1},
		{`{"a.1":3}`, `{"a":[2,3]}`, -1},
		{`{"a":{"$elemMatch":{"x":1}}}`, `{"a":[0,{"x":1}]}`, 1},
		{`{"$or":[{"a":9},{"b":1}]}`, `{"a":[1],"b":[0,1]}`, 1},
		{`{"a":{"$ne":5}}`, `{"a":[1,2]}`, -1},
	} {
		ok, index, err := mustCompile(t, c.filter).MatchIndex(parseJSON(t, c.doc))
		if !ok || index != c.want || err != nil {
			t.Errorf("%s on %s: %t, %d, %v; want %d", c.filter, c.doc, ok, index, err, c.want)
		}
	}
}

func TestCollation(t *testing.T) {
	coll, err := bsonorder.NewCollator(parseJSON(t, `{"locale":"en","strength":2}`))
	if err != nil {
		t.Fatal(err)
	}
	for filter, want := range map[string]bool{
		`{"a":"X"}`: true, `{"a":{"$in":["y","X"]}}`: true, `{"a":{"$gt":"X"}}`: false, `{"b":{"c":"Y"}}`: true,
	} {
		m, err := Compile(parseJSON(t, filter), Options{Collator: coll})
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := m.Match(parseJSON(t, `{"a":"x","b":{"c":"y"}}`)); got != want {
			t.Errorf("%s: %t", filter, got)
		}
	}
	_, err = Compile(parseJSON(t, `{"$expr":true}`), Options{Collator: coll})
	wantRefusal(t, "$expr under a collation", err, servererr.NotImplemented, "")
}

func TestMatchIsCheap(t *testing.T) {
	doc := parseJSON(t, `{"_id":7,"x":"abc","n":{"a":5}}`)
	for _, filter := range []string{`{"_id":7}`, `{"_id":{"$gte":3,"$lt":9}}`, `{"n.a":5,"x":"abc"}`, `{"_id":{"$in":[1,7]}}`} {
		m := mustCompile(t, filter)
		if n := testing.AllocsPerRun(100, func() { _, _ = m.Match(doc) }); n != 0 {
			t.Errorf("%s: %v allocations", filter, n)
		}
	}
}

func FuzzFilter(f *testing.F) {
	for _, filter := range []string{
		`{"a":1}`, `{"a":{"$in":[1,null]},"$or":[{"b":{"$not":{"$size":1}}}]}`, `{"a.0.b":{"$elemMatch":{"$gt":1}}}`,
		`{"$jsonSchema":{"required":["a"],"properties":{"a":{"bsonType":"int"}}}}`,
		`{"a":{"$all":[1]}}`, `{"a":{"$regex":"x$"}}`, `{"b":{"$mod":[2,1]}}`, `{"$expr":{"$eq":["$a",1]}}`,
	} {
		f.Add([]byte(parseJSON(f, filter)), []byte(parseJSON(f, `{"_id":1,"a":[1,{"b":"x"}],"b":3}`)))
	}
	f.Fuzz(func(t *testing.T, filter, doc []byte) {
		m, err := Compile(filter, Options{})
		if err != nil {
			wantOurs(t, err)
			return
		}
		_, _, _ = m.MatchIndex(doc)
		_ = m.Bounds("_id")
		_, _ = m.Equalities()
		v, err := CompileValidator(filter, Options{})
		if err != nil {
			t.Fatalf("a filter that is no validator: %v", err)
		}
		_ = v.Check(doc)
	})
}
