package serverupdate

import (
	"bytes"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

type updateCase struct{ name, doc, u, want string }

func runCases(t *testing.T, cases []updateCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { check(t, c.doc, c.u, c.want) })
	}
}

func TestSetStage(t *testing.T) {
	runCases(t, []updateCase{
		{"replaces in place", `{"_id": 1, "a": 1, "b": 2}`, `[{"$set": {"a": 9}}]`, `{"_id": 1, "a": 9, "b": 2}`},
		{"appends in order", `{"_id": 1}`, `[{"$set": {"b": 1, "a": 2}}]`, `{"_id": 1, "b": 1, "a": 2}`},
		{"addFields is another name", `{"_id": 1}`, `[{"$addFields": {"b": 1}}]`, `{"_id": 1, "b": 1}`},
		{"empty", `{"_id": 1}`, `[{"$set": {}}]`, `{"_id": 1}`},
		{"empty pipeline", `{"_id": 1}`, `[]`, `{"_id": 1}`},
		{"sees the document before the stage", `{"_id": 1, "a": 1}`, `[{"$set": {"a": 2, "b": "$a"}}]`, `{"_id": 1, "a": 2, "b": 1}`},
		{"sees earlier stages", `{"_id": 1, "a": 1}`, `[{"$set": {"a": 2}}, {"$set": {"b": "$a"}}]`, `{"_id": 1, "a": 2, "b": 2}`},
		{"dotted path", `{"_id": 1, "a": {"b": 1, "c": 2}}`, `[{"$set": {"a.b": 3, "a.d": 4}}]`, `{"_id": 1, "a": {"b": 3, "c": 2, "d": 4}}`},
		{"deeper path", `{"_id": 1, "a": {"b": {"x": 1}}, "b": 5}`, `[{"$set": {"a.b.c": 3}}]`, `{"_id": 1, "a": {"b": {"x": 1, "c": 3}}, "b": 5}`},
		{"nested object is a path", `{"_id": 1, "a": {"b": 1, "c": 2}}`, `[{"$set": {"a": {"b": 3}}}]`, `{"_id": 1, "a": {"b": 3, "c": 2}}`},
		{"empty object is a value", `{"_id": 1, "a": {"b": 1}}`, `[{"$set": {"a": {}}}]`, `{"_id": 1, "a": {}}`},
		{"nested expression", `{"_id": 1, "a": {"b": 1}}`, `[{"$set": {"a": {"b": {"$literal": {"x": 1}}}}}]`, `{"_id": 1, "a": {"b": {"x": 1}}}`},
		{"creates parents", `{"_id": 1}`, `[{"$set": {"a.b.c": 3}}]`, `{"_id": 1, "a": {"b": {"c": 3}}}`},
		{"replaces scalars on the way", `{"_id": 1, "a": 7}`, `[{"$set": {"a.b": 3}}]`, `{"_id": 1, "a": {"b": 3}}`},
		{"replaces null on the way", `{"_id": 1, "a": null, "b": 1}`, `[{"$set": {"a.b": 3}}]`, `{"_id": 1, "a": {"b": 3}, "b": 1}`},
		{
			"goes through arrays", `{"_id": 1, "a": [{"b": 1}, 5, [{"b": 2}, []], {}]}`, `[{"$set": {"a.b": 3}}]`,
			`{"_id": 1, "a": [{"b": 3}, {"b": 3}, [{"b": 3}, []], {"b": 3}]}`,
		},
		{"numbers are names", `{"_id": 1, "a": [1, 2]}`, `[{"$set": {"a.0": 3}}]`, `{"_id": 1, "a": [{"0": 3}, {"0": 3}]}`},
		{"removes by missing", `{"_id": 1, "a": 1, "b": 1}`, `[{"$set": {"a": "$$REMOVE"}}]`, `{"_id": 1, "b": 1}`},
		{"missing below a scalar leaves an object", `{"_id": 1, "a": 1}`, `[{"$set": {"a.b": "$zz"}}]`, `{"_id": 1, "a": {}}`},
		{"names of references", `{"_id": 1}`, `[{"$set": {"r.$id": 1}}]`, `{"_id": 1, "r": {"$id": 1}}`},
		{"empty object beside its own path", `{"_id": 1}`, `[{"$set": {"a": {}, "a.b": 1}}]`, `{"_id": 1, "a": {"b": 1}}`},
		{"not an object", `{"_id": 1}`, `[{"$set": 1}]`, `40272`},
		{"conflict", `{"_id": 1}`, `[{"$set": {"a": 1, "a.b": 1}}]`, `40176`},
		{"conflict, other order", `{"_id": 1}`, `[{"$set": {"a.b.c": 1, "a": 1}}]`, `40176`},
		{"conflict, twice", `{"_id": 1}`, `[{"$set": {"a": 1, "a": 1}}]`, `40176`},
		{"conflict, nested", `{"_id": 1}`, `[{"$set": {"a": {"b": 1}, "a.b": 1}}]`, `40176`},
		{"siblings do not conflict", `{"_id": 1}`, `[{"$set": {"a.b": 1, "a.c": 2, "ab": 3}}]`, `{"_id": 1, "a": {"b": 1, "c": 2}, "ab": 3}`},
		{"expression among fields", `{"_id": 1}`, `[{"$set": {"a": {"b": 1, "$add": 1}}}]`, `40181`},
		{"dot in a nested object", `{"_id": 1}`, `[{"$set": {"a": {"b.c": 1}}}]`, `40183`},
		{"empty name in a nested object", `{"_id": 1}`, `[{"$set": {"a": {"": 1}}}]`, `40353`},
		{"empty name", `{"_id": 1}`, `[{"$set": {"": 1}}]`, `40352`},
		{"empty part", `{"_id": 1}`, `[{"$set": {"a..b": 1}}]`, `15998`},
		{"trailing dot", `{"_id": 1}`, `[{"$set": {"a.": 1}}]`, `40353`},
		{"dollar", `{"_id": 1}`, `[{"$set": {"$a": 1}}]`, `16410`},
		{"path too long", `{"_id": 1}`, `[{"$set": {"` + strings.Repeat("a.", 200) + `a": 1}}]`, `15`},
	})
}

