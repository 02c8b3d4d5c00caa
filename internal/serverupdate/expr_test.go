package serverupdate

import (
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/bsontext"
)

// evalDoc is the document that expressions are evaluated on.
const evalDoc = `{"_id": 1, "a": {"b": 2, "n": null}, "l": [{"x": 1}, {"x": 2}, {"y": 3}, 4],
	"s": "text", "n": null, "u": "@undefined", "e": [], "o": {}, "i": 5, "g": "@long:7", "d": 2.5,
	"m": "@dec:3", "t": "@date:1000", "f": false, "z": 0, "nest": [[{"x": 1}], {"x": [{"x": 9}]}]}`

func TestExpressions(t *testing.T) {
	cases := []struct{ expr, want string }{
		// Literals and paths. A missing result leaves no field.
		{`1`, `1`},
		{`"x"`, `"x"`},
		{`{"$literal": "$a"}`, `"$a"`},
		{`{"$const": {"$x": 1}}`, `{"$x": 1}`},
		{`"$a.b"`, `2`},
		{`"$a.zz"`, ``},
		{`"$s.b"`, ``},
		{`"$l.x"`, `[1, 2]`},
		{`"$nest.x"`, `[[{"x": 9}]]`},
		{`"$nest.x.x"`, `[[9]]`},
		{`"$$ROOT.a.b"`, `2`},
		{`"$$CURRENT.i"`, `5`},
		{`"$$REMOVE"`, ``},
		{`"$$REMOVE.a"`, ``},
		{`"$"`, `16872`},
		{`"$a."`, `40353`},
		{`"$.a"`, `15998`},
		{`"$a..b"`, `15998`},
		{`"$a.$b"`, `16410`},
		{`"$a.$id"`, ``},
		{`"$$"`, `16869`},
		{`"$$1"`, `16870`},
		{`"$$a-b"`, `16871`},
		{`"$$nope"`, `17276`},
		{`"$$NOW"`, `17276`},
		{`"$a\u0000"`, `16411`},
		{`"$` + strings.Repeat("a.", 200) + `a"`, `15`},
		// Objects and arrays.
		{`{"$literal": {"p": "$a"}}`, `{"p": "$a"}`},
		{`["$zz", {"p": "$zz", "q": 1}]`, `[null, {"q": 1}]`},
		{`[{"a.b": 1}]`, `16412`},
		{`[{"": 1}]`, `15998`},
		{`[{"a": 1, "$b": 1}]`, `16410`},
		{`[{"a": 1, "a": 2}]`, `16406`},
		{`[{"$add": 1, "b": 1}]`, `15983`},
		{`{"$nope": 1}`, `168`},
		// Control.
		{`{"$cond": ["$f", 1, 2]}`, `2`},
		{`{"$cond": ["$zz", 1, 2]}`, `2`},
		{`{"$cond": ["$z", 1, 2]}`, `2`},
		{`{"$cond": ["$s", 1, "$zz"]}`, `1`},
		{`{"$cond": ["$e", 1, 2]}`, `1`},
		{`{"$cond": {"if": true, "then": 1, "else": {"$size": 1}}}`, `1`},
		{`{"$cond": {"then": 1, "else": 2}}`, `17080`},
		{`{"$cond": {"if": 1, "else": 2}}`, `17081`},
		{`{"$cond": {"if": 1, "then": 2}}`, `17082`},
		{`{"$cond": {"if": 1, "then": 2, "else": 3, "x": 1}}`, `17083`},
		{`{"$cond": [1, 2]}`, `16020`},
		{`{"$cond": 1}`, `16020`},
		{`{"$ifNull": ["$zz", "$n", "$u", 3]}`, `3`},
		{`{"$ifNull": ["$f", 3]}`, `false`},
		{`{"$ifNull": ["$n", "$zz"]}`, ``},
		{`{"$ifNull": [1]}`, `1257300`},
		{`{"$let": {"vars": {"p": "$i", "q": 1}, "in": {"$add": ["$$p", "$$q"]}}}`, `6`},
		{`{"$let": {"in": "$$p.b", "vars": {"p": "$a"}}}`, `2`},
		{`{"$let": {"vars": {"p": 1, "q": "$$p"}, "in": 1}}`, `17276`},
		{`{"$let": {"vars": {"CURRENT": "$a"}, "in": "$b"}}`, `2`},
		{`{"$let": {"vars": {"P": 1}, "in": 1}}`, `16867`},
		{`{"$let": {"vars": {"p-": 1}, "in": 1}}`, `16868`},
		{`{"$let": {"vars": {"": 1}, "in": 1}}`, `16866`},
		{`{"$let": 1}`, `16874`},
		{`{"$let": {"x": 1}}`, `16875`},
		{`{"$let": {"in": 1}}`, `16876`},
		{`{"$let": {"vars": {}}}`, `16877`},
		{`{"$let": {"vars": 1, "in": 1}}`, `10065`},
		// Loops.
		{`{"$map": {"input": [1, 2], "in": {"$add": ["$$this", 1]}}}`, `[2, 3]`},
		{`{"$map": {"input": "$l", "as": "p", "in": "$$p.x"}}`, `[1, 2, null, null]`},
		{`{"$map": {"input": [1, 2], "as": "p", "in": {"$map": {"input": [10], "as": "q", "in": {"$add": ["$$p", "$$q"]}}}}}`, `[[11], [12]]`},
		{`{"$map": {"input": "$zz", "in": 1}}`, `null`},
		{`{"$map": {"input": "$i", "in": 1}}`, `16883`},
		{`{"$map": 1}`, `16878`},
		{`{"$map": {"x": 1}}`, `16879`},
		{`{"$map": {}}`, `16880`},
		{`{"$map": {"input": []}}`, `16882`},
		{`{"$map": {"input": [], "as": "X", "in": 1}}`, `16867`},
		{`{"$map": {"input": [], "as": 1, "in": 1}}`, `16866`},
		{`{"$map": {"input": "$$p", "as": "p", "in": 1}}`, `17276`},
		{`{"$filter": {"input": [1, 0, null, 2], "cond": "$$this"}}`, `[1, 2]`},
		{`{"$filter": {"input": [1, 2, 3], "as": "p", "cond": {"$gt": ["$$p", 1]}}}`, `[2, 3]`},
		{`{"$filter": {"input": "$n", "cond": 1}}`, `null`},
		{`{"$filter": {"input": "$i", "cond": 1}}`, `28651`},
		{`{"$filter": 1}`, `28646`},
		{`{"$filter": {"in": 1}}`, `28647`},
		{`{"$filter": {}}`, `28648`},
		{`{"$filter": {"input": [1]}}`, `28650`},
		// Merged objects.
		{`{"$mergeObjects": ["$a", null, "$zz", {"b": 3, "c": 4}]}`, `{"b": 3, "n": null, "c": 4}`},
		{`{"$mergeObjects": [{"p": "$$REMOVE"}]}`, `{}`},
		{`{"$mergeObjects": {"$literal": [{"p": 1}, {"q": 2}]}}`, `{"p": 1, "q": 2}`},
		{`{"$mergeObjects": []}`, `{}`},
		{`{"$mergeObjects": ["$i", 1]}`, `40400`},
		// Fields by any name.
		{`{"$getField": "i"}`, `5`},
		{`{"$getField": {"$literal": "i"}}`, `5`},
		{`{"$getField": {"field": "a.b", "input": {"$literal": {"a.b": 1}}}}`, `1`},
		{`{"$getField": {"field": "b", "input": "$n"}}`, `null`},
		{`{"$getField": {"field": "b", "input": "$u"}}`, `null`},
		{`{"$getField": {"field": "b", "input": "$zz"}}`, ``},
		{`{"$getField": {"field": "b", "input": "$i"}}`, ``},
		{`{"$getField": {"field": "x", "input": "$l"}}`, ``},
		{`{"$getField": "$i"}`, `5654600`},
		{`{"$getField": {"$concat": ["i"]}}`, `5654601`},
		{`{"$getField": 1}`, `5654602`},
		{`{"$getField": {"field": "b", "x": 1}}`, `3041701`},
		{`{"$getField": {"input": "$a"}}`, `3041702`},
		{`{"$getField": {"field": "b"}}`, `3041703`},
		{`{"$getField": {}}`, `3041702`},
		{`{"$setField": {"field": "b", "input": "$a", "value": {"$add": [1, 2]}}}`, `{"b": 3, "n": null}`},
		{`{"$setField": {"field": {"$literal": "$c.d"}, "input": "$a", "value": 1}}`, `{"b": 2, "n": null, "$c.d": 1}`},
		{`{"$setField": {"field": "b", "input": "$a", "value": "$$REMOVE"}}`, `{"n": null}`},
		{`{"$setField": {"field": "b", "input": "$zz", "value": 1}}`, `null`},
		{`{"$setField": {"field": "b", "input": "$i", "value": 1}}`, `4161105`},
		{`{"$setField": {"field": "b", "input": "$i"}}`, `4161103`},
		{`{"$setField": {"input": "$i", "value": 1}}`, `4161102`},
		{`{"$setField": {"field": "b", "value": 1}}`, `4161109`},
		{`{"$setField": {"field": "$b", "input": "$a", "value": 1}}`, `4161108`},
		{`{"$setField": {"field": ["b"], "input": "$a", "value": 1}}`, `4161106`},
		{`{"$setField": {"field": 1, "input": "$a", "value": 1}}`, `4161107`},
		{`{"$setField": {"field": "b\u0000", "input": "$a", "value": 1}}`, `!2`},
		{`{"$setField": 1}`, `4161100`},
		{`{"$setField": {"x": 1}}`, `4161101`},
		{`{"$unsetField": {"field": "b", "input": "$a"}}`, `{"n": null}`},
		{`{"$unsetField": {"field": "zz", "input": "$a"}}`, `{"b": 2, "n": null}`},
		{`{"$unsetField": {"field": "b", "input": "$n"}}`, `null`},
		{`{"$unsetField": {"field": "b", "input": "$a", "value": 1}}`, `4161101`},
		{`{"$unsetField": {"field": "b", "input": 1}}`, `4161105`},
		// Types.
		{`{"$type": "$zz"}`, `"missing"`},
		{`{"$type": "$n"}`, `"null"`},
		{`{"$type": "$u"}`, `"undefined"`},
		{`{"$type": "$a"}`, `"object"`},
		{`{"$type": "$l"}`, `"array"`},
		{`{"$type": ["$g"]}`, `"long"`},
		{`{"$type": []}`, `16020`},
		{`{"$isArray": "$l"}`, `true`},
		{`{"$isArray": [[1]]}`, `true`},
		{`{"$isArray": [1]}`, `false`},
		{`{"$isArray": "$zz"}`, `false`},
		// Arrays.
		{`{"$size": "$l"}`, `4`},
		{`{"$size": "$zz"}`, `17124`},
		{`{"$concatArrays": ["$e", [1], [[2]]]}`, `[1, [2]]`},
		{`{"$concatArrays": []}`, `[]`},
		{`{"$concatArrays": ["$e", "$n", {"$size": 1}]}`, `null`},
		{`{"$concatArrays": ["$e", "$i"]}`, `28664`},
		{`{"$range": [0, 3]}`, `[0, 1, 2]`},
		{`{"$range": [3, 0, -2]}`, `[3, 1]`},
		{`{"$range": [0, 3.0]}`, `[0, 1, 2]`},
		{`{"$range": [3, 0]}`, `[]`},
		{`{"$range": ["a", 1]}`, `34443`},
		{`{"$range": [0.5, 1]}`, `34444`},
		{`{"$range": [1, null]}`, `34445`},
		{`{"$range": [1, 4294967296]}`, `34446`},
		{`{"$range": [1, 2, "a"]}`, `34447`},
		{`{"$range": [1, 2, 0.5]}`, `34448`},
		{`{"$range": [1, 2, 0]}`, `34449`},
		{`{"$range": [1]}`, `28667`},
		{`{"$range": [-2147483648, 2147483647]}`, `146`},
		{`{"$slice": [[1, 2, 3], 2]}`, `[1, 2]`},
		{`{"$slice": [[1, 2, 3], 9]}`, `[1, 2, 3]`},
		{`{"$slice": [[1, 2, 3], 0]}`, `[]`},
		{`{"$slice": [[1, 2, 3], -2]}`, `[2, 3]`},
		{`{"$slice": [[1, 2, 3], -9]}`, `[1, 2, 3]`},
		{`{"$slice": [[1, 2, 3], 1, 1]}`, `[2]`},
		{`{"$slice": [[1, 2, 3], 1, 2147483647]}`, `[2, 3]`},
		{`{"$slice": [[1, 2, 3], -2, 1]}`, `[2]`},
		{`{"$slice": [[1, 2, 3], 5, 1]}`, `[]`},
		{`{"$slice": ["$zz", 1]}`, `null`},
		{`{"$slice": [[1], "$n"]}`, `null`},
		{`{"$slice": [[1], 1, "$n"]}`, `null`},
		{`{"$slice": [1, 1]}`, `28724`},
		{`{"$slice": [[1], "a"]}`, `28725`},
		{`{"$slice": [[1], 1.5]}`, `28726`},
		{`{"$slice": [[1], 1, "a"]}`, `28727`},
		{`{"$slice": [[1], 1, 1.5]}`, `28728`},
		{`{"$slice": [[1], 1, 0]}`, `28729`},
		{`{"$slice": [[1]]}`, `28667`},
		{`{"$arrayElemAt": ["$l", 3]}`, `4`},
		{`{"$arrayElemAt": ["$l", -1]}`, `4`},
		{`{"$arrayElemAt": ["$l", 4]}`, ``},
		{`{"$arrayElemAt": ["$l", -5]}`, ``},
		{`{"$arrayElemAt": ["$zz", 1]}`, `null`},
		{`{"$arrayElemAt": ["$l", null]}`, `null`},
		{`{"$arrayElemAt": ["$i", 1]}`, `28689`},
		{`{"$arrayElemAt": ["$l", "a"]}`, `28690`},
		{`{"$arrayElemAt": ["$l", 1.5]}`, `28691`},
		{`{"$arrayElemAt": ["$l", "@dec:0"]}`, `{"x": 1}`},
		{`{"$in": [2, [1, 2.0]]}`, `true`},
		{`{"$in": ["$zz", ["$n"]]}`, `false`},
		{`{"$in": [1, 1]}`, `40081`},
		// Logic and order.
		{`{"$eq": ["$i", "@dec:5.0"]}`, `true`},
		{`{"$ne": ["$zz", null]}`, `true`},
		{`{"$eq": ["$zz", "$u"]}`, `true`},
		{`{"$lt": ["$zz", null]}`, `true`},
		{`{"$lte": [1, 1]}`, `true`},
		{`{"$gt": ["a", 1]}`, `true`},
		{`{"$gte": [1, "a"]}`, `false`},
		{`{"$not": ["$n"]}`, `true`},
		{`{"$not": 1}`, `false`},
		{`{"$and": ["$i", "$f", {"$size": 1}]}`, `false`},
		{`{"$and": []}`, `true`},
		{`{"$or": ["$f", "$i", {"$size": 1}]}`, `true`},
		{`{"$or": ["$n"]}`, `false`},
		{`{"$max": [1, null, 3, 2]}`, `3`},
		{`{"$max": {"$literal": [1, 5]}}`, `5`},
		{`{"$max": "$zz"}`, `null`},
		{`{"$min": ["$i", "$zz", "$d"]}`, `2.5`},
		// Arithmetic.
		{`{"$add": [1, 2]}`, `3`},
		{`{"$add": [2147483647, 1]}`, `"@long:2147483648"`},
		{`{"$add": ["$g", 1]}`, `"@long:8"`},
		{`{"$add": ["$d", 1]}`, `3.5`},
		{`{"$add": ["$t", 1]}`, `"@date:1001"`},
		{`{"$add": ["$t", 1.9]}`, `"@date:1001"`},
		{`{"$add": ["@double:Inf", 1]}`, `"@double:Inf"`},
		{`{"$add": ["@long:9223372036854775807", 1]}`, `"@double:9223372036854775808"`},
		{`{"$add": ["$zz", 1]}`, `null`},
		{`{"$add": []}`, `0`},
		{`{"$add": ["$t", "$t"]}`, `16612`},
		{`{"$add": ["$t", "@double:Inf"]}`, `15`},
		{`{"$add": ["$s", 1]}`, `16554`},
		{`{"$add": ["$m", 1]}`, `16417`},
		{`{"$subtract": ["$i", 1]}`, `4`},
		{`{"$subtract": [-2147483648, 1]}`, `"@long:-2147483649"`},
		{`{"$subtract": ["$g", 1]}`, `"@long:6"`},
		{`{"$subtract": ["$d", 1]}`, `1.5`},
		{`{"$subtract": ["$t", 1]}`, `"@date:999"`},
		{`{"$subtract": ["$t", 1.5]}`, `"@date:999"`},
		{`{"$subtract": ["$t", "$t"]}`, `"@long:0"`},
		{`{"$subtract": ["$t", "@double:NaN"]}`, `"@date:1000"`},
		{`{"$subtract": ["$t", "$s"]}`, `16613`},
		{`{"$subtract": [1, "$s"]}`, `16556`},
		{`{"$subtract": [1, "$m"]}`, `16556`},
		{`{"$subtract": [1, null]}`, `null`},
		{`{"$subtract": ["@long:-9223372036854775808", 1]}`, `15`},
		{`{"$subtract": ["@date:-9000000000000000000", "@double:1e300"]}`, `15`},
		{`{"$concat": ["a", "$s"]}`, `"atext"`},
		{`{"$concat": ["a", "$n"]}`, `null`},
		{`{"$concat": ["a", 1]}`, `16702`},
	}
	for _, c := range cases {
		want := `{"_id": 1, "r": ` + c.want + `}`
		switch {
		case c.want == "":
			want = `{"_id": 1}`
		case len(c.want) >= 2 && isCode(c.want):
			want = c.want
		case c.want[0] == '!':
			want = c.want[1:]
		}
		// Only _id and the result stay, so that the table is short.
		u := `[{"$replaceWith": {"_id": "$_id", "r": ` + c.expr + `}}]`
		check(t, evalDoc, u, want)
	}
}

