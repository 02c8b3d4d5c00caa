package serverupdate

import (
	"strings"
	"testing"
)

func TestSetAndUnset(t *testing.T) {
	runCases(t, []updateCase{
		{"replaces in place", `{"_id": 1, "a": 1, "b": 2}`, `{"$set": {"a": {"x": 1}}}`, `{"_id": 1, "a": {"x": 1}, "b": 2}`},
		{"values are literal", `{"_id": 1}`, `{"$set": {"a": "$b", "c": {"$d": 1}}}`, `{"_id": 1, "a": "$b", "c": {"$d": 1}}`},
		{"new fields by name", `{"_id": 1}`, `{"$set": {"b": 1, "a": 2, "B": 3}}`, `{"_id": 1, "B": 3, "a": 2, "b": 1}`},
		{"numbers by value", `{"_id": 1}`, `{"$set": {"10": 1, "9": 2, "01": 3, "a": 4, "0": 5}}`, `{"_id": 1, "0": 5, "01": 3, "9": 2, "10": 1, "a": 4}`},
		{"the order goes by parts", `{"_id": 1}`, `{"$set": {"a.b": 1, "a-": 2}}`, `{"_id": 1, "a": {"b": 1}, "a-": 2}`},
		{"creates parents", `{"_id": 1}`, `{"$set": {"a.b.c": 1, "a.b.d": 2, "a.0": 3}}`, `{"_id": 1, "a": {"0": 3, "b": {"c": 1, "d": 2}}}`},
		{"into an object with a number", `{"_id": 1, "a": {}}`, `{"$set": {"a.3": 1}}`, `{"_id": 1, "a": {"3": 1}}`},
		{"array element", `{"_id": 1, "a": [1, {"b": 1}]}`, `{"$set": {"a.0": 9, "a.1.b": 8, "a.01.c": 7}}`, `{"_id": 1, "a": [9, {"b": 8, "c": 7}]}`},
		{"array append", `{"_id": 1, "a": [1]}`, `{"$set": {"a.1": 9}}`, `{"_id": 1, "a": [1, 9]}`},
		{"array padding", `{"_id": 1, "a": [1]}`, `{"$set": {"a.3": 9, "a.4.b": 8}}`, `{"_id": 1, "a": [1, null, null, 9, {"b": 8}]}`},
		{"array padding too far", `{"_id": 1, "a": []}`, `{"$set": {"a.1500001": 9}}`, `34`},
		{"no index", `{"_id": 1, "a": []}`, `{"$set": {"a.b": 9}}`, `28`},
		{"no index, signed", `{"_id": 1, "a": [1]}`, `{"$set": {"a.-1": 9}}`, `28`},
		{"index too large", `{"_id": 1, "a": []}`, `{"$set": {"a.99999999999999999999": 9}}`, `28`},
		{"through a scalar", `{"_id": 1, "a": 1}`, `{"$set": {"a.b": 9}}`, `28`},
		{"through null", `{"_id": 1, "a": null}`, `{"$set": {"a.b.c": 9}}`, `28`},
		{"unset", `{"_id": 1, "a": 1, "b": {"c": 1, "d": 1}}`, `{"$unset": {"a": 1, "b.c": ""}}`, `{"_id": 1, "b": {"d": 1}}`},
		{"unset absent", `{"_id": 1, "a": 1, "b": []}`, `{"$unset": {"x": 1, "a.b": 1, "b.3": 1, "b.c": 1}}`, `{"_id": 1, "a": 1, "b": []}`},
		{"unset of an element", `{"_id": 1, "a": [1, 2]}`, `{"$unset": {"a.0": 1}}`, `{"_id": 1, "a": [null, 2]}`},
		{"set and unset", `{"_id": 1, "a": {"b": 1}}`, `{"$unset": {"a.b": 1}, "$set": {"a.c": 2}}`, `{"_id": 1, "a": {"c": 2}}`},
		{"no hole", `{"_id": 1, "a": 1, "b": 2}`, `{"$unset": {"a": 1}, "$set": {"c": 2}}`, `{"_id": 1, "b": 2, "c": 2}`},
		{"setOnInsert does nothing", `{"_id": 1}`, `{"$setOnInsert": {"a": 1}, "$set": {"b": 1}}`, `{"_id": 1, "b": 1}`},
		{"setOnInsert alone", `{"_id": 1}`, `{"$setOnInsert": {"a": 1}}`, `{"_id": 1}`},
		{"empty operators", `{"_id": 1}`, `{"$set": {}, "$unset": {}}`, `{"_id": 1}`},
		{"first of a name twice", `{"_id": 1, "a": 1, "a": 2}`, `{"$set": {"a": 9}}`, `{"_id": 1, "a": 9, "a": 2}`},
		{"same value", `{"a": 1, "_id": 1}`, `{"$set": {"a": 1}}`, `{"a": 1, "_id": 1}`},
		{"another value moves _id", `{"a": 1, "_id": 1}`, `{"$set": {"a": 2}}`, `{"_id": 1, "a": 2}`},

		{"conflict", `{"_id": 1}`, `{"$set": {"a": 1}, "$unset": {"a": 1}}`, `40`},
		{"conflict with a prefix", `{"_id": 1}`, `{"$set": {"a": 1, "a.b": 1}}`, `40`},
		{"conflict with a longer path", `{"_id": 1}`, `{"$set": {"a.b": 1, "a": 1}}`, `40`},
		{"conflict with setOnInsert", `{"_id": 1}`, `{"$set": {"a.b": 1}, "$setOnInsert": {"a": 1}}`, `40`},
		{"empty path", `{"_id": 1}`, `{"$set": {"": 1}}`, `56`},
		{"empty part", `{"_id": 1}`, `{"$set": {"a..b": 1}}`, `56`},
		{"trailing dot", `{"_id": 1}`, `{"$unset": {"a.": 1}}`, `56`},
		{"dollar at the top", `{"_id": 1}`, `{"$set": {"$a": 1}}`, `52`},
		{"dollar at the top, parent", `{"_id": 1}`, `{"$set": {"$a.b": 1}}`, `52`},
		{"dollar at the top, existing", `{"_id": 1, "$a": 1}`, `{"$set": {"$a": 2}}`, `52`},
		{"dollar further down", `{"_id": 1}`, `{"$set": {"a.$b": 1}}`, `{"_id": 1, "a": {"$b": 1}}`},
		{"unset of a dollar", `{"_id": 1, "$a": 1}`, `{"$unset": {"$a": 1}}`, `{"_id": 1}`},
		{"positional", `{"_id": 1, "a": [1]}`, `{"$set": {"a.$": 1}}`, `2`},
		{"all elements", `{"_id": 1, "a": [1, 2]}`, `{"$set": {"a.$[]": 3}}`, `{"_id": 1, "a": [3, 3]}`},
		{"array filter", `{"_id": 1, "a": [1]}`, `{"$set": {"a.$[x].b": 1}}`, `2`},
		{"path too long", `{"_id": 1}`, `{"$set": {"` + strings.Repeat("a.", 255) + `a": 1}}`, `15`},
		{"nested too deep", `{"_id": 1}`, `{"$set": {"` + strings.Repeat("a.", 180) + `a": 1}}`, `15`},
		{
			"nested as deep as may be", `{"_id": 1}`, `{"$set": {"` + strings.Repeat("a.", 178) + `a": [1]}}`,
			`{"_id": 1, "a": ` + strings.Repeat(`{"a": `, 178) + `[1]` + strings.Repeat(`}`, 179),
		},
		{"nested one too deep in the value", `{"_id": 1, "a": 1}`, `{"$set": {"a": ` + nested(180) + `}}`, `15`},
		{"unknown operator", `{"_id": 1}`, `{"$bogus": {"a": 1}}`, `9`},
		{"field among operators", `{"_id": 1}`, `{"$set": {"a": 1}, "a": 1}`, `9`},
		{"operator on a value", `{"_id": 1}`, `{"$set": 1}`, `9`},

		{"same _id", `{"_id": 1}`, `{"$set": {"_id": 1, "a": 1}}`, `{"_id": 1, "a": 1}`},
		{"equal _id of another type", `{"_id": 1}`, `{"$set": {"_id": "@long:1"}}`, `66`},
		{"other _id", `{"_id": 1}`, `{"$set": {"_id": 2}}`, `66`},
		{"_id removed", `{"_id": 1}`, `{"$unset": {"_id": 1}}`, `66`},
		{"part of _id", `{"_id": {"a": 1}}`, `{"$set": {"_id.a": 2}}`, `66`},
		{"more of _id", `{"_id": {"a": 1}}`, `{"$set": {"_id.b": 2}}`, `66`},
		{"less of _id", `{"_id": {"a": 1}}`, `{"$unset": {"_id.a": 2}}`, `66`},
		{"_id pushed to", `{"_id": {"a": []}}`, `{"$push": {"_id.a": 2}}`, `66`},
		{"_id where there is none", `{"a": 1}`, `{"$set": {"_id": 2}}`, `{"_id": 2, "a": 1}`},
	})
}