func TestUnsetStage(t *testing.T) {
	runCases(t, []updateCase{
		{"one", `{"_id": 1, "a": 1, "b": 1}`, `[{"$unset": "a"}]`, `{"_id": 1, "b": 1}`},
		{"several", `{"_id": 1, "a": 1, "b": {"c": 1, "d": 1}}`, `[{"$unset": ["a", "b.c"]}]`, `{"_id": 1, "b": {"d": 1}}`},
		{"absent", `{"_id": 1, "a": 1}`, `[{"$unset": ["b", "a.b", "c.d"]}]`, `{"_id": 1, "a": 1}`},
		{"through arrays", `{"_id": 1, "a": [{"b": 1}, 5, [{"b": 2, "c": 1}]]}`, `[{"$unset": "a.b"}]`, `{"_id": 1, "a": [{}, 5, [{"c": 1}]]}`},
		{"not a string", `{"_id": 1}`, `[{"$unset": 1}]`, `31002`},
		{"empty array", `{"_id": 1}`, `[{"$unset": []}]`, `31119`},
		{"not a string in the array", `{"_id": 1}`, `[{"$unset": [1]}]`, `31120`},
		{"empty name", `{"_id": 1}`, `[{"$unset": ""}]`, `40352`},
		{"dollar", `{"_id": 1}`, `[{"$unset": "$a"}]`, `16410`},
		{"twice", `{"_id": 1}`, `[{"$unset": ["a", "a"]}]`, `31250`},
		{"below another", `{"_id": 1}`, `[{"$unset": ["a", "a.b"]}]`, `31249`},
		{"above another", `{"_id": 1}`, `[{"$unset": ["a.b", "a"]}]`, `31250`},
		{"_id comes back", `{"_id": 1, "a": 1}`, `[{"$unset": "_id"}]`, `{"_id": 1, "a": 1}`},
	})
}

