package update_test

import (
	"errors"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog/update"
)

// These cases have the names of the server's applier tests for the same rule, if
// there is one. Each diff is applied twice.
func TestApplyDelta(t *testing.T) {
	const nested = `{"sx": {"sy": {"u": {"z": "new"}}}}`
	const elements = `{"d": {"gone": false, "away": false}, "u": {"n": 7},
		"sv": {"a": true, "s1": {"u": {"p": "P"}}, "s3": {"u": {"q": "Q"}}, "u4": {"r": 0}}}`
	for _, c := range []struct{ name, pre, diff, post string }{
		{"DeleteSimple", `{"_id": 1, "a": 1, "b": 2, "c": 3}`, `{"d": {"c": false, "a": false, "x": false}}`, `{"_id": 1, "b": 2}`},
		{"InsertSimple", `{"_id": 1, "a": 1, "b": 2, "c": 3}`, `{"i": {"b": "B", "d": 4}}`, `{"_id": 1, "a": 1, "c": 3, "b": "B", "d": 4}`},
		{"UpdateSimple", `{"_id": 1, "a": 1, "b": 2}`, `{"u": {"x": 0, "a": "A"}}`, `{"_id": 1, "a": "A", "b": 2, "x": 0}`},
		{"updates before inserts", `{"_id": 1, "z": 0}`, `{"u": {"b": 1, "a": 2}, "i": {"z": 3, "d": 4, "c": 5}}`, `{"_id": 1, "b": 1, "a": 2, "z": 3, "d": 4, "c": 5}`},
		{"SubObjDiffSimple", `{"_id": 1, "o": {"d": 0, "i": 0, "u": 0}, "p": 0}`, `{"so": {"d": {"d": false}, "u": {"u": 2}, "i": {"i": 1}}}`, `{"_id": 1, "o": {"u": 2, "i": 1}, "p": 0}`},
		{"SubArrayDiffSimpleWithAppend", `{"v": [9, 9, 9]}`, `{"sv": {"a": true, "u0": "x", "u3": "y"}}`, `{"v": ["x", 9, 9, "y"]}`},
		{"SubArrayDiffSimpleWithTruncate", `{"v": [9, 9, 9, 9]}`, `{"sv": {"a": true, "l": 2, "u1": "x"}}`, `{"v": [9, "x"]}`},
		{"SubArrayDiffSimpleWithNullPadding", `{"v": [9]}`, `{"sv": {"a": true, "u4": "x"}}`, `{"v": [9, null, null, null, "x"]}`},
		{"length 0", `{"v": [9, [1]]}`, `{"sv": {"a": true, "l": 0}}`, `{"v": []}`},
		{"length beyond the end", `{"v": [9]}`, `{"sv": {"a": true, "l": 3}}`, `{"v": [9, null, null]}`},
		{"length that is already so", `{"v": [9, 8]}`, `{"sv": {"a": true, "l": 2}}`, `{"v": [9, 8]}`},
		{"array diff of nothing", `{"v": [9, 8]}`, `{"sv": {"a": true}}`, `{"v": [9, 8]}`},
		{"array diff of nothing, no array", `{"v": {"0": 1}}`, `{"sv": {"a": true}}`, `{"v": null}`},
		{"many elements", `{"v": [0,1,2,3,4,5,6,7,8,9,10,11]}`, `{"sv": {"a": true, "u9": "x", "u12": "y"}}`, `{"v": [0,1,2,3,4,5,6,7,8,"x",10,11,"y"]}`},
		{"NestedSubObjUpdateScalar", `{"x": {"y": {"z": 0, "a": 1}}}`, nested, `{"x": {"y": {"z": "new", "a": 1}}}`},
		{"NestedSubObjUpdateScalar missing", `{"a": 1}`, nested, `{"a": 1}`},
		{"NestedSubObjUpdateScalar missing inside", `{"x": {"a": 1}}`, nested, `{"x": {"a": 1}}`},
		{"NestedSubObjUpdateScalar scalar", `{"a": 1, "x": "s", "b": 1}`, nested, `{"a": 1, "x": null, "b": 1}`},
		{"NestedSubObjUpdateScalar scalar inside", `{"x": {"a": 1, "y": 5, "b": 1}, "c": 1}`, nested, `{"x": {"a": 1, "y": null, "b": 1}, "c": 1}`},
		{"NestedSubObjUpdateScalar array", `{"x": [{"y": {}}]}`, nested, `{"x": null}`},
		{"UpdateArrayOfObjectsSubDiff", `{"n": 0, "gone": 1, "v": [null, {"p": 0}, {}, {"a": 1}], "away": 2}`, elements, `{"n": 7, "v": [null, {"p": "P"}, {}, {"a": 1, "q": "Q"}, {"r": 0}]}`},
		{"UpdateArrayOfObjectsSubDiff done", `{"v": [null, {"p": "P"}, {}, {"q": "Q"}, {"r": 0}], "n": 7}`, elements, `{"v": [null, {"p": "P"}, {}, {"q": "Q"}, {"r": 0}], "n": 7}`},
		{"UpdateArrayOfObjectsSubDiff scalars", `{"v": [0, 1, 2, 3, {"p": 4}], "n": 1}`, elements, `{"v": [0, null, 2, null, {"r": 0}], "n": 7}`},
		{"UpdateArrayOfObjectsSubDiff too short", `{"v": [], "n": 1}`, elements, `{"v": [null, null, null, null, {"r": 0}], "n": 7}`},
		{"UpdateArrayOfObjectsSubDiff too long", `{"v": [0, {}, 2, {}, 4, 5], "n": 1}`, elements, `{"v": [0, {"p": "P"}, 2, {"q": "Q"}, {"r": 0}, 5], "n": 7}`},
		{"UpdateArrayOfObjectsSubDiff object", `{"a": 1, "v": {"1": {}}, "b": 1}`, elements, `{"a": 1, "v": null, "b": 1, "n": 7}`},
		{"UpdateArrayOfObjectsWithUpdateOperationNonContiguous", `{"v": [{}, {}, [1]]}`, `{"sv": {"a": true, "u1": {"k": 1}, "u4": [2]}}`, `{"v": [{}, {"k": 1}, [1], null, [2]]}`},
		{"arrays in arrays", `{"v": [[1, [2]], [3]]}`, `{"sv": {"a": true, "s0": {"a": true, "s1": {"a": true, "u1": 9}}, "s1": {"a": true, "l": 0}}}`, `{"v": [[1, [2, 9]], []]}`},
		{"array element of another type", `{"v": [[1], {}]}`, `{"sv": {"a": true, "s0": {"u": {"a": 1}}, "s1": {"a": true, "u0": 1}}}`, `{"v": [null, null]}`},
		{"duplicate fields", `{"a": 1, "b": {"c": 1}, "a": 2, "d": 0, "b": 5, "i": 1, "e": 4, "i": 2, "d": 1}`, `{"d": {"d": false}, "u": {"a": "A"}, "i": {"i": "I"}, "sb": {"u": {"c": "C"}}}`, `{"a": "A", "b": {"c": "C"}, "a": "A", "b": null, "e": 4, "i": "I"}`},
		{"names are literal", `{"a": {"b": 1}, "a.b": 1, "$x": 1, "0": 1, "": {"": 1}}`, `{"u": {"a.b": 2, "$x": 2}, "i": {"0": 2}, "s": {"u": {"": 2}}}`, `{"a": {"b": 1}, "a.b": 2, "$x": 2, "": {"": 2}, "0": 2}`},
		{"deprecated types", `{"a": {"$undefined": true}, "b": {"$symbol": "s"}, "c": 1}`, `{"u": {"c": {"$undefined": true}}, "i": {"d": {"$code": "x", "$scope": {"y": 1}}}}`, `{"a": {"$undefined": true}, "b": {"$symbol": "s"}, "c": {"$undefined": true}, "d": {"$code": "x", "$scope": {"y": 1}}}`},
		{"InsertNumericFieldNamesTopLevel", `{"_id": 1}`, `{"i": {"1": 1, "0": 0}}`, `{"_id": 1, "1": 1, "0": 0}`},
		{"InsertNumericFieldNamesNested", `{"_id": 1, "o": {}}`, `{"so": {"i": {"1": 1, "0": 0}}}`, `{"_id": 1, "o": {"1": 1, "0": 0}}`},
		{"document of _id only", `{"_id": 1}`, `{"d": {"a": false}}`, `{"_id": 1}`},
		{"empty document", `{}`, `{"d": {"a": false}, "u": {"b": 1}, "sc": {"a": true, "u0": 1}}`, `{"b": 1}`},
		{"empty section", `{"a": 1}`, `{"d": {}, "u": {}}`, `{"a": 1}`},
		{"BinaryAppendSimple", `{"f": {"$binary": {"base64": "YWJj", "subType": "07"}}}`, binaryDiff(3), `{"f": {"$binary": {"base64": "YWJjZGVm", "subType": "07"}}}`},
		{"BinaryOverwriteSimple", `{"f": {"$binary": {"base64": "YWJj", "subType": "07"}}}`, binaryDiff(2), `{"f": {"$binary": {"base64": "YWJkZWY=", "subType": "07"}}}`},
		{"BinaryIsIdempotentMultipleWithShrink", `{"f": {"$binary": {"base64": "YXg=", "subType": "07"}}}`, binaryDiff(3), `{"f": {"$binary": {"base64": "YXg=", "subType": "07"}}}`},
		{"BinaryAppendNonColumnSubtype", `{"f": {"$binary": {"base64": "YWJj", "subType": "04"}}, "g": 1}`, binaryDiff(0), `{"f": {"$binary": {"base64": "ZGVm", "subType": "04"}}, "g": 1}`},
		{"binary missing", `{"g": 1}`, binaryDiff(0), `{"g": 1}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			pre, diff, want := parse(t, c.pre), parse(t, c.diff), parse(t, c.post)
			got, err := update.ApplyDelta(pre, diff)
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, want)
			if got, err = update.ApplyDelta(got, diff); err != nil {
				t.Fatal(err)
			}
			same(t, got, want)
		})
	}
}

// binaryDiff returns a delta that writes "def" at an offset.
func binaryDiff(offset int) string {
	o := string(rune('0' + offset))
	return `{"b": {"f": {"o": ` + o + `, "d": {"$binary": {"base64": "ZGVm", "subType": "00"}}}}}`
}

// An array whose elements are not numbered from 0 is renumbered when a part of it
// changes, as by the server's builder.
func TestApplyDeltaNumbersArrays(t *testing.T) {
	pre := parse(t, `{"v": {"5": "a", "1": "b", "x": "c"}, "w": {"7": 1}}`)
	for i, b := range pre[:len(pre)-1] {
		// Turn the two documents into arrays.
		if b == byte(bson.TypeEmbeddedDocument) && (pre[i+1] == 'v' || pre[i+1] == 'w') {
			pre[i] = byte(bson.TypeArray)
		}
	}
	got, err := update.ApplyDelta(pre, parse(t, `{"sv": {"a": true, "u3": "d"}}`))
	if err != nil {
		t.Fatal(err)
	}
	v, _ := rawbson.Lookup(got, "v")
	want, _ := rawbson.Lookup(parse(t, `{"v": ["a", "b", "c", "d"]}`), "v")
	same(t, v.Value, want.Value)
	w, _ := rawbson.Lookup(got, "w")
	if string(w.Value) != string(pre.Lookup("w").Value) {
		t.Errorf("w was changed: %s", bson.Raw(w.Value))
	}
}

func TestApplyDeltaRefuses(t *testing.T) {
	corrupt := parse(t, `{"a": "x", "b": "y"}`)
	corrupt[len(corrupt)-2] = 1 // the terminator of b's string
	inner := parse(t, `{"a": {"b": "x"}, "c": ["x"]}`)
	inner[len(inner)-3] = 1
	first := parse(t, `{"a": {"b": "x"}}`)
	first[len(first)-3] = 1
	bad := func(err error) bool { _, ok := errors.AsType[*rawbson.CorruptError](err); return ok }
	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	for _, c := range []struct {
		name  string
		pre   bson.Raw
		diff  string
		check func(error) bool
	}{
		{"bad delta", parse(t, `{}`), `{}`, is(update.ErrBadDelta)},
		{"binary of a string", parse(t, `{"f": "abc"}`), binaryDiff(0), is(update.ErrBinaryDiff)},
		{"binary of a string in an array", parse(t, `{"v": [{"f": "abc"}]}`), `{"sv": {"a": true, "s0": ` + binaryDiff(0) + `}}`, is(update.ErrBinaryDiff)},
		{"length too large", parse(t, `{"v": [1]}`), `{"sv": {"a": true, "l": 2147483647}}`, is(update.ErrTooLarge)},
		{"index too large", parse(t, `{"v": [1]}`), `{"sv": {"a": true, "u2147483647": 1}}`, is(update.ErrTooLarge)},
		{"no document", nil, `{"u": {"a": 1}}`, bad},
		{"corrupt document", corrupt, `{"u": {"a": 1}}`, bad},
		{"corrupt array", inner, `{"sc": {"a": true, "u0": 1}}`, bad},
		{"corrupt inside", first, `{"sa": {"u": {"c": 1}}}`, bad},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := update.ApplyDelta(c.pre, parse(t, c.diff))
			if err == nil || got != nil || !c.check(err) {
				t.Fatalf("got %v, %v", got, err)
			}
		})
	}
}

func TestApplyDeltaWithManyUpdates(t *testing.T) {
	var pre, updates, want bson.D
	for i := range 300 {
		name := "k" + strconv.Itoa(i)
		if i%3 == 0 {
			pre = append(pre, bson.E{Key: name, Value: i})
			want = append(want, bson.E{Key: name, Value: "new"})
		}
		updates = append(updates, bson.E{Key: name, Value: "new"})
	}
	for i, e := range updates {
		if i%3 != 0 {
			want = append(want, e)
		}
	}
	raw := func(d bson.D) bson.Raw {
		b, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	got, err := update.ApplyDelta(raw(pre), raw(bson.D{{Key: "u", Value: updates}}))
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, raw(want))
}

// A result slightly over the limit is refused whatever makes it large.
func TestApplyDeltaLimitsTheResult(t *testing.T) {
	big := strings.Repeat("x", update.MaxResult-100)
	pre := parse(t, `{"_id": 1}`)
	d, err := bson.Marshal(bson.D{{Key: "i", Value: bson.D{{Key: "a", Value: big}}}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := update.ApplyDelta(pre, d)
	if err != nil {
		t.Fatal(err)
	}
	_, err = update.ApplyDelta(got, parse(t, `{"i": {"b": "`+strings.Repeat("y", 100)+`"}}`))
	if !errors.Is(err, update.ErrTooLarge) {
		t.Fatalf("got %v", err)
	}
}

// A few bytes can demand a large array. One that is too large is refused before
// memory is allocated for it.
func TestPaddingIsLimitedBeforeItIsWritten(t *testing.T) {
	set := make([]string, 20)
	for i := range set {
		set[i] = `"a.` + strconv.Itoa((i+1)*update.MaxPadding) + `": 1`
	}
	for _, o := range []string{
		`{"$v": 2, "diff": {"sa": {"a": true, "l": 22369600}}}`,
		`{"$v": 2, "diff": {"sa": {"a": true, "l": 2147483647, "u2147483646": 1}}}`,
		`{"$v": 2, "diff": {"sa": {"a": true, "u1": 1, "s22369600": {"u": {"x": 1}}}}}`,
		`{"$set": {` + strings.Join(set, ", ") + `}}`,
	} {
		doc, o := parse(t, `{"_id": 1, "a": [1]}`), parse(t, o)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := update.Apply(doc, o)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, update.ErrTooLarge) || took > 1<<20 {
			t.Errorf("%.60s: took %d bytes, %v", o, took, err)
		}
	}
}

func TestClassify(t *testing.T) {
	for _, c := range []struct {
		o    string
		want update.Form
	}{
		{`{"_id": 1, "a": 1}`, update.FormReplacement},
		{`{"$v": 2, "diff": {}, "_id": 1}`, update.FormReplacement},
		{`{"$v": "mine", "_id": 1}`, update.FormReplacement},
		{`{"$v": 2, "diff": {}}`, update.FormDelta},
		{`{"$v": {"$numberLong": "2"}, "diff": {}}`, update.FormDelta},
		{`{"$v": 1, "$set": {}}`, update.FormModifiers},
		{`{"$set": {}}`, update.FormModifiers},
		{`{}`, update.FormModifiers},
	} {
		if got, err := update.Classify(parse(t, c.o)); err != nil || got != c.want {
			t.Errorf("%s: got %v, %v", c.o, got, err)
		}
	}
	for _, o := range []string{`{"$v": 3}`, `{"$v": 0}`, `{"$v": "2"}`, `{"$v": 1.5}`, `{"$v": null}`} {
		if got, err := update.Classify(parse(t, o)); !errors.Is(err, update.ErrUnknownForm) {
			t.Errorf("%s: got %v, %v", o, got, err)
		}
	}
	if _, err := update.Classify(nil); err == nil {
		t.Error("no document: no error")
	}
	if got := []string{
		update.FormReplacement.String(), update.FormDelta.String(), update.FormModifiers.String(), update.Form(9).String(),
	}; strings.Join(got, " ") != "replacement delta modifiers Form(9)" {
		t.Error(got)
	}
}

func TestApply(t *testing.T) {
	const pre = `{"_id": 1, "a": 1}`
	for _, c := range []struct{ name, pre, o, post string }{
		{"delta", pre, `{"$v": 2, "diff": {"u": {"a": 2}}}`, `{"_id": 1, "a": 2}`},
		{"modifiers", pre, `{"$v": 1, "$set": {"a": 2}}`, `{"_id": 1, "a": 2}`},
		{"modifiers without $v", pre, `{"$set": {"a": 2}}`, `{"_id": 1, "a": 2}`},
		{"replacement", pre, `{"_id": 1, "b": 2}`, `{"_id": 1, "b": 2}`},
		{"replacement with $v", pre, `{"_id": 1, "$v": 2, "diff": {"u": {"a": 2}}}`, `{"_id": 1, "$v": 2, "diff": {"u": {"a": 2}}}`},
		{"replacement gives _id", `{"a": 1}`, `{"_id": 1, "b": 2}`, `{"_id": 1, "b": 2}`},
		{"replacement moves _id", pre, `{"b": 2, "c": [3], "_id": 1, "d": 4}`, `{"_id": 1, "b": 2, "c": [3], "d": 4}`},
		{"replacement by an equal _id", pre, `{"_id": 1.0}`, `{"_id": 1.0}`},
		{"delta moves _id", `{"a": 1, "_id": 1}`, `{"$v": 2, "diff": {"u": {"a": 2}}}`, `{"_id": 1, "a": 2}`},
		{"delta moves the first _id", `{"a": 1, "_id": 1, "b": 1, "_id": 2}`, `{"$v": 2, "diff": {"u": {"a": 2}}}`, `{"_id": 1, "a": 2, "b": 1, "_id": 2}`},
		{"modifiers move _id", `{"a": 1, "_id": 1}`, `{"$set": {"a": 2}}`, `{"_id": 1, "a": 2}`},
		{"delta of nothing", `{"a": 1, "_id": 1}`, `{"$v": 2, "diff": {"u": {"a": 1}}}`, `{"a": 1, "_id": 1}`},
		{"modifiers of nothing", `{"a": 1, "_id": 1}`, `{"$set": {"a": 1}}`, `{"a": 1, "_id": 1}`},
		{"replacement by the same", `{"a": 1, "_id": 1}`, `{"a": 1, "_id": 1}`, `{"a": 1, "_id": 1}`},
		{"_id after a new field", pre, `{"$v": 2, "diff": {"i": {"new": 0, "_id": 1, "a": 1}}}`, `{"_id": 1, "new": 0, "a": 1}`},
		{"_id at the end", pre, `{"$v": 2, "diff": {"i": {"_id": 1}}}`, pre},
		{"_id at the end, again", `{"_id": 1, "new": 0, "a": 1}`, `{"$v": 2, "diff": {"i": {"new": 0, "_id": 1, "a": 1}}}`, `{"_id": 1, "new": 0, "a": 1}`},
		{"_id at the end, from the middle", `{"a": 1, "_id": 1, "b": 1}`, `{"$v": 2, "diff": {"i": {"_id": 1}}}`, `{"_id": 1, "a": 1, "b": 1}`},
		{"_id at the end, where it is", `{"a": 1, "_id": 1}`, `{"$v": 2, "diff": {"i": {"_id": 1}}}`, `{"a": 1, "_id": 1}`},
		{"_id left out", pre, `{"$v": 2, "diff": {"d": {"_id": false, "a": false}}}`, `{"_id": 1}`},
		{"_id left out, in the middle", `{"a": 1, "_id": 1, "b": 1}`, `{"$v": 2, "diff": {"d": {"_id": false}}}`, `{"_id": 1, "a": 1, "b": 1}`},
		{"_id of another type", pre, `{"$v": 2, "diff": {"u": {"_id": 1.0}}}`, `{"_id": 1.0, "a": 1}`},
		{"_id of another type at the end", pre, `{"$v": 2, "diff": {"i": {"_id": 1.0, "b": 2}}}`, `{"_id": 1.0, "a": 1, "b": 2}`},
		{"another type inside _id", `{"_id": {"x": 1}, "a": 1}`, `{"$v": 2, "diff": {"s_id": {"u": {"x": 1.0}}}}`, `{"_id": {"x": 1.0}, "a": 1}`},
		{"_id where there is none", `{"a": 1}`, `{"$v": 2, "diff": {"i": {"_id": 1}}}`, `{"_id": 1, "a": 1}`},
		{"no _id", `{"a": 1}`, `{"$v": 2, "diff": {"u": {"a": 2}}}`, `{"a": 2}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := parse(t, c.o)
			before := string(o)
			got, err := update.Apply(parse(t, c.pre), o)
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, parse(t, c.post))
			if string(o) != before {
				t.Error("o was changed")
			}
			if diff, err := update.DeltaOf(o); err == nil {
				got, err := update.ApplyDelta(parse(t, c.pre), diff)
				if err != nil {
					t.Fatal(err)
				}
				same(t, got, parse(t, c.post))
			}
		})
	}
}

