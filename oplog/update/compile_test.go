package update_test

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/serverupdate"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog/update"
)

var (
	preImage  = update.CompileOptions{Guarantee: update.GuaranteePreImage}
	newFields = update.CompileOptions{Guarantee: update.GuaranteeNewFields}
)

// The form of each delta, and the exact update sent.
func TestCompileForms(t *testing.T) {
	for _, tc := range []struct {
		name, diff string
		opt        update.CompileOptions
		want       string // an object for modifiers, an array for a pipeline
	}{
		{"top-level update", `{"u":{"a":1}}`, update.CompileOptions{}, `{"$set":{"a":1}}`},
		{"updates in $set's order", `{"u":{"a":1,"b":"$x"}}`, update.CompileOptions{}, `{"$set":{"a":1,"b":"$x"}}`},
		{"updates in another order", `{"u":{"b":1,"a":"$x"}}`, update.CompileOptions{}, `[{"$set":{"b":1,"a":{"$literal":"$x"}}}]`},
		{"updates named by numbers", `{"u":{"10":1,"9":1}}`, update.CompileOptions{}, `[{"$set":{"10":1,"9":1}}]`},
		{"one update named by a number", `{"u":{"10":1}}`, update.CompileOptions{}, `{"$set":{"10":1}}`},
		{"delete", `{"d":{"a":false,"b":false}}`, update.CompileOptions{}, `{"$unset":{"a":"","b":""}}`},
		{"delete and update", `{"d":{"z":false},"u":{"a":[1]}}`, update.CompileOptions{}, `{"$set":{"a":[1]},"$unset":{"z":""}}`},
		{"insert", `{"i":{"a":1}}`, update.CompileOptions{}, `[{"$unset":["a"]},{"$replaceWith":{"$mergeObjects":["$$ROOT",{"$literal":{"a":1}}]}}]`},
		{"insert on the pre-image", `{"i":{"a":1}}`, preImage, `[{"$unset":["a"]},{"$replaceWith":{"$mergeObjects":["$$ROOT",{"$literal":{"a":1}}]}}]`},
		{"insert, known to be new", `{"i":{"a":1}}`, newFields, `{"$set":{"a":1}}`},
		{"inserts in another order", `{"i":{"b":1,"a":1}}`, newFields, `[{"$set":{"b":1,"a":1}}]`},
		{"updates, known to be there", `{"u":{"b":1,"a":1}}`, preImage, `{"$set":{"b":1,"a":1}}`},
		{"inside, known", `{"sa":{"d":{"x":false},"u":{"y":1},"sb":{"i":{"z":1}}}}`, newFields, `{"$set":{"a.y":1,"a.b.z":1},"$unset":{"a.x":""}}`},
		{"inside an array, known", `{"sa":{"a":true,"u0":1,"s2":{"u":{"x":1}}}}`, preImage, `{"$set":{"a.0":1,"a.2.x":1}}`},
		{"a cut array, known", `{"u":{"b":1},"sa":{"a":true,"l":2}}`, preImage, `[{"$set":{"a":{"$concatArrays":[{"$slice":["$$ROOT.a",0,2]}]},"b":1}}]`},
		{"a cut and changed array, known", `{"sa":{"a":true,"l":2,"u0":1}}`, preImage, `[{"$set":{"a":{"$concatArrays":[[1],{"$slice":["$$ROOT.a",1,1]}]}}}]`},
		{"an emptied array", `{"sa":{"a":true,"l":0}}`, preImage, `[{"$set":{"a":[]}}]`},
		{
			"an array that may have a gap, known", `{"sa":{"a":true,"u2":{"$x":1}}}`, preImage,
			`[{"$set":{"a":{"$let":{"vars":{"v1":{"$concatArrays":["$$ROOT.a",{"$map":{"input":{"$range":[{"$size":"$$ROOT.a"},2]},"in":null}}]}},
				"in":{"$concatArrays":[{"$slice":["$$v1",0,2]},[{"$literal":{"$x":1}}],{"$slice":["$$v1",3,2147483647]}]}}}}}]`,
		},
		{
			"an array that cannot have a gap, known", `{"sa":{"a":true,"s1":{"u":{"$x":1}}}}`, preImage,
			`[{"$set":{"a":{"$concatArrays":[{"$slice":["$$ROOT.a",0,1]},
				[{"$let":{"vars":{"v1":{"$arrayElemAt":["$$ROOT.a",1]}},"in":{"$mergeObjects":["$$v1",{"$literal":{"$x":1}}]}}}],
				{"$slice":["$$ROOT.a",2,2147483647]}]}}}]`,
		},
		{
			"inside, unknown", `{"sa":{"u":{"b":1}}}`,
			update.CompileOptions{},
			`[{"$set":{"a":{"$cond":[{"$eq":[{"$type":"$$ROOT.a"},"object"]},
				{"$mergeObjects":["$$ROOT.a",{"$literal":{"b":1}}]},
				{"$cond":[{"$eq":[{"$type":"$$ROOT.a"},"missing"]},"$$REMOVE",null]}]}}}]`,
		},
		{"a dotted name", `{"u":{"a.b":1}}`, preImage, `[{"$replaceWith":{"$mergeObjects":["$$ROOT",{"$literal":{"a.b":1}}]}}]`},
		{
			"deletes of names that are no paths", `{"d":{"":false,"$x":false}}`,
			update.CompileOptions{},
			`[{"$replaceWith":{"$unsetField":{"field":"","input":{"$unsetField":{"field":{"$literal":"$x"},"input":"$$ROOT"}}}}}]`,
		},
		{"a value with a dollar name", `{"u":{"a":{"b":[{"$x":1}]}}}`, preImage, `[{"$set":{"a":{"$literal":{"b":[{"$x":1}]}}}}]`},
		{"a value with a dollar", `{"u":{"a":{"b":"$x"}}}`, preImage, `{"$set":{"a":{"b":"$x"}}}`},
		{"a zero timestamp", `{"u":{"a":{"$timestamp":{"t":0,"i":0}}}}`, preImage, `[{"$set":{"a":{"$timestamp":{"t":0,"i":0}}}}]`},
		{"_id after a new field", `{"i":{"new":0,"_id":1,"a":2}}`, preImage, `[{"$unset":["new","_id","a"]},{"$replaceWith":{"$mergeObjects":["$$ROOT",{"$literal":{"new":0,"_id":1,"a":2}}]}}]`},
		{"_id after a new field, that is known to be new", `{"i":{"_id":1}}`, newFields, `[{"$set":{"_id":1}}]`},
		{"_id of another type", `{"u":{"_id":1.0}}`, update.CompileOptions{}, `[{"$set":{"_id":1.0}}]`},
		{"_id of another type, known", `{"u":{"_id":1.0,"a":1}}`, preImage, `[{"$set":{"_id":1.0,"a":1}}]`},
		{"_id left out", `{"d":{"_id":false,"a":false}}`, preImage, `[{"$set":{"_id":"$$REMOVE","a":"$$REMOVE"}}]`},
		{"another type inside _id", `{"s_id":{"u":{"x":1.0}}}`, preImage, `[{"$set":{"_id":{"$mergeObjects":["$$ROOT._id",{"$literal":{"x":1.0}}]}}}]`},
		{"nothing", `{"d":{}}`, update.CompileOptions{}, `[{"$replaceWith":"$$ROOT"}]`},
		{"nothing, known", `{"sa":{"a":true}}`, preImage, `[{"$set":{"a":"$$ROOT.a"}}]`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := update.CompileDelta(parse(t, tc.diff), tc.opt)
			if err != nil {
				t.Fatal(err)
			}
			want := parse(t, `{"u":`+tc.want+`}`).Lookup("u")
			if !got.U.Equal(want) {
				t.Errorf("compiles to\n%s, want\n%s", got.U, want)
			}
			if (got.Form == update.CompiledModifiers) != (want.Type == bson.TypeEmbeddedDocument) {
				t.Errorf("form is %d for a %s", got.Form, want.Type)
			}
			if depth := serverupdate.Depth(got.U); depth != got.Depth {
				t.Errorf("depth is said to be %d, is %d", got.Depth, depth)
			}
		})
	}
}