func TestReplaceStages(t *testing.T) {
	runCases(t, []updateCase{
		{"with", `{"_id": 1, "a": 1}`, `[{"$replaceWith": {"b": "$a"}}]`, `{"_id": 1, "b": 1}`},
		{"root", `{"_id": 1, "a": {"c": 1}}`, `[{"$replaceRoot": {"newRoot": "$a"}}]`, `{"_id": 1, "c": 1}`},
		{"itself", `{"_id": 1, "a": 1}`, `[{"$replaceWith": "$$ROOT"}]`, `{"_id": 1, "a": 1}`},
		{
			"literal with strange names", `{"_id": 1}`, `[{"$replaceWith": {"$literal": {"_id": 1, "$a": 1, "b.c": 2, "": 3}}}]`,
			`{"_id": 1, "$a": 1, "b.c": 2, "": 3}`,
		},
		{"zero timestamps stay", `{"_id": 1}`, `[{"$replaceWith": {"$literal": {"_id": 1, "t": "@ts:0:0"}}}]`, `{"_id": 1, "t": "@ts:0:0"}`},
		{"not an object", `{"_id": 1, "a": 1}`, `[{"$replaceWith": "$a"}]`, `40228`},
		{"missing", `{"_id": 1}`, `[{"$replaceWith": "$a"}]`, `40228`},
		{"root without newRoot", `{"_id": 1}`, `[{"$replaceRoot": {}}]`, `40414`},
		{"root with more", `{"_id": 1}`, `[{"$replaceRoot": {"newRoot": {}, "x": 1}}]`, `40415`},
		{"root of no object", `{"_id": 1}`, `[{"$replaceRoot": 1}]`, `40229`},
		{"unknown stage", `{"_id": 1}`, `[{"$nope": {}}]`, `40324`},
		{"stage not modelled", `{"_id": 1}`, `[{"$project": {"a": 1}}]`, `40324`},
		{"forbidden stage", `{"_id": 1}`, `[{"$match": {}}]`, `72`},
		{"two names", `{"_id": 1}`, `[{"$set": {}, "$unset": "a"}]`, `40323`},
		{"no name", `{"_id": 1}`, `[{}]`, `40323`},
		{"no object", `{"_id": 1}`, `[1]`, `14`},
		{"all stages are parsed first", `{"_id": 1}`, `[{"$replaceWith": 1}, {"$nope": 1}]`, `40324`},
	})
}

// TestHoles holds the places of removed fields.
func TestHoles(t *testing.T) {
	runCases(t, []updateCase{
		{"removed, set later", `{"_id": 1, "a": 1, "b": 2}`, `[{"$unset": "a"}, {"$set": {"a": 9}}]`, `{"_id": 1, "a": 9, "b": 2}`},
		{
			"removed by $$REMOVE, set later", `{"_id": 1, "a": 1, "b": 2}`, `[{"$set": {"a": "$$REMOVE"}}, {"$set": {"a": 9}}]`,
			`{"_id": 1, "a": 9, "b": 2}`,
		},
		{"nested", `{"_id": 1, "o": {"a": 1, "b": 2}}`, `[{"$unset": "o.a"}, {"$set": {"o.a": 9}}]`, `{"_id": 1, "o": {"a": 9, "b": 2}}`},
		{"in an array", `{"_id": 1, "o": [{"a": 1, "b": 2}]}`, `[{"$unset": "o.a"}, {"$set": {"o.a": 9}}]`, `{"_id": 1, "o": [{"a": 9, "b": 2}]}`},
		{
			"setField around unsetField", `{"_id": 1, "a": 1, "b": 2}`,
			`[{"$replaceWith": {"$setField": {"field": "a", "value": 9, "input": {"$unsetField": {"field": "a", "input": "$$ROOT"}}}}}]`,
			`{"_id": 1, "a": 9, "b": 2}`,
		},
		{
			"absent set to missing keeps a place", `{"_id": 1, "b": 2}`, `[{"$set": {"x": "$$REMOVE"}}, {"$set": {"y": 1}}, {"$set": {"x": 2}}]`,
			`{"_id": 1, "b": 2, "x": 2, "y": 1}`,
		},
		{
			"unset of an absent field keeps none", `{"_id": 1, "b": 2}`, `[{"$unset": "x"}, {"$set": {"y": 1}}, {"$set": {"x": 2}}]`,
			`{"_id": 1, "b": 2, "y": 1, "x": 2}`,
		},
		{
			"unsetField of an absent field keeps one", `{"_id": 1, "b": 2}`,
			`[{"$replaceWith": {"$unsetField": {"field": "x", "input": "$$ROOT"}}}, {"$set": {"y": 1}}, {"$set": {"x": 2}}]`,
			`{"_id": 1, "b": 2, "x": 2, "y": 1}`,
		},
		{"added, removed, set", `{"_id": 1}`, `[{"$set": {"x": 1, "y": 1}}, {"$unset": "x"}, {"$set": {"x": 2}}]`, `{"_id": 1, "x": 2, "y": 1}`},
		{
			"mergeObjects closes holes", `{"_id": 1, "a": 1, "b": 2}`,
			`[{"$unset": "a"}, {"$replaceWith": {"$mergeObjects": ["$$ROOT"]}}, {"$set": {"a": 9}}]`, `{"_id": 1, "b": 2, "a": 9}`,
		},
		{"object expressions keep their own", `{"_id": 1}`, `[{"$replaceWith": {"a": "$zz", "b": 1}}, {"$set": {"a": 9}}]`, `{"_id": 1, "a": 9, "b": 1}`},
		{
			"a new nested object has none", `{"_id": 1, "o": {"a": 1, "b": 2}}`, `[{"$set": {"o": 1}}, {"$set": {"o.b": 1, "o.a": 9}}]`,
			`{"_id": 1, "o": {"b": 1, "a": 9}}`,
		},
		{"holes are missing", `{"_id": 1, "a": 1}`, `[{"$unset": "a"}, {"$set": {"t": {"$type": "$a"}}}]`, `{"_id": 1, "t": "missing"}`},
		{
			"the outer copy keeps its field", `{"_id": 1, "a": 1}`,
			`[{"$set": {"x": {"$unsetField": {"field": "a", "input": "$$ROOT"}}}}]`, `{"_id": 1, "a": 1, "x": {"_id": 1}}`,
		},
	})
}