func TestAppendApplyKeepsWhatIsThere(t *testing.T) {
	buf := []byte("before")
	for _, o := range []string{`{"$v": 2, "diff": {"u": {"a": 2}}}`, `{"$set": {"a": 2}}`, `{"a": 2, "_id": 1}`} {
		got, err := update.AppendApply(buf, parse(t, `{"_id": 1, "a": 1}`), parse(t, o))
		if err != nil {
			t.Fatal(err)
		}
		if string(got[:len(buf)]) != "before" {
			t.Errorf("%s: got %q", o, got)
		}
		same(t, got[len(buf):], parse(t, `{"_id": 1, "a": 2}`))
	}
}

func TestApplyRefuses(t *testing.T) {
	for _, c := range []struct {
		name, o string
		want    error
	}{
		{"unknown form", `{"$v": 7}`, update.ErrUnknownForm},
		{"no diff", `{"$v": 2}`, update.ErrBadDelta},
		{"diff of wrong type", `{"$v": 2, "diff": [1]}`, update.ErrBadDelta},
		{"diff twice", `{"$v": 2, "diff": {"u": {"a": 1}}, "diff": {"u": {"a": 1}}}`, update.ErrBadDelta},
		{"unknown field", `{"$v": 2, "diff": {"u": {"a": 1}}, "x": 1}`, update.ErrBadDelta},
		{"bad delta", `{"$v": 2, "diff": {}}`, update.ErrBadDelta},
		{"replacement changes _id", `{"_id": 2}`, update.ErrIDChanged},
		{"delta changes _id", `{"$v": 2, "diff": {"u": {"_id": 2}}}`, update.ErrIDChanged},
		{"delta inserts another _id", `{"$v": 2, "diff": {"i": {"b": 1, "_id": "1"}}}`, update.ErrIDChanged},
		{"delta goes into an _id that is none", `{"$v": 2, "diff": {"s_id": {"u": {"a": 1}}}}`, update.ErrIDChanged},
		{"unknown operator", `{"$inc": {"a": 1}}`, update.ErrBadModifiers},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := update.Apply(parse(t, `{"_id": 1, "a": 1}`), parse(t, c.o))
			if got != nil || !errors.Is(err, c.want) {
				t.Fatalf("got %v, %v", got, err)
			}
		})
	}
	for _, o := range []bson.Raw{nil, deepDelta(400), append(parse(t, `{"_id": 1, "a": {"b": "c"}}`)[:20], 1, 1, 1)} {
		if got, err := update.Apply(parse(t, `{"_id": 1}`), o); err == nil || got != nil {
			t.Errorf("%x: got %v, %v", o, got, err)
		}
	}
	corrupt := parse(t, `{"_id": 1, "a": {"b": "c"}}`)
	corrupt[len(corrupt)-3] = 1
	if _, err := update.Apply(parse(t, `{"_id": 1}`), corrupt); err == nil {
		t.Error("corrupt replacement: no error")
	}
}

