package serverquery

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

func runPipeline(t testing.TB, pipeline string, docs ...string) ([]bson.Raw, error) {
	t.Helper()
	stages, err := Stages(parseJSON(t, `{"p":`+pipeline+`}`).Lookup("p"))
	if err != nil {
		return nil, err
	}
	p, err := CompilePipeline(stages, PipelineOptions{
		Random: func(int) int { return 0 },
	})
	if err != nil {
		return nil, err
	}
	var out []bson.Raw
	for doc, err := range p.Run(slices.Values(parseAll(t, docs...))) {
		if err != nil {
			return nil, err
		}
		out = append(out, doc)
	}
	return out, nil
}

func TestPipeline(t *testing.T) {
	docs := []string{`{"_id":1,"g":"a","n":1,"l":[1,2]}`, `{"_id":2,"g":"b","n":2.5,"l":[]}`, `{"_id":3,"g":"a","n":3}`, `{"_id":4,"n":"x","l":5}`}
	for _, c := range []struct {
		pipeline string
		want     []string
	}{
		{`[]`, docs},
		{`[{"$match":{"g":"a"}},{"$project":{"n":1,"_id":0}}]`, []string{`{"n":1}`, `{"n":3}`}},
		{`[{"$group":{"_id":"$g","s":{"$sum":"$n"},"a":{"$avg":"$n"},"lo":{"$min":"$n"},"hi":{"$max":"$n"},"c":{"$count":{}}}}]`, []string{
			`{"_id":"a","s":4,"a":2.0,"lo":1,"hi":3,"c":2}`,
			`{"_id":"b","s":2.5,"a":2.5,"lo":2.5,"hi":2.5,"c":1}`,
			`{"_id":null,"s":0,"a":null,"lo":"x","hi":"x","c":1}`,
		}},
		{`[{"$group":{"_id":{"g":"$g"},"n":{"$sum":1}}},{"$sort":{"_id":-1}},{"$limit":1}]`, []string{`{"_id":{"g":"b"},"n":1}`}},
		{`[{"$group":{"_id":null,"n":{"$sum":{"$numberLong":"9223372036854775807"}}}}]`, []string{`{"_id":null,"n":36893488147419103228.0}`}},
		{`[{"$sort":{"n":-1}},{"$skip":1},{"$limit":2},{"$project":{"n":1}}]`, []string{`{"_id":3,"n":3}`, `{"_id":2,"n":2.5}`}},
		{`[{"$count":"c"}]`, []string{`{"c":4}`}},
		{`[{"$match":{"g":"zz"}},{"$count":"c"}]`, nil},
		{`[{"$limit":1},{"$addFields":{"m.x":{"$add":["$n",1]}}},{"$unset":["l","g"]},{"$set":{"g":"back"}}]`, []string{`{"_id":1,"g":"back","n":1,"m":{"x":2}}`}},
		{`[{"$limit":1},{"$replaceRoot":{"newRoot":{"y":"$n"}}}]`, []string{`{"y":1}`}},
		{`[{"$limit":1},{"$replaceWith":{"$mergeObjects":["$$ROOT",{"g":1}]}},{"$project":{"l":0}}]`, []string{`{"_id":1,"g":1,"n":1}`}},
		{`[{"$sample":{"size":2}}]`, docs[:2]},
		{`[{"$unwind":"$l"},{"$project":{"l":1}}]`, []string{`{"_id":1,"l":1}`, `{"_id":1,"l":2}`, `{"_id":4,"l":5}`}},
		{
			`[{"$unwind":{"path":"$l","preserveNullAndEmptyArrays":true}},{"$project":{"l":1}}]`,
			[]string{`{"_id":1,"l":1}`, `{"_id":1,"l":2}`, `{"_id":2}`, `{"_id":3}`, `{"_id":4,"l":5}`},
		},
		{`[{"$limit":1},{"$replaceWith":{"a":{"x":1,"b":"$l","y":2}}},{"$unwind":"$a.b"}]`, []string{`{"a":{"x":1,"b":1,"y":2}}`, `{"a":{"x":1,"b":2,"y":2}}`}},
		{`[{"$limit":1},{"$replaceWith":{"a":[{"b":[1]}]}},{"$unwind":"$a.b"}]`, nil},
		{`[{"$unwind":"$l"},{"$limit":1},{"$project":{"l":1}}]`, []string{`{"_id":1,"l":1}`}},
	} {
		got, err := runPipeline(t, c.pipeline, docs...)
		if err != nil {
			t.Errorf("%s: %v", c.pipeline, err)
			continue
		}
		if diff := cmp.Diff(texts(parseAll(t, c.want...)), texts(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.pipeline, diff)
		}
	}
}

