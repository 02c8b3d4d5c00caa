package update_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog/update"
)

func TestParseDeltaReadsAllParts(t *testing.T) {
	d, err := update.ParseDelta(parse(t, `{
		"d": {"x": false, "y": 7},
		"u": {"a.b": 1},
		"i": {"$c": "new", "0": null},
		"b": {"bin": {"o": 3, "d": {"$binary": {"base64": "AQI=", "subType": "00"}}}},
		"s": {"d": {"u": false}},
		"sarr": {"a": true, "l": 12, "u0": 1, "s2": {"a": true}, "s10": {"i": {"k": 1}}}
	}`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	say := func(format string, args ...any) { got = append(got, fmt.Sprintf(format, args...)) }
	for _, name := range d.Deletes {
		say("delete %q", name)
	}
	for _, f := range d.Updates {
		say("update %q %s", f.Name, f.Value)
	}
	for _, f := range d.Inserts {
		say("insert %q %s", f.Name, f.Value)
	}
	for _, b := range d.Binaries {
		say("binary %q from %d subtype %d %x", b.Name, b.Offset, b.Subtype, b.Data)
	}
	for _, s := range d.Subs {
		switch {
		case s.Object != nil && s.Array == nil:
			say("sub %q deletes %q", s.Name, s.Object.Deletes)
		case s.Array != nil && s.Object == nil:
			say("sub %q length %t %d", s.Name, s.Array.HasLength, s.Array.Length)
			for _, m := range s.Array.Mods {
				say("element %d sub %t", m.Index, m.IsSub())
			}
		}
	}
	want := []string{
		`delete "x"`, `delete "y"`,
		`update "a.b" {"$numberInt":"1"}`,
		`insert "$c" "new"`, `insert "0" null`,
		`binary "bin" from 3 subtype 0 0102`,
		`sub "" deletes ["u"]`,
		`sub "arr" length true 12`, `element 0 sub false`, `element 2 sub true`, `element 10 sub true`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseDeltaAccepts(t *testing.T) {
	for _, diff := range []string{
		`{"u": {"u": 1, "d": 2, "i": 3, "s": 4, "sa": 5}}`,
		`{"sd": {"d": {"d": false}}, "su": {"u": {"u": 1}}, "si": {"i": {"i": 1}}, "ss": {"ss": {"u": {"s": 1}}}}`,
		`{"sa": {"a": true}}`,
		`{"sa": {"a": true, "l": 0}}`,
		`{"sa": {"a": true, "u2147483647": 1}}`,
		`{"sx": {"u": {"_id": 1}, "i": {"a": true}}}`,
		`{"d": {}}`,
		`{"d": {"_id": false}}`, `{"u": {"_id": 1}}`, `{"i": {"new": 0, "_id": 1}}`, `{"s_id": {"u": {"a": 1}}}`,
		`{"b": {"f": {"o": {"$numberLong": "5"}, "d": {"$binary": {"base64": "", "subType": "00"}}}}}`,
		manyFields("u", "i", 40),
	} {
		if _, err := update.ParseDelta(parse(t, diff)); err != nil {
			t.Errorf("%s: %v", diff, err)
		}
	}
}

// manyFields returns a delta with two sections of n fields each, all different.
func manyFields(first, second string, n int) string {
	section := func(letter string) string {
		var fields []string
		for i := range n {
			fields = append(fields, fmt.Sprintf(`"%s%d": %d`, letter, i, i))
		}
		return fmt.Sprintf(`"%s": {%s}`, letter, strings.Join(fields, ","))
	}
	return "{" + section(first) + "," + section(second) + "}"
}

func TestParseDeltaRefuses(t *testing.T) {
	for _, c := range []struct{ name, diff, want string }{
		{"empty", `{}`, `diff: an empty diff`},
		{"empty inside", `{"sx": {}}`, `diff/sx: an empty diff`},
		{"empty deep inside", `{"sx": {"a": true, "s3": {}}}`, `diff/sx/s3: an empty diff`},
		{"array diff at top", `{"a": true, "l": 5, "d0": false}`, `diff: an array diff of a whole document`},
		{"unknown section", `{"x": {"a": 1}}`, `diff: unknown section "x"`},
		{"section name too long", `{"uu": {"a": 1}}`, `diff: unknown section "uu"`},
		{"section without name", `{"": {"a": 1}}`, `diff: unknown section ""`},
		{"array mark not first", `{"sx": {"u": {}, "a": true}}`, `diff/sx: unknown section "a"`},
		{"out of order", `{"i": {"a": 1}, "u": {"b": 1}}`, `diff: section "u" out of order`},
		{"binary before insert", `{"b": {}, "i": {"b": 1}}`, `diff: section "i" out of order`},
		{"twice", `{"u": {"a": 1}, "u": {"b": 1}}`, `diff: section "u" twice`},
		{"after sub-diff", `{"sx": {"u": {"a": 1}}, "u": {"a": 1}}`, `diff: section "u" after a sub-diff`},
		{"section not a document", `{"d": ["a"]}`, `diff/d: type array instead of a document`},
		{"sub-diff not a document", `{"sx": 1}`, `diff/sx: type 32-bit integer instead of a document`},
		{"same field in one section", `{"d": {"a": false, "b": false, "a": false}}`, `diff: field "a" occurs twice`},
		{"same field in two sections", `{"d": {"a": false}, "i": {"a": 1}}`, `diff: field "a" occurs twice`},
		{"same sub-diff twice", `{"sx": {"u": {"a": 1}}, "sx": {"u": {"a": 1}}}`, `diff: field "x" occurs twice`},
		{"same field inside", `{"u": {"x": 1}, "sx": {"u": {"a": 1}}}`, `diff: field "x" occurs twice`},
		{"same field of many", strings.Replace(manyFields("u", "i", 40), `"i39"`, `"u7"`, 1), `diff: field "u7" occurs twice`},
		{"_id in two sections", `{"d": {"_id": false}, "i": {"_id": 1}}`, `diff: field "_id" occurs twice`},
		{"array mark false", `{"sx": {"a": false, "u0": 1}}`, `diff/sx/a: an array diff's mark that is not true`},
		{"array mark a number", `{"sx": {"a": 1, "u0": 1}}`, `diff/sx/a: an array diff's mark that is not true`},
		{"length negative", `{"sx": {"a": true, "l": -1}}`, `diff/sx/l: an array length that is not an int32 of at least 0`},
		{"length of wrong type", `{"sx": {"a": true, "l": {"$numberLong": "1"}}}`, `diff/sx/l: an array length that is not an int32 of at least 0`},
		{"length not second", `{"sx": {"a": true, "u0": 1, "l": 1}}`, `diff/sx: unknown field "l" in an array diff`},
		{"length twice", `{"sx": {"a": true, "l": 1, "l": 1}}`, `diff/sx: unknown field "l" in an array diff`},
		{"delete in array", `{"sx": {"a": true, "d0": false}}`, `diff/sx: unknown field "d0" in an array diff`},
		{"nameless in array", `{"sx": {"a": true, "": 1}}`, `diff/sx: unknown field "" in an array diff`},
		{"no index", `{"sx": {"a": true, "u": 1}}`, `diff/sx: field "u" in an array diff: not an array index`},
		{"index signed", `{"sx": {"a": true, "u+1": 1}}`, `diff/sx: field "u+1" in an array diff: not an array index`},
		{"index with zero", `{"sx": {"a": true, "u01": 1}}`, `diff/sx: field "u01" in an array diff: not an array index`},
		{"index too large", `{"sx": {"a": true, "u2147483648": 1}}`, `diff/sx: field "u2147483648" in an array diff: not an array index`},
		{"index far too large", `{"sx": {"a": true, "u99999999999999999999": 1}}`, `diff/sx: field "u99999999999999999999" in an array diff: not an array index`},
		{"index twice", `{"sx": {"a": true, "u1": 1, "s1": {"u": {"a": 1}}}}`, `diff/sx: field "s1" in an array diff: after index 1`},
		{"index descends", `{"sx": {"a": true, "u10": 1, "u9": 1}}`, `diff/sx: field "u9" in an array diff: after index 10`},
		{"index beyond length", `{"sx": {"a": true, "l": 2, "u2": 1}}`, `diff/sx: field "u2" in an array diff of length 2`},
		{"element's diff not a document", `{"sx": {"a": true, "s2": [1]}}`, `diff/sx/s2: type array instead of a document`},
		{"odd name in path", `{"sx.y": {"d": 1}}`, `diff/"sx.y"/d: type 32-bit integer instead of a document`},
		{"binary not a document", `{"b": {"f": "x"}}`, `diff/b/f: type string instead of a document`},
		{"binary empty", `{"b": {"f": {}}}`, `diff/b/f: a binary diff that does not start with its offset`},
		{"binary without data", `{"b": {"f": {"o": 1}}}`, `diff/b/f: a binary diff without data after its offset`},
		{"binary offset negative", `{"b": {"f": {"o": -1, "d": {"$binary": {"base64": "", "subType": "00"}}}}}`, `diff/b/f/o: an offset that is not an integer from 0 to 2147483647`},
		{"binary offset a double", `{"b": {"f": {"o": 1.0, "d": {"$binary": {"base64": "", "subType": "00"}}}}}`, `diff/b/f/o: an offset that is not an integer from 0 to 2147483647`},
		{"binary data a string", `{"b": {"f": {"o": 1, "d": "x"}}}`, `diff/b/f/d: type string instead of binary data`},
		{"binary with more", `{"b": {"f": {"o": 1, "d": {"$binary": {"base64": "", "subType": "00"}}, "x": 1}}}`, `diff/b/f: unknown field "x" in a binary diff`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := update.ParseDelta(parse(t, c.diff))
			if !errors.Is(err, update.ErrBadDelta) {
				t.Fatalf("got %v", err)
			}
			if got := err.Error(); got != "delta: "+c.want {
				t.Errorf("got  %s\nwant delta: %s", got, c.want)
			}
		})
	}
}

func TestParseDeltaRefusesBadBSON(t *testing.T) {
	good := parse(t, `{"u": {"a": "text"}}`)
	bad := bytes.Clone(good)
	bad[len(bad)-3] = 1 // the string's terminator
	for _, diff := range [][]byte{nil, good[:len(good)-1], bad, deepDelta(rawbson.MaxDepth + 1)} {
		_, err := update.ParseDelta(diff)
		corrupt, ok := errors.AsType[*rawbson.CorruptError](err)
		if !errors.Is(err, update.ErrBadDelta) || !ok || corrupt.What == "" {
			t.Errorf("%x: got %v", diff, err)
		}
	}
	if _, err := update.ParseDelta(deepDelta(rawbson.MaxDepth)); err != nil {
		t.Error(err)
	}
}

// deepDelta returns a delta with n levels of nesting.
func deepDelta(n int) bson.Raw {
	d := bson.D{{Key: "u", Value: bson.D{{Key: "x", Value: 1}}}}
	for range n - 2 {
		d = bson.D{{Key: "sx", Value: d}}
	}
	raw, _ := bson.Marshal(d)
	return raw
}

func TestParseDeltaAcceptsWhatIsDrawn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		diff := bsongen.BinaryDelta(t)
		if _, err := update.ParseDelta(diff); err != nil {
			t.Fatalf("%v: %s", err, diff)
		}
	})
}