// isCode distinguishes the error codes of the table from the numbers that are
// results: those have one digit. A code of one digit has a mark before it.
func isCode(s string) bool {
	return strings.Trim(s, "0123456789") == ""
}

// TestErrorsInEveryArgument puts an expression that fails, then one that does
// not parse, into each place that takes an expression.
func TestErrorsInEveryArgument(t *testing.T) {
	templates := []string{
		`X`, `[X]`, `{"p": X}`, `{"p": {"q": X}}`,
		`{"$cond": [X, 1, 1]}`, `{"$cond": {"if": X, "then": 1, "else": 1}}`,
		`{"$ifNull": [X, 1]}`, `{"$let": {"vars": {"p": X}, "in": 1}}`, `{"$let": {"vars": {}, "in": X}}`,
		`{"$map": {"input": X, "in": 1}}`, `{"$map": {"input": [1], "in": X}}`,
		`{"$filter": {"input": X, "cond": 1}}`, `{"$filter": {"input": [1], "cond": X}}`,
		`{"$concatArrays": [X]}`, `{"$mergeObjects": [X, 1]}`,
		`{"$type": X}`, `{"$isArray": X}`, `{"$size": X}`, `{"$range": [X, 1]}`, `{"$slice": [X, 1]}`, `{"$slice": [[1], 1, X]}`,
		`{"$arrayElemAt": [X, 1]}`, `{"$in": [X, [1]]}`, `{"$eq": [X, 1]}`, `{"$not": X}`, `{"$and": [X]}`, `{"$or": [X]}`,
		`{"$max": [X, 1]}`, `{"$add": [X]}`, `{"$subtract": [X, 1]}`, `{"$concat": [X]}`,
		`{"$getField": {"field": "a", "input": X}}`, `{"$setField": {"field": "a", "input": X, "value": 1}}`,
		`{"$setField": {"field": "a", "input": {}, "value": X}}`, `{"$unsetField": {"field": "a", "input": X}}`,
	}
	for _, template := range templates {
		for fault, code := range map[string]string{`{"$size": 1}`: "17124", `{"$nope": 1}`: "168"} {
			e := strings.ReplaceAll(template, "X", fault)
			check(t, `{"_id": 1}`, `[{"$replaceWith": {"r": `+e+`}}]`, code)
			check(t, `{"_id": 1}`, `[{"$set": {"r": `+e+`}}]`, code)
			check(t, `{"_id": 1, "r": [{}]}`, `[{"$set": {"r.p": `+e+`}}]`, code)
		}
	}
	for _, template := range []string{
		`{"$getField": {"field": X, "input": 1}}`, `{"$getField": X}`,
		`{"$setField": {"field": X, "input": 1, "value": 1}}`,
	} {
		e := strings.ReplaceAll(template, "X", `{"$nope": 1}`)
		check(t, `{"_id": 1}`, `[{"$replaceWith": {"r": `+e+`}}]`, "168")
	}
}