// compiles checks that the compiled delta has the same effect on doc as the delta.
func compiles(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, doc, diff bson.Raw, opt update.CompileOptions,
) (compiled bool) {
	t.Helper()
	want, err := update.ApplyDelta(doc, diff)
	if err != nil {
		t.Fatalf("apply %s to %s: %v", diff, doc, err)
	}
	c, err := update.CompileDelta(diff, opt)
	if errors.Is(err, update.ErrNotCompilable) {
		return false
	}
	if err != nil {
		t.Fatalf("compile %s: %v", diff, err)
	}
	if err := serverupdate.CheckStatement(c.U); err != nil {
		t.Fatalf("%s compiles to %s, which a server refuses: %v", diff, c.U, err)
	}
	got, err := serverupdate.Apply(doc, c.U)
	if err != nil {
		t.Fatalf("%s compiles to %s, which a server refuses: %v", diff, c.U, err)
	}
	if string(got) != string(want) {
		t.Fatalf("delta     %s\non        %s\ngives     %s\ncompiled  %s\ngives     %s", diff, doc, want, c.U, got)
	}
	return true
}

// Every delta is applied to every document, so that each one meets shapes that it
// was not computed for.
func TestCompiledMeetsAnyShape(t *testing.T) {
	deltas := []string{
		`{"d":{"a":false}}`, `{"d":{"a":false,"x.y":false,"":false,"$d":false}}`,
		`{"u":{"a":1}}`, `{"u":{"b":1,"a":2,"0":3}}`, `{"i":{"a":1}}`, `{"i":{"b":1,"a":{"$literal":1}}}`,
		`{"d":{"c":false},"u":{"b":"$b"},"i":{"a":[["$a"]]}}`,
		`{"i":{"x.y":1,"$d":2,"":3,"0":4}}`, `{"u":{"x.y":1,"$d":"$$ROOT","":{},"0":{"$undefined":true}}}`,
		`{"sa":{"d":{"a":false}}}`, `{"sa":{"u":{"b":1},"i":{"a":1}}}`, `{"u":{"z":1},"i":{"b":2},"sa":{"i":{"b":1}}}`,
		`{"s":{"u":{"":1}}}`, `{"sx.y":{"i":{"a":1}},"s$d":{"d":{"$d":false},"u":{"$e":1}}}`,
		`{"sa":{"sa":{"sa":{"u":{"a":1}}}}}`, `{"sa":{"s":{"sx.y":{"i":{"$d":1}}}}}`,
		`{"sa":{"a":true}}`, `{"sa":{"a":true,"l":0}}`, `{"sa":{"a":true,"l":2}}`, `{"sa":{"a":true,"l":5,"u1":"$1"}}`,
		`{"sa":{"a":true,"u0":0}}`, `{"sa":{"a":true,"u3":{"$x":1}}}`, `{"sa":{"a":true,"u1":1,"u2":2,"u5":[5]}}`,
		`{"sa":{"a":true,"s0":{"u":{"a":1}},"s1":{"a":true,"u1":1},"s2":{"d":{"x.y":false}}}}`,
		`{"sx.y":{"a":true,"s1":{"i":{"a":1}},"u2":null}}`,
		`{"i":{"_id":1}}`, `{"i":{"new":0,"_id":1,"a":2,"b":3}}`, `{"u":{"_id":1.0}}`, `{"i":{"_id":1.0,"$d":1}}`, `{"u":{"_id":1},"sa":{"u":{"b":1}}}`,
		`{"d":{"_id":false}}`, `{"d":{"_id":false,"x.y":false}}`, `{"d":{"_id":false,"a":false},"i":{"b":1}}`, `{"i":{"x.y":1,"_id":1}}`,
		`{"sa":{"s0":{"a":true,"l":1,"s0":{"sb":{"u":{"c":1}}}}}}`,
		`{"d":{"z":false},"u":{"y":1},"i":{"c":1},"sa":{"i":{"q":1}},"sb":{"a":true,"u0":1},"s":{"d":{"a":false}}}`,
	}
	docs := []string{
		`{"_id":1}`,
		`{"_id":1,"a":1,"b":2,"c":3,"z":0}`, `{"new":1,"a":1,"_id":1,"b":2}`, `{"a":2,"_id":1}`,
		`{"_id":1,"c":{},"a":{},"":{"":0,"a":2},"x.y":{"a":0,"b":1},"$d":{"$d":1,"e":2}}`,
		`{"_id":1,"a":{"a":{"a":{"a":0}},"b":0},"0":1,"b":[]}`,
		`{"_id":1,"a":{"":{"x.y":{"$d":0,"z":1}},"0":[{"b":{}},2]}}`,
		`{"_id":1,"a":[],"b":1}`, `{"_id":1,"a":[{"a":0}],"b":[0,1]}`, `{"_id":1,"a":[{"a":0},[0],{"x.y":1,"k":2},3,4,5,6],"":[]}`,
		`{"_id":1,"a":[[0,1],{"a":0}],"x.y":[0,{"z":1},2,3]}`,
		`{"_id":1,"a":null,"b":{"$undefined":true},"c":{"$symbol":"s"}}`,
		`{"_id":1,"a":"object","":null,"x.y":"array","$d":[]}`,
		`{"_id":1,"a":{"$undefined":true},"":{"$undefined":true}}`,
	}
	for i, delta := range deltas {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			for _, doc := range docs {
				if !compiles(t, parse(t, doc), parse(t, delta), update.CompileOptions{}) {
					t.Fatalf("%s is not compiled", delta)
				}
			}
		})
	}
}