func TestParseDeltaAllocates(t *testing.T) {
	diff := parse(t, `{"u": {"a": 1, "b": 2}, "sc": {"a": true, "u3": 1}}`)
	n := testing.AllocsPerRun(100, func() {
		if _, err := update.ParseDelta(diff); err != nil {
			t.Fatal(err)
		}
	})
	// Allocations per document level: its struct, names, fields and sub-diffs; per
	// array: its struct and elements.
	if n > 6 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzParseDelta(f *testing.F) {
	for _, diff := range []string{
		`{"d": {"x": false}, "u": {"a": 1}, "i": {"b": "x"}, "sarr": {"a": true, "l": 12, "u0": 1, "s2": {"a": true}}}`,
		`{"b": {"bin": {"o": 3, "d": {"$binary": {"base64": "AQI=", "subType": "00"}}}}}`,
		`{"ssub": {"ssub": {"u": {"": null}}}}`,
		`{"u": {"a": 1}, "u": {"b": 1}}`,
		`{"sx": {"a": true, "u01": 1}}`,
	} {
		f.Add([]byte(parse(f, diff)))
	}
	f.Fuzz(func(t *testing.T, diff []byte) {
		d, err := update.ParseDelta(diff)
		if err != nil {
			if !errors.Is(err, update.ErrBadDelta) || d != nil {
				t.Fatalf("got %v, %v", d, err)
			}
			return
		}
		names := map[string]bool{}
		for _, part := range [][]string{d.Deletes, fieldNames(d.Updates), fieldNames(d.Inserts)} {
			for _, name := range part {
				if names[name] {
					t.Fatalf("field %q twice", name)
				}
				names[name] = true
			}
		}
	})
}

func fieldNames(fields []update.Field) (names []string) {
	for _, f := range fields {
		names = append(names, f.Name)
	}
	return names
}