// TestTypeNames covers every type that a document can hold.
func TestTypeNames(t *testing.T) {
	for v, want := range map[string]string{
		`1.5`: "double", `"s"`: "string", `{}`: "object", `[]`: "array", `"@bin:a"`: "binData",
		`"@undefined"`: "undefined", `"@oid:1"`: "objectId", `true`: "bool", `"@date:1"`: "date", `null`: "null",
		`"@regex:a:i"`: "regex", `"@dbptr:a"`: "dbPointer", `"@code:a"`: "javascript", `"@symbol:a"`: "symbol",
		`"@scope:a"`: "javascriptWithScope", `1`: "int", `"@ts:1:1"`: "timestamp", `"@long:1"`: "long",
		`"@dec:1"`: "decimal", `"@minKey"`: "minKey", `"@maxKey"`: "maxKey",
	} {
		check(t, `{"_id": 1, "v": `+v+`}`, `[{"$set": {"t": {"$type": "$v"}}}]`, `{"_id": 1, "v": `+v+`, "t": "`+want+`"}`)
	}
	if got := bsontext.TypeName(0x42); got != "type 66" {
		t.Errorf("unknown type: %q", got)
	}
}

// TestOrder compares each value with all others: the list is ascending, the
// values of one entry are equal.
func TestOrder(t *testing.T) {
	order := [][]string{
		{`"@minKey"`},
		{`"$$REMOVE"`, `"@undefined"`},
		{`null`},
		{`"@double:NaN"`, `"@dec:NaN"`},
		{`"@double:-Inf"`, `"@dec:-Infinity"`},
		{`"@dec:-1E+6000"`},
		{`-1`, `"@long:-1"`, `-1.0`, `"@dec:-1.00"`},
		{`0`, `"@double:-0"`, `"@dec:0E+3"`},
		{`"@dec:0.1"`},
		{`0.1`}, // a little more than a tenth
		{`"@long:9007199254740992"`, `9007199254740992.0`},
		{`"@long:9007199254740993"`, `"@dec:9007199254740993"`},
		{`"@double:Inf"`, `"@dec:Infinity"`},
		{`""`, `"@symbol:"`},
		{`"a"`, `"@symbol:a"`},
		{`{"$literal": {}}`},
		{`{"$literal": {"b": 1}}`},
		{`{"$literal": {"b": 1, "c": 1}}`},
		{`{"$literal": {"b": 2}}`},
		{`{"$literal": {"c": 0}}`},   // name before value
		{`{"$literal": {"a": "s"}}`}, // type before name
		{`[]`},
		{`[1]`},
		{`[1, 1]`},
		{`[2]`},
		{`"@bin:b"`},
		{`"@bin:aa"`}, // length before content
		{`"@oid:1"`},
		{`"@oid:2"`},
		{`false`},
		{`true`},
		{`"@date:-1"`},
		{`"@date:1"`},
		{`"@ts:1:5"`},
		{`"@ts:2:1"`},
		{`"@regex:a:"`},
		{`"@regex:a:i"`},
		{`"@regex:ab:"`},
		{`"@dbptr:b"`},
		{`"@dbptr:aa"`},
		{`"@code:a"`},
		{`"@code:b"`},
		{`"@scope:a"`},
		{`"@scope:b"`},
		{`"@maxKey"`},
	}
	for i, left := range order {
		for j, right := range order {
			for _, l := range left {
				for _, r := range right {
					args := `[` + l + `, ` + r + `]`
					want := `{"_id": 1, "lt": ` + boolText(i < j) + `, "eq": ` + boolText(i == j) + `, "gt": ` + boolText(i > j) + `}`
					check(t, `{"_id": 1}`, `[{"$set": {"lt": {"$lt": `+args+`}, "eq": {"$eq": `+args+`}, "gt": {"$gt": `+args+`}}}]`, want)
				}
			}
		}
	}
}