func TestCompileRandomDeltasOnRandomDocuments(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		doc, diff := bsongen.Document(rt), bsongen.Delta(rt)
		if repeats(doc) {
			rt.Skip("a pipeline cannot keep a field that is there twice")
		}
		if rapid.IntRange(0, 2).Draw(rt, "of _id") == 0 {
			diff = bsongen.IDDelta(rt, doc.Lookup("_id"))
			doc = bsongen.MoveID(rt, doc)
		}
		compiles(rt, doc, diff, update.CompileOptions{})
	})
}

func TestCompileDiffsOnTheirPreImage(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		pre := bsongen.Document(rt)
		made := bsongen.Made(rt, pre)
		post := stored(pre, made)
		if repeats(pre) || repeats(post) {
			rt.Skip("a pipeline cannot keep a field that is there twice")
		}
		diff, ok := update.Diff(pre, made, 0)
		if !ok || len(diff) == 5 {
			return
		}
		compiles(rt, pre, diff, update.CompileOptions{})
		compiles(rt, pre, diff, preImage)
		if d, err := update.ParseDelta(diff); err == nil && d.AddsTo(pre) {
			compiles(rt, pre, diff, newFields)
		}
		// And to a document that already has the change, as when a log is read again.
		compiles(rt, post, diff, update.CompileOptions{})
		compiles(rt, bsongen.Mutate(rt, post), diff, update.CompileOptions{})
	})
}