// TestRepeatedNames has the results for stored documents that have a name
// twice.
func TestRepeatedNames(t *testing.T) {
	runCases(t, []updateCase{
		{"untouched", `{"_id": 1, "a": 1, "b": 2, "a": 3}`, `[{"$set": {"b": 9}}]`, `{"_id": 1, "a": 1, "b": 9, "a": 3}`},
		{"read finds the first, and shows at each place", `{"_id": 1, "a": 1, "a": 3}`, `[{"$set": {"b": "$a"}}]`, `{"_id": 1, "a": 1, "a": 1, "b": 1}`},
		{"read and not written", `{"_id": 1, "a": 1, "a": 3}`, `[{"$replaceWith": {"$cond": ["$a", "$$ROOT", 1]}}]`, `{"_id": 1, "a": 1, "a": 3}`},
		{"written at each place", `{"_id": 1, "a": 1, "b": 2, "a": 3}`, `[{"$set": {"a": 9}}]`, `{"_id": 1, "a": 9, "b": 2, "a": 9}`},
		{"removed at each place", `{"_id": 1, "a": 1, "b": 2, "a": 3}`, `[{"$unset": "a"}]`, `{"_id": 1, "b": 2}`},
		{"merged", `{"_id": 1, "o": {"a": 1, "b": 2, "a": 3}}`, `[{"$replaceWith": {"$mergeObjects": "$o"}}]`, `{"_id": 1, "a": 1, "b": 2}`},
	})
}

// TestStoredBytesStay checks that arrays whose elements have odd names keep them
// until the array is read.
func TestStoredBytesStay(t *testing.T) {
	doc := []byte(parseDoc(t, `{"_id": 1, "a": [7, 8]}`))
	doc = bytes.Replace(doc, []byte("\x100\x00\x07"), []byte("\x109\x00\x07"), 1)
	for u, odd := range map[string]bool{
		`[{"$set": {"b": 1}}]`:                  true,
		`[{"$set": {"b": "$a"}}]`:               false,
		`{"$set": {"b": 1}}`:                    true,
		`{"$set": {"a.1": 1}}`:                  false,
		`[{"$replaceWith": "$$ROOT"}]`:          true,
		`[{"$set": {"b": 1}}, {"$unset": "b"}]`: true,
	} {
		got, err := Apply(doc, parse(t, u))
		if err != nil || bytes.Contains(got, []byte("\x109\x00")) != odd {
			t.Errorf("%s: odd name kept: want %v in %q, error %v", u, odd, got, err)
		}
	}
}

// TestNow: $$NOW is one date for all expressions and stages of a pipeline, and is unknown
// where there is no clock.
func TestNow(t *testing.T) {
	opts := testOptions()
	at := bson.DateTime(1000)
	opts.Clock = func() bson.DateTime { at += 1000; return at }
	const u = `[{"$set": {"a": "$$NOW", "b": {"c": {"$add": ["$$NOW", 500]}}}}, {"$replaceWith": {"$cond": [{"$lte": ["$b.c", "$$NOW"]}, {}, {"$mergeObjects": ["$$ROOT", {"d": "$$NOW"}]}]}}]`
	want := parseDoc(t, `{"_id": 1, "a": "@date:2000", "b": {"c": "@date:2500"}, "d": "@date:2000"}`)
	got, err := opts.Apply(parseDoc(t, `{"_id": 1}`), parse(t, u))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v, %s", err, got)
	}
}
