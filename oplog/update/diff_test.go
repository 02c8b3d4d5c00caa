package update_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog/update"
)

// pad makes a document large enough for a diff to be smaller.
const pad = `"pad": "ppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppp"`

// These cases have the names of the server's tests of its diff calculator and its
// serialization for the same rule. No diff means that the server logs a
// replacement.
func TestDiff(t *testing.T) {
	for _, c := range []struct{ name, pre, post, diff string }{
		{"SameObjectsNoDiff", `{"a": 1, "b": [2]}`, `{"a": 1, "b": [2]}`, `{}`},
		{"same and tiny", `{}`, `{}`, `{}`},
		{"LargeDelta", `{"a": 1, "b": 2, "c": 3}`, `{"A": 1, "B": 2, "C": 3}`, ``},
		{"LargeDelta of one field", `{"a": "x"}`, `{"a": "yyyyyyyyyyyyyyyyyyyyyyyy"}`, ``},
		{"DeleteAndInsertFieldAtTheEnd", `{"a": 1, "b": "v", "c": 1, ` + pad + `}`, `{"a": 1, "c": 1, ` + pad + `, "b": "v"}`, `{"i": {"b": "v"}}`},
		{"DeletesRecordedInAscendingOrderOfFieldNames", `{"d": 1, "b": 1, "c": 1, "a": 1, ` + pad + `, "z": 1, "y": 1}`, `{` + pad + `}`, `{"d": {"z": false, "y": false, "a": false, "b": false, "c": false, "d": false}}`},
		{"DeleteSimple", `{"a": 1, "b": 1, ` + pad + `}`, `{"b": 1, ` + pad + `}`, `{"d": {"a": false}}`},
		{"InsertSimple", `{"a": 1, ` + pad + `}`, `{"a": 1, ` + pad + `, "b": [1], "c": 1}`, `{"i": {"b": [1], "c": 1}}`},
		{"UpdateSimple", `{"a": 1, ` + pad + `, "b": 1}`, `{"a": 2, ` + pad + `, "b": 3}`, `{"u": {"a": 2, "b": 3}}`},
		{"DataTypeChangeRecorded", `{"a": 1, "b": {}, ` + pad + `}`, `{"a": {"$numberLong": "1"}, "b": [], ` + pad + `}`, `{"u": {"a": {"$numberLong": "1"}, "b": []}}`},
		{"NullAndMissing", `{"a": null, ` + pad + `}`, `{` + pad + `}`, `{"d": {"a": false}}`},
		{"NullAndMissing other way", `{` + pad + `}`, `{` + pad + `, "a": null}`, `{"i": {"a": null}}`},
		{"FieldOrder", `{"a": 1, "b": 2, "c": {"p": 1}, "d": 3, ` + pad + `}`, `{"b": 2, "c": {"p": 1}, ` + pad + `, "a": 1, "d": 3}`, `{"i": {"a": 1, "d": 3}}`},
		{"insert in the middle", `{"a": 1, ` + pad + `, "b": 2, "c": 3}`, `{"a": 1, ` + pad + `, "n": 0, "b": 2, "c": 3}`, `{"i": {"n": 0, "b": 2, "c": 3}}`},
		{"SimpleArrayPush", `{"a": [1, 2, 3, "` + strings.Repeat("e", 30) + `"]}`, `{"a": [1, 2, 3, "` + strings.Repeat("e", 30) + `", "x"]}`, `{"sa": {"a": true, "u4": "x"}}`},
		{"array shrinks", `{"v": [1, "` + strings.Repeat("e", 50) + `", 2, 3]}`, `{"v": [1, "` + strings.Repeat("e", 50) + `"]}`, `{"sv": {"a": true, "l": 2}}`},
		{"array shrinks and changes", `{"v": [1, "` + strings.Repeat("e", 50) + `", 2, 3]}`, `{"v": ["x", "` + strings.Repeat("e", 50) + `"]}`, `{"sv": {"a": true, "l": 2, "u0": "x"}}`},
		{"array diff as large as the array", `{` + pad + `, "v": [null, null, 1, 2]}`, `{` + pad + `, "v": [null, null, 3, 4]}`, `{"u": {"v": [null, null, 3, 4]}}`},
		{"array diff a byte smaller", `{` + pad + `, "v": [true, null, 1, 2]}`, `{` + pad + `, "v": [true, null, 3, 4]}`, `{"sv": {"a": true, "u2": 3, "u3": 4}}`},
		{"array to nothing", `{` + pad + `, "v": [1, 2, 3]}`, `{` + pad + `, "v": []}`, `{"u": {"v": []}}`},
		{"NestedArray", `{"v": [[1, {` + pad + `}], 2]}`, `{"v": [[1, {` + pad + `}, 3], 4]}`, `{"sv": {"a": true, "s0": {"a": true, "u2": 3}, "u1": 4}}`},
		{"SubArrayHighIndex", `{"v": [` + strings.Repeat(`1,`, 40) + `1]}`, `{"v": [` + strings.Repeat(`1,`, 40) + `2, 3]}`, `{"sv": {"a": true, "u40": 2, "u41": 3}}`},
		{"SubObjHasEmptyFieldName", `{"": {"": {` + pad + `, "": 1}}}`, `{"": {"": {` + pad + `, "": 2}}}`, `{"s": {"s": {"u": {"": 2}}}}`},
		{"SubObjInSubArrayUpdateElements", `{"v": [{` + pad + `, "a": 1}, {"b": 1}]}`, `{"v": [{` + pad + `, "a": 2, "c": 3}, {"b": 2}]}`, `{"sv": {"a": true, "s0": {"u": {"a": 2}, "i": {"c": 3}}, "u1": {"b": 2}}}`},
		{"SubObjInSubArrayDeleteElements", `{"v": [{` + pad + `, "a": 1}, {"b": 1}, 1]}`, `{"v": [{` + pad + `}, {"b": 1}]}`, `{"sv": {"a": true, "l": 2, "s0": {"d": {"a": false}}}}`},
		{"NestedSubObjs", `{"x": {"y": {` + pad + `, "z": {` + pad + `, "w": 1}}}, "k": 1}`, `{"x": {"y": {` + pad + `, "z": {` + pad + `, "w": 2}}}, "k": 2}`, `{"u": {"k": 2}, "sx": {"sy": {"sz": {"u": {"w": 2}}}}}`},
		{"SubArrayInSubArrayLargeDelta", `{` + pad + `, "v": [1, [2, 3], {` + pad + `}]}`, `{` + pad + `, "v": [1, ["b", "c"], {` + pad + `}]}`, `{"sv": {"a": true, "u1": ["b", "c"]}}`},
		{"SubObjInSubArrayLargeDelta", `{` + pad + `, "v": [1, {"a": 1}, {` + pad + `}]}`, `{` + pad + `, "v": [1, {"b": 1}, {` + pad + `}]}`, `{"sv": {"a": true, "u1": {"b": 1}}}`},
		{"SubObjInSubObjLargeDelta", `{"o": {"p": {"a": 1, "b": 2}, ` + pad + `}}`, `{"o": {"p": {"c": 1, "d": 2}, ` + pad + `}}`, `{"so": {"u": {"p": {"c": 1, "d": 2}}}}`},
		{"SubArrayInSubObjLargeDelta", `{"o": {"p": [1, 2], ` + pad + `}}`, `{"o": {"p": ["a", "b"], ` + pad + `}}`, `{"so": {"u": {"p": ["a", "b"]}}}`},
		{"SubDiff", `{"o": {` + pad + `, "a": 1, "b": 2}, "p": 1}`, `{"o": {` + pad + `, "b": 3, "c": 4}, "p": 1}`, `{"so": {"d": {"a": false}, "u": {"b": 3}, "i": {"c": 4}}}`},
		{"_id changes", `{"_id": 1, ` + pad + `}`, `{"_id": 2, ` + pad + `}`, ``},
		{"_id moves", `{"_id": 1, ` + pad + `}`, `{` + pad + `, "_id": 1}`, `{"i": {"_id": 1}}`},
		{"a field in front of _id", `{"_id": 1, "a": 2, ` + pad + `}`, `{"new": 0, "_id": 1, "a": 2, ` + pad + `}`, ``},
		{"a large field in front of _id", `{"_id": 1, ` + pad + `, "a": 2}`, `{` + pad + `, "_id": 1, "a": 2}`, `{"i": {"_id": 1, "a": 2}}`},
		{"_id goes", `{"_id": {"a": 1}, ` + pad + `}`, `{` + pad + `}`, `{"d": {"_id": false}}`},
		{"_id of another type", `{"_id": 1, ` + pad + `}`, `{"_id": 1.0, ` + pad + `}`, `{"u": {"_id": 1.0}}`},
		{"another type inside _id", `{"_id": {"a": 1, ` + pad + `}}`, `{"_id": {"a": 1.0, ` + pad + `}}`, `{"s_id": {"u": {"a": 1.0}}}`},
		{"_id comes", `{` + pad + `}`, `{"_id": 1, ` + pad + `}`, ``},
		{"inside _id", `{"_id": {"a": 1, ` + pad + `}}`, `{"_id": {"a": 2, ` + pad + `}}`, ``},
		{"_id further inside", `{"o": {"_id": 1, ` + pad + `}}`, `{"o": {"_id": 2, ` + pad + `}}`, `{"so": {"u": {"_id": 2}}}`},
		{"duplicate fields", `{"a": 1, "a": 1, ` + pad + `}`, `{"a": 1, "a": 2, ` + pad + `}`, ``},
		{"duplicate fields among many", `{` + pad + manyPairs() + `, "k3": 1}`, `{` + pad + manyPairs() + `, "k3": 2}`, ``},
		{"duplicate fields appear", `{"a": 1, ` + pad + `}`, `{"a": 1, ` + pad + `, "a": 2}`, ``},
		{"duplicate fields inside", `{"o": {"a": 1, "a": 1, ` + pad + `}, "q": {` + pad + `}}`, `{"o": {"a": 1, "a": 2, ` + pad + `}, "q": {` + pad + `}}`, `{"u": {"o": {"a": 1, "a": 2, ` + pad + `}}}`},
		{"many fields", `{` + pad + manyPairs() + `, "z": 1}`, `{` + pad + manyPairs() + `, "z": 2}`, `{"u": {"z": 2}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			pre, post := parse(t, c.pre), parse(t, c.post)
			got, ok := update.Diff(pre, post, update.EnvelopePadding)
			if !ok || c.diff == "" {
				if ok != (c.diff != "") || got != nil {
					t.Fatalf("got %s, %t", got, ok)
				}
				return
			}
			same(t, got, parse(t, c.diff))
			if c.diff == `{}` {
				return
			}
			d, err := update.ParseDelta(got)
			if err != nil {
				t.Fatal(err)
			}
			back, err := d.AppendApply(nil, pre)
			if err != nil {
				t.Fatal(err)
			}
			same(t, back, post)
		})
	}
}

func manyPairs() string {
	var b strings.Builder
	for i := range 30 {
		fmt.Fprintf(&b, `, "k%d": %d`, i, i)
	}
	return b.String()
}

// No diff results in an array whose elements are not numbered from 0, so such an
// array is written in full.
func TestDiffOfMisnumberedArrays(t *testing.T) {
	array := func(elems string) bson.Raw {
		raw := parse(t, `{`+pad+`, "v": {`+elems+`}}`)
		raw[bytes.Index(raw, []byte("\x03v\x00"))] = byte(bson.TypeArray)
		return raw
	}
	const text = `"0": "` + "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee" + `"`
	pre, post := array(text+`, "7": 1`), array(text+`, "7": 2`)
	for _, c := range []struct {
		pre, post bson.Raw
		want      string
	}{{pre, post, "u"}, {array(text + `, "1": 1`), post, "u"}, {pre, array(text + `, "1": 2`), "sv"}} {
		diff, ok := update.Diff(c.pre, c.post, update.EnvelopePadding)
		if !ok {
			t.Fatal("no diff")
		}
		if it := rawbson.NewIter(diff); !it.Next() || !it.Is(c.want) {
			t.Errorf("got %s", diff)
		}
		got, err := update.ApplyDelta(c.pre, diff)
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, c.post)
	}
}

// The padding decides for a diff of the outermost document, and only for that.
func TestDiffPadding(t *testing.T) {
	pre, post := parse(t, `{"a": 1, "b": 2, "c": "xxxxxxx"}`), parse(t, `{"a": 3, "b": 2, "c": "xxxxxxx"}`)
	diff, ok := update.Diff(pre, post, 0)
	if !ok {
		t.Fatal("no diff")
	}
	room := len(post) - len(diff)
	if _, ok := update.Diff(pre, post, room-1); !ok {
		t.Error("a diff one byte smaller than the document is refused")
	}
	if _, ok := update.Diff(pre, post, room); ok {
		t.Error("a diff as large as the document is taken")
	}
}

func TestDiffRefuses(t *testing.T) {
	good := parse(t, `{"a": 1}`)
	if _, ok := update.Diff(good[:5], good, 0); ok {
		t.Error("corrupt pre-image is taken")
	}
	if _, ok := update.Diff(good, good[:5], 0); ok {
		t.Error("corrupt post-image is taken")
	}
	// A diff has one more level of nesting than the document.
	if _, ok := update.Diff(deepDocument(rawbson.MaxDepth, 1), deepDocument(rawbson.MaxDepth, 2), 0); ok {
		t.Error("a diff deeper than may be is given")
	}
}

func deepDocument(levels, value int) bson.Raw {
	d := bson.D{{Key: "p", Value: strings.Repeat("p", 3000)}, {Key: "x", Value: value}}
	for range levels - 1 {
		d = bson.D{{Key: "x", Value: d}}
	}
	raw, _ := bson.Marshal(d)
	return raw
}

// DeeplyNestObjectGenerateDiff, DeepestObjectSubDiff.
func TestDiffOfTheDeepest(t *testing.T) {
	pre, post := deepDocument(rawbson.MaxDepth-1, 1), deepDocument(rawbson.MaxDepth-1, 2)
	diff, ok := update.Diff(pre, post, update.EnvelopePadding)
	if !ok {
		t.Fatal("no diff")
	}
	got, err := update.ApplyDelta(pre, diff)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, post)
}