// repeats reports whether a document, or one inside it, has a field name twice.
func repeats(doc bson.Raw) bool {
	elems, _ := doc.Elements()
	seen := map[string]bool{}
	for _, e := range elems {
		if seen[e.Key()] {
			return true
		}
		seen[e.Key()] = true
		switch v := e.Value(); v.Type {
		case bson.TypeEmbeddedDocument, bson.TypeArray:
			if repeats(bson.Raw(v.Value)) {
				return true
			}
		}
	}
	return false
}

func nestedDelta(levels int) string {
	return strings.Repeat(`{"sa":`, levels) + `{"u":{"b":1}}` + strings.Repeat(`}`, levels)
}

func TestCompileRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, diff, reason string
		opt                update.CompileOptions
	}{
		{"binary diffs", `{"b":{"f":{"o":1,"d":{"$binary":{"base64":"AA==","subType":"00"}}}}}`, "binary data", update.CompileOptions{}},
		{"binary diffs inside", `{"sx":{"b":{"f":{"o":1,"d":{"$binary":{"base64":"AA==","subType":"00"}}}}}}`, "binary data", preImage},
		{"an element that no array has", `{"sa":{"a":true,"u2147483647":1}}`, "an array of 2147483648 elements", preImage},
		{"a length that no array has", `{"sa":{"a":true,"l":5000000}}`, "an array of 5000000 elements", update.CompileOptions{}},
		{"what is too deep", nestedDelta(40), "levels deep, and 190 is", update.CompileOptions{}},
		{"what is too deep for the caller", nestedDelta(2), "levels deep, and 10 is", update.CompileOptions{MaxDepth: 10}},
		{"what is too big", `{"u":{"a":"` + strings.Repeat("x", 100) + `"}}`, "bytes, and 100 is", update.CompileOptions{MaxSize: 100}},
	} {
		_, err := update.CompileDelta(parse(t, tc.diff), tc.opt)
		fault, ok := errors.AsType[*update.NotCompilableError](err)
		if !ok || !strings.Contains(err.Error(), tc.reason) {
			t.Errorf("%s: error is %v, want %q", tc.name, err, tc.reason)
			continue
		}
		if strings.Contains(tc.reason, "levels") != (fault.Depth > 0) || strings.Contains(tc.reason, "bytes") != (fault.Size > 0) {
			t.Errorf("%s: size %d, depth %d", tc.name, fault.Size, fault.Depth)
		}
	}
	if _, err := update.CompileDelta(parse(t, `{"x":{}}`), preImage); !errors.Is(err, update.ErrBadDelta) {
		t.Errorf("what is no delta gives %v", err)
	}
	if _, err := update.CompileDelta(parse(t, nestedDelta(40)), preImage); err != nil {
		t.Errorf("a deep path on the pre-image: %v", err)
	}
	many := `{"sa":{"a":true,` + strings.TrimSuffix(strings.Join(manyMods(), ","), ",") + `}}`
	for name, diff := range map[string]string{
		"a path of 121 names": nestedDelta(120), "many elements": many, "a far element": `{"sa":{"a":true,"u1600000":1}}`,
	} {
		if c, err := update.CompileDelta(parse(t, diff), preImage); err == nil && c.Form == update.CompiledModifiers {
			t.Errorf("%s: modifiers", name)
		}
	}
}