func TestRefusedPipelines(t *testing.T) {
	for _, c := range []struct {
		pipeline string
		code     servererr.Code
		message  string
	}{
		{`[{"$bogus":1}]`, 40324, "Unrecognized pipeline stage name: '$bogus'"},
		{`[{"$documents":[]}]`, 5491300, "$documents' is not allowed in user requests"},
		{`[{}]`, 40323, "A pipeline stage specification object must contain exactly one field."},
		{`[1]`, 14, "Each element of the 'pipeline' array must be an object"},
		{`[{"$out":"x"}]`, 238, "the stage $out is not implemented"},
		{`[{"$match":1}]`, 15959, ""},
		{`[{"$limit":1},{"$collStats":{}}]`, 40602, "$collStats is only valid as the first stage in a pipeline"},
		{`[{"$limit":0}]`, 15958, "the limit must be positive"},
		{`[{"$limit":-1}]`, 5107201, "invalid argument to $limit stage: Expected a non-negative number in: $limit: -1"},
		{`[{"$skip":"x"}]`, 5107200, ""},
		{`[{"$sort":{}}]`, 15976, "$sort stage must have at least one sort key"},
		{`[{"$sort":{"$natural":1}}]`, 16410, ""},
		{`[{"$project":{}}]`, 51272, "Invalid $project :: caused by :: projection specification must have at least one field"},
		{`[{"$project":{"a":1,"b":0}}]`, 31254, "Invalid $project :: caused by :: Cannot do exclusion on field b in inclusion projection"},
		{`[{"$group":{"n":{"$sum":1}}}]`, 15955, "a group specification must include an _id"},
		{`[{"$group":{"_id":1,"n":1}}]`, 40234, "The field 'n' must be an accumulator object"},
		{`[{"$group":{"_id":1,"n":{"$nope":1}}}]`, 15952, "unknown group operator '$nope'"},
		{`[{"$group":{"_id":1,"n":{"$mergeObjects":1}}}]`, 238, ""},
		{`[{"$group":{"_id":1,"n":{"$push":1}}}]`, 238, "the accumulator $push is not implemented"},
		{`[{"$count":"a.b"}]`, 40160, ""},
		{`[{"$unwind":1}]`, 15981, "expected either a string or an object as specification for $unwind stage, got int"},
		{`[{"$unwind":{"path":1}}]`, 28808, ""},
		{`[{"$unwind":{"path":"$l","preserveNullAndEmptyArrays":1}}]`, 28809, ""},
		{`[{"$unwind":{"path":"$l","includeArrayIndex":"i"}}]`, 238, "the option includeArrayIndex of $unwind is not implemented"},
		{`[{"$unwind":{"path":"$l","also":1}}]`, 28811, "unrecognized option to $unwind stage: also"},
		{`[{"$unwind":{}}]`, 28812, "no path specified to $unwind stage"},
		{`[{"$unwind":"l"}]`, 28818, "path option to $unwind stage should be prefixed with a '$': l"},
		{`[{"$lookup":{"from":"x","as":"y","pipeline":[]}}]`, 238, "the stage $lookup is not implemented"},
		{`[{"$facet":{"a":[{"$count":"n"}]}}]`, 238, "the stage $facet is not implemented"},
		{`[{"$set":{"a":{"$nope":1}}}]`, 168, ""},
	} {
		_, err := runPipeline(t, c.pipeline)
		wantRefusal(t, c.pipeline, err, c.code, c.message)
	}
	_, err := runPipeline(t, `[{"$set":{"a":{"$add":["$n",1]}}}]`, `{"n":"x"}`)
	wantRefusal(t, "a sum with text", err, 16554, "$add only supports numeric or date types, not string")
	_, err = runPipeline(t, `[{"$group":{"_id":1,"n":{"$sum":"$n"}}}]`, `{"n":{"$numberDecimal":"1"}}`)
	wantRefusal(t, "a sum of decimals", err, servererr.NotImplemented, "")
}