func TestDeltaOfRefuses(t *testing.T) {
	for _, o := range []bson.Raw{nil, parse(t, `{"diff": {"u": {"a": 1}}}`), parse(t, `{"$v": 1, "diff": {"u": {"a": 1}}}`)} {
		if diff, err := update.DeltaOf(o); diff != nil || !errors.Is(err, update.ErrBadDelta) {
			t.Errorf("%s: got %v, %v", o, diff, err)
		}
	}
}

func TestApplyTakesEqualIDs(t *testing.T) {
	groups := [][]string{
		{`1`, `{"$numberLong": "1"}`, `1.0`, `{"$numberDecimal": "1"}`, `{"$numberDecimal": "1.000"}`, `{"$numberDecimal": "10E-1"}`},
		{`{"$numberLong": "9007199254740993"}`},
		{`{"$numberLong": "9007199254740992"}`},
		{`{"$numberDouble": "NaN"}`, `{"$numberDecimal": "NaN"}`},
		{`{"$numberDouble": "Infinity"}`, `{"$numberDecimal": "Infinity"}`},
		{`{"$numberDouble": "-Infinity"}`, `{"$numberDecimal": "-Infinity"}`},
		{`0`, `{"$numberDouble": "-0.0"}`, `{"$numberDecimal": "0E+10"}`},
		{`{"$numberDecimal": "3E+3"}`, `3000`},
		{`"s"`, `{"$symbol": "s"}`},
		{`{"a": 1, "b": [1]}`, `{"a": 1.0, "b": [{"$numberLong": "1"}]}`},
		{`{"b": [1], "a": 1}`},
		{`{"a": 1}`},
		{`{"a": 1, "b": 1}`},
		{`{"a": 1, "b": [1, 2]}`},
		{`"1"`},
		{`null`},
		{`true`},
		{`{"$date": {"$numberLong": "1"}}`},
		{`{"$timestamp": {"t": 0, "i": 1}}`},
		{`2.5`},
	}
	for i, group := range groups {
		for j, other := range groups {
			for _, a := range group {
				for _, b := range other {
					_, err := update.Apply(parse(t, `{"_id": `+a+`}`), parse(t, `{"_id": `+b+`}`))
					if i == j && err != nil || i != j && !errors.Is(err, update.ErrIDChanged) {
						t.Errorf("%s to %s: got %v", a, b, err)
					}
				}
			}
		}
	}
}

func TestCheckID(t *testing.T) {
	for _, c := range []struct {
		diff, id string
		changes  bool
	}{
		{`{"u": {"a": 1}}`, `1`, false},
		{`{"d": {"_id": false}}`, `1`, false},
		{`{"i": {"new": 0, "_id": 1}}`, `1`, false},
		{`{"i": {"new": 0, "_id": 1}}`, `1.0`, false},
		{`{"u": {"_id": 1}}`, `2`, true},
		{`{"i": {"_id": null}}`, `2`, true},
		{`{"s_id": {"u": {"x": 1}}}`, `{"x": 1, "y": 2}`, false},
		{`{"s_id": {"u": {"x": 2}}}`, `{"x": 1, "y": 2}`, true},
		{`{"s_id": {"u": {"x": 2}}}`, `2`, true},
	} {
		d, err := update.ParseDelta(parse(t, c.diff))
		if err != nil {
			t.Fatal(err)
		}
		if err := d.CheckID(parse(t, `{"v": `+c.id+`}`).Lookup("v")); errors.Is(err, update.ErrIDChanged) != c.changes {
			t.Errorf("%s of _id %s: %v", c.diff, c.id, err)
		}
	}
}