// hugeIndex matches array indexes and lengths that make documents too large to
// test.
var hugeIndex = regexp.MustCompile(`[us][0-9]{4}|\x10l\x00..?.?[^\x00]`).Match

func manyMods() []string {
	mods := make([]string, 65)
	for i := range mods {
		mods[i] = `"u` + strconv.Itoa(2*i) + `":1`
	}
	return mods
}

// A server logs an update by operators as a delta that is not computed from two
// documents: it only enters existing values, and sets the array elements that the
// operators set, also beyond the end.
func TestCompileLoggedOperators(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		pre := bsongen.Document(rt)
		diff := bsongen.OperatorDelta(rt, pre)
		d, err := update.ParseDelta(diff)
		if err != nil {
			rt.Fatalf("%s: %v", diff, err)
		}
		compiles(rt, pre, diff, preImage)
		if !d.AddsTo(pre) {
			rt.Fatalf("%s inserts into %s what is there", diff, pre)
		}
		compiles(rt, pre, diff, newFields)
	})
}

func FuzzCompileDelta(f *testing.F) {
	doc := parse(f, `{"_id":1,"a":{"a":[0,{"b":1}],"b":1},"b":[{},[]],"":{"":0},"x.y":1,"$d":{"$d":1}}`)
	for _, diff := range []string{
		`{"d":{"a":false},"u":{"b":1},"i":{"c":"$x"},"sx.y":{"a":true,"l":1,"u0":1}}`,
		`{"sa":{"a":true,"s1":{"i":{"a":1}}},"s":{"d":{"":false}}}`,
		`{"b":{"f":{"o":1,"d":{"$binary":{"base64":"AA==","subType":"07"}}}}}`,
		`{"i":{"new":0,"_id":1,"a":1}}`, `{"d":{"_id":false,"a":false}}`, `{"u":{"_id":1.0}}`,
	} {
		f.Add([]byte(parse(f, diff)))
	}
	f.Fuzz(func(t *testing.T, diff []byte) {
		if _, err := update.CompileDelta(diff, preImage); err != nil && !errors.Is(err, update.ErrBadDelta) && !errors.Is(err, update.ErrNotCompilable) {
			t.Errorf("error is %T: %v", err, err)
		}
		if hugeIndex(diff) {
			return
		}
		if _, err := update.ApplyDelta(doc, diff); err == nil {
			compiles(t, doc, diff, update.CompileOptions{})
		}
	})
}

func BenchmarkCompileDelta(b *testing.B) {
	for _, bench := range []struct {
		name, diff string
		opt        update.CompileOptions
	}{
		{"modifiers", `{"u":{"name":"x","n":1}}`, preImage},
		{"set-stage", `{"u":{"name":"x","a":1},"sb":{"u":{"c":1}}}`, update.CompileOptions{}},
		{"array", `{"sv":{"a":true,"u3":1,"s5":{"u":{"c":1}}}}`, update.CompileOptions{}},
	} {
		diff := parse(b, bench.diff)
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := update.CompileDelta(diff, bench.opt); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