func TestPush(t *testing.T) {
	runCases(t, []updateCase{
		{"one", `{"_id": 1, "a": [1]}`, `{"$push": {"a": {"b": 1}}}`, `{"_id": 1, "a": [1, {"b": 1}]}`},
		{"an array is one value", `{"_id": 1, "a": [1]}`, `{"$push": {"a": [2]}}`, `{"_id": 1, "a": [1, [2]]}`},
		{"creates", `{"_id": 1}`, `{"$push": {"a.b": 1}}`, `{"_id": 1, "a": {"b": [1]}}`},
		{"creates at the top", `{"_id": 1}`, `{"$push": {"a": 1}}`, `{"_id": 1, "a": [1]}`},
		{"each", `{"_id": 1, "a": [1]}`, `{"$push": {"a": {"$each": [2, [3]]}}}`, `{"_id": 1, "a": [1, 2, [3]]}`},
		{"nothing", `{"_id": 1, "a": [1]}`, `{"$push": {"a": {"$each": []}}}`, `{"_id": 1, "a": [1]}`},
		{"nothing creates", `{"_id": 1}`, `{"$push": {"a": {"$each": []}}}`, `{"_id": 1, "a": []}`},
		{"truncate", `{"_id": 1, "a": [1, 2, 3]}`, `{"$push": {"a": {"$each": [], "$slice": 2}}}`, `{"_id": 1, "a": [1, 2]}`},
		{"truncate to nothing", `{"_id": 1, "a": [1, 2, 3]}`, `{"$push": {"a": {"$slice": 0.0, "$each": [4]}}}`, `{"_id": 1, "a": []}`},
		{"keep the last", `{"_id": 1, "a": [1, 2, 3]}`, `{"$push": {"a": {"$each": [4], "$slice": "@long:-2"}}}`, `{"_id": 1, "a": [3, 4]}`},
		{"longer than the array", `{"_id": 1, "a": [1, 2, 3]}`, `{"$push": {"a": {"$each": [], "$slice": 9}}}`, `{"_id": 1, "a": [1, 2, 3]}`},
		{"smallest", `{"_id": 1, "a": [1]}`, `{"$push": {"a": {"$each": [], "$slice": "@long:-9223372036854775808"}}}`, `{"_id": 1, "a": [1]}`},
		{"in an array", `{"_id": 1, "a": [[1]]}`, `{"$push": {"a.0": 2, "a.1": 3}}`, `{"_id": 1, "a": [[1, 2], [3]]}`},
		{"other field of the object", `{"_id": 1, "o": {"a": [1], "b": 1}}`, `{"$push": {"o.a": 2}, "$set": {"o.b": 2}}`, `{"_id": 1, "o": {"a": [1, 2], "b": 2}}`},
		{"to a scalar", `{"_id": 1, "a": 1}`, `{"$push": {"a": 2}}`, `2`},
		{"to null", `{"_id": 1, "a": null}`, `{"$push": {"a": 2}}`, `2`},
		{"through a scalar", `{"_id": 1, "a": 1}`, `{"$push": {"a.b": 2}}`, `28`},
		{"conflict", `{"_id": 1, "a": []}`, `{"$push": {"a": 1}, "$set": {"a.0": 2}}`, `40`},
		{"each of no array", `{"_id": 1}`, `{"$push": {"a": {"$each": 1}}}`, `2`},
		{"slice of no number", `{"_id": 1}`, `{"$push": {"a": {"$each": [], "$slice": "x"}}}`, `2`},
		{"slice with a fraction", `{"_id": 1}`, `{"$push": {"a": {"$each": [], "$slice": 1.5}}}`, `2`},
		{"position", `{"_id": 1, "a": [1, 2, 3]}`, `{"$push": {"a": {"$each": [8, 9], "$position": 1}}}`, `{"_id": 1, "a": [1, 8, 9, 2, 3]}`},
		{"position at the front", `{"_id": 1, "a": [1]}`, `{"$push": {"a": {"$each": [8, 9], "$position": 0}}}`, `{"_id": 1, "a": [8, 9, 1]}`},
		{"position from the end", `{"_id": 1, "a": [1, 2]}`, `{"$push": {"a": {"$each": [8], "$position": -1}}}`, `{"_id": 1, "a": [1, 8, 2]}`},
		{"position far before the front", `{"_id": 1, "a": [1, 2]}`, `{"$push": {"a": {"$each": [8], "$position": "@long:-9223372036854775808"}}}`, `{"_id": 1, "a": [8, 1, 2]}`},
		{"position behind the end", `{"_id": 1, "a": [1, 2]}`, `{"$push": {"a": {"$each": [8], "$position": 9}}}`, `{"_id": 1, "a": [1, 2, 8]}`},
		{"position of no number", `{"_id": 1}`, `{"$push": {"a": {"$each": [], "$position": "x"}}}`, `2`},
		{"sort", `{"_id": 1, "a": [3, "x", 1]}`, `{"$push": {"a": {"$each": [2], "$sort": 1}}}`, `{"_id": 1, "a": [1, 2, 3, "x"]}`},
		{"sort before slice", `{"_id": 1, "a": [3, 1]}`, `{"$push": {"a": {"$each": [2], "$slice": 2, "$sort": -1}}}`, `{"_id": 1, "a": [3, 2]}`},
		{
			"sort by fields", `{"_id": 1, "a": [{"x": {"y": 2}, "k": 1}, 7, {"x": {"y": 1}, "k": 2}, {"x": {"y": 2}, "k": 3}]}`,
			`{"$push": {"a": {"$each": [], "$sort": {"x.y": -1, "k": -1}}}}`,
			`{"_id": 1, "a": [{"x": {"y": 2}, "k": 3}, {"x": {"y": 2}, "k": 1}, {"x": {"y": 1}, "k": 2}, 7]}`,
		},
		{"sort by 2", `{"_id": 1}`, `{"$push": {"a": {"$each": [], "$sort": 2}}}`, `2`},
		{"sort by a string", `{"_id": 1}`, `{"$push": {"a": {"$each": [], "$sort": "x"}}}`, `2`},
		{"sort by nothing", `{"_id": 1}`, `{"$push": {"a": {"$each": [], "$sort": {}}}}`, `2`},
		{"sort by an empty part", `{"_id": 1}`, `{"$push": {"a": {"$each": [], "$sort": {"a..b": 1}}}}`, `2`},
		{"clause twice", `{"_id": 1}`, `{"$push": {"a": {"$each": [], "$each": []}}}`, `2`},
		{"nested too deep", `{"_id": 1, "a": []}`, `{"$push": {"a": ` + nested(180) + `}}`, `15`},
	})
}

// nested is an object of a number of levels.
func nested(levels int) string {
	return strings.Repeat(`{"a": `, levels) + `1` + strings.Repeat(`}`, levels)
}