func boolText(b bool) string {
	if b {
		return "true"
	}
	return "false"
}

// TestTruth lists what conditions take for false.
func TestTruth(t *testing.T) {
	for v, want := range map[string]bool{
		`"$$REMOVE"`: false, `null`: false, `"@undefined"`: false, `false`: false, `0`: false, `"@long:0"`: false,
		`"@double:-0"`: false, `"@dec:0.00"`: false, `true`: true, `1`: true, `"@long:1"`: true, `"@double:NaN"`: true,
		`"@dec:NaN"`: true, `"@dec:1"`: true, `""`: true, `[]`: true, `{}`: true, `"@date:0"`: true, `"@minKey"`: true,
	} {
		check(t, `{"_id": 1}`, `[{"$set": {"r": {"$cond": [`+v+`, true, false]}}}]`, `{"_id": 1, "r": `+boolText(want)+`}`)
	}
}

// TestWorkIsBounded runs pipelines of which each stage doubles or nests a value.
func TestWorkIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		first, stage string
		stages       int
		last, code   string
	}{
		"strings double":  {`"x"`, `{"$concat": ["$r", "$r"]}`, 40, `1`, "146"},
		"arrays double":   {`[1]`, `{"$concatArrays": ["$r", "$r"]}`, 40, `1`, "146"},
		"objects double":  {`"` + strings.Repeat("x", 1<<18) + `"`, `{"p": "$r", "q": "$r"}`, 40, `"$r"`, "13548"},
		"nesting":         {`1`, `{"p": "$r"}`, 300, `"$r"`, "15"},
		"nesting, arrays": {`1`, `["$r"]`, 300, `"$r"`, "15"},
		"deep comparison": {`1`, `["$r"]`, 2000, `{"$eq": ["$r", ["$r"]]}`, "15"},
		"wide comparison": {`1`, `["$r", "$r"]`, 40, `{"$eq": ["$r", "$r"]}`, "146"},
	} {
		t.Run(name, func(t *testing.T) {
			stage := strings.Repeat(`{"$set": {"r": `+c.stage+`}}, `, c.stages)
			check(t, `{"_id": 1}`, `[{"$set": {"r": `+c.first+`}}, `+stage+`{"$set": {"r": `+c.last+`}}]`, c.code)
		})
	}
}