// A pipeline reads no more than it needs, and can be run again.
func TestPipelineStreams(t *testing.T) {
	p, err := CompilePipeline(parseAll(t, `{"$match":{"_id":{"$gte":0}}}`, `{"$limit":2}`), PipelineOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if p.Leading() == nil || p.Leading().Bounds("_id").Low.Type == 0 {
		t.Error("the first stage gives no bounds")
	}
	doc := parseJSON(t, `{"_id":1}`)
	for range 2 {
		read, got := 0, 0
		for _, err := range p.Run(func(yield func(bson.Raw) bool) {
			for read++; yield(doc); read++ {
			}
		}) {
			if err != nil {
				t.Fatal(err)
			}
			got++
		}
		if read != 2 || got != 2 {
			t.Errorf("read %d documents for %d", read, got)
		}
	}
}

func TestSplitSource(t *testing.T) {
	stages := parseAll(t, `{"$collStats":{"count":{}}}`, `{"$limit":1}`)
	if source, rest := SplitSource(stages); source == nil || len(rest) != 1 {
		t.Error(source, rest)
	}
	if source, rest := SplitSource(stages[1:]); source != nil || len(rest) != 1 {
		t.Error(source, rest)
	}
}

func FuzzPipeline(f *testing.F) {
	for _, p := range []string{
		`{"p":[{"$match":{"a":1}},{"$group":{"_id":"$a","n":{"$sum":"$b"}}},{"$sort":{"n":-1}}]}`,
		`{"p":[{"$project":{"a.b":1,"c":{"$add":["$a",1]}}},{"$unwind":{"path":"$a","includeArrayIndex":"a.i"}}]}`,
		`{"p":[{"$addFields":{"a.b":"$$ROOT"}},{"$unset":"a"},{"$count":"n"}]}`,
	} {
		f.Add(parseJSON(f, p).Lookup("p").Value, []byte(parseJSON(f, `{"_id":1,"a":[1,{"b":2}],"b":3}`)))
	}
	f.Fuzz(func(t *testing.T, pipeline, doc []byte) {
		stages, err := Stages(bson.RawValue{Type: bson.TypeArray, Value: pipeline})
		if err != nil || bson.Raw(doc).Validate() != nil {
			return
		}
		p, err := CompilePipeline(stages, PipelineOptions{})
		if err != nil {
			wantOurs(t, err)
			return
		}
		for _, err := range p.Run(slices.Values([]bson.Raw{doc, doc})) {
			if err != nil {
				wantOurs(t, err)
			}
		}
	})
}

func FuzzProjection(f *testing.F) {
	for _, p := range []string{`{"a.b":1}`, `{"a.b":0,"b":0}`, `{"a.$":1}`, `{"a":{"b":1},"x":"$a.b"}`} {
		f.Add([]byte(parseJSON(f, p)), []byte(parseJSON(f, `{"a":1}`)), []byte(parseJSON(f, `{"_id":1,"a":[1,{"b":2}],"b":3}`)))
	}
	f.Fuzz(func(t *testing.T, projection, order, doc []byte) {
		if bson.Raw(doc).Validate() != nil {
			return
		}
		if s, err := CompileSort(order, Options{}); err == nil {
			_ = s.Docs([]bson.Raw{doc, doc})
		}
		p, err := CompileProjection(projection, Options{})
		if err != nil {
			wantOurs(t, err)
			return
		}
		out, err := p.Apply(doc)
		if err != nil {
			wantOurs(t, err)
		} else if err := out.Validate(); err != nil {
			t.Errorf("no BSON: %v", err)
		}
	})
}

// TestInterrupt ends runs of stages that need all documents, or drop them all,
// long before they are through.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	const many = 100_000
	over := errors.New("over")
	for _, text := range []string{
		`{"$sort":{"a":1}}`,
		`{"$group":{"_id":"$a"}}`,
		`{"$count":"n"}`,
		`{"$match":{"a":-1}}`,
	} {
		for _, after := range []int{1, 50, 110} {
			// asked counts what Interrupt is asked, and given the documents that are read.
			asked, given := 0, 0
			source := func(yield func(bson.Raw) bool) {
				for i := range many {
					given++
					if !yield(bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "a", int32((i*7919)%many))))) {
						return
					}
				}
			}
			p, err := CompilePipeline(parseAll(t, text), PipelineOptions{
				Interrupt: func() error {
					if asked++; asked >= after {
						return over
					}
					return nil
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			var last error
			for _, err := range p.Run(source) {
				last = err
			}
			if asked > after {
				t.Errorf("%s: asked again after the end", text)
			}
			if !errors.Is(last, over) && (after == 1 || asked == after) {
				t.Errorf("%s: ends with %v", text, last)
			}
			if errors.Is(last, over) && given > (after+1)*interval {
				t.Errorf("%s: %d documents read after %d questions", text, given, after)
			}
		}
	}
}

// TestCheckPipeline: a view may be defined with stages that cannot be run here.
func TestCheckPipeline(t *testing.T) {
	t.Parallel()
	for text, code := range map[string]servererr.Code{
		`{"$lookup":{"from":"a","as":"x","let":{},"pipeline":[]}}`: 0,
		`{"$facet":{"x":[{"$unionWith":"b"}]}}`:                    0,
		`{"$match":{"a":1}}`:                                       0,
		`{"$set":{"a":{"$multiply":["$b",2]}}}`:                    0,
		`{"$project":{"a":{"$dateToString":{"date":"$b"}}}}`:       0,
		`{"$nothing":1}`:                                           40324,
		`{"$collStats":{}}`:                                        40602,
		`{"$group":{}}`:                                            15955,
	} {
		err := CheckPipeline(parseAll(t, `{"$match":{"a":1}}`, text), Options{})
		if code == 0 && err != nil || code != 0 && codeOf(err) != code {
			t.Errorf("%s: %v, want code %d", text, err, code)
		}
	}
}

func codeOf(err error) servererr.Code {
	refusal, _ := errors.AsType[*servererr.Error](err)
	if refusal == nil {
		return 0
	}
	return refusal.Code
}
