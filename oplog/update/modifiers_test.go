package update_test

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog/update"
)

func TestModifiers(t *testing.T) {
	for _, c := range []struct{ name, pre, o, post string }{
		{"set in place", `{"a": 1, "b": 2}`, `{"$set": {"a": "A"}}`, `{"a": "A", "b": 2}`},
		{"unset", `{"a": 1, "b": 2}`, `{"$unset": {"a": true}}`, `{"b": 2}`},
		{"unset what is missing", `{"a": 1}`, `{"$unset": {"b": true, "c.d": true, "e.0.f": true}}`, `{"a": 1}`},
		{"unset inside what is no object", `{"a": 1}`, `{"$unset": {"a.b": true}}`, `{"a": 1}`},
		{"new fields by name", `{"m": 0}`, `{"$set": {"z": 1, "m": 2, "a": 3, "B": 4}}`, `{"m": 2, "B": 4, "a": 3, "z": 1}`},
		{"new fields by number", `{}`, `{"$set": {"10": 1, "9": 2, "a": 3, "1": 4, "0": 5}}`, `{"0": 5, "1": 4, "9": 2, "10": 1, "a": 3}`},
		{"padded numbers are names", `{}`, `{"$set": {"1": 1, "01": 2, "0": 3, "00": 4}}`, `{"0": 3, "00": 4, "01": 2, "1": 1}`},
		{"both operators", `{"a": 1, "b": {"c": 1, "d": 2}}`, `{"$v": 1, "$unset": {"b.c": true}, "$set": {"b.e": 3, "a": 2}}`, `{"a": 2, "b": {"d": 2, "e": 3}}`},
		{"parents are created", `{"a": 1}`, `{"$set": {"b.c.0.d": 1, "b.c.1": 2, "b.a": 3}}`, `{"a": 1, "b": {"a": 3, "c": {"0": {"d": 1}, "1": 2}}}`},
		{"unset creates no parents", `{}`, `{"$set": {"a.b": 1}, "$unset": {"a.c": true, "d.e": true}}`, `{"a": {"b": 1}}`},
		{"array element", `{"a": [1, {"b": 2}, [3]]}`, `{"$set": {"a.0": "x", "a.1.b": "y", "a.2.0": "z", "a.1.c": 0}}`, `{"a": ["x", {"b": "y", "c": 0}, ["z"]]}`},
		{"number in an object", `{"a": {"0": 1}}`, `{"$set": {"a.0": 2, "a.1": 3}}`, `{"a": {"0": 2, "1": 3}}`},
		{"array append", `{"a": [1]}`, `{"$set": {"a.1": 2, "a.3": 4, "a.10": {"x": 1}}}`, `{"a": [1, 2, null, 4, null, null, null, null, null, null, {"x": 1}]}`},
		{"array append inside", `{"a": []}`, `{"$set": {"a.2.b": 1, "a.2.c": 2}}`, `{"a": [null, null, {"b": 1, "c": 2}]}`},
		{"array unset", `{"a": [1, 2, {"b": 3}]}`, `{"$unset": {"a.1": true, "a.2.b": true, "a.7": true, "a.8.b": true}}`, `{"a": [1, null, {}]}`},
		{"name in an array", `{"a": [1]}`, `{"$set": {"a.b": 1, "a.-1": 2, "a.0": 3, "a.99999999999999999999": 4}, "$unset": {"a.c": true}}`, `{"a": [3]}`},
		{"zeros before an index", `{"a": [0, 1, 2]}`, `{"$set": {"a.002": "c", "a.00": "a", "a.1": "b"}}`, `{"a": ["a", "b", "c"]}`},
		{"zeros before an index beyond the end", `{"a": [0]}`, `{"$set": {"a.5": "b", "a.007": "a"}}`, `{"a": [0, null, null, null, null, "b", null, "a"]}`},
		{"inside what is padded by then", `{"a": [0]}`, `{"$set": {"a.2.x": 1, "a.04": "a", "a.5.x": 2}, "$unset": {"a.3": true}}`, `{"a": [0, null, null, null, "a", {"x": 2}]}`},
		{"an $unset pads nothing", `{"a": [0]}`, `{"$set": {"a.2.x": 1}, "$unset": {"a.04": true}}`, `{"a": [0, null, {"x": 1}]}`},
		{"inside what is there by then", `{"a": [{}, {}]}`, `{"$set": {"a.1.x": 1, "a.03": "a"}}`, `{"a": [{}, {"x": 1}, null, "a"]}`},
		{"zeros before a name", `{}`, `{"$set": {"a.0": 1, "a.00": 2}}`, `{"a": {"0": 1, "00": 2}}`},
		{"through a scalar", `{"a": 1, "b": null}`, `{"$set": {"a.b": 1, "b.0": 2, "c": 3}}`, `{"a": 1, "b": null, "c": 3}`},
		{"through a scalar in an array", `{"a": [1]}`, `{"$set": {"a.0.b": 1, "c": 3}}`, `{"a": [1], "c": 3}`},
		{"first of duplicate fields", `{"a": 1, "b": {"c": 1}, "a": 2, "b": {"c": 2}, "d": 1, "d": 2}`, `{"$set": {"a": 3, "b.c": 3}, "$unset": {"d": true}}`, `{"a": 3, "b": {"c": 3}, "a": 2, "b": {"c": 2}, "d": 2}`},
		{"types", `{"a": {"$numberLong": "1"}}`, `{"$set": {"a": {"$numberDecimal": "1.0"}, "b": {"$undefined": true}}}`, `{"a": {"$numberDecimal": "1.0"}, "b": {"$undefined": true}}`},
		{"dollar names", `{"a": {"$x": 1}}`, `{"$set": {"a.$x": 2, "$y": 3, "a.$id": 4}}`, `{"a": {"$x": 2, "$id": 4}, "$y": 3}`},
		{"empty operators", `{"a": 1}`, `{"$set": {}, "$unset": {}}`, `{"a": 1}`},
		{"same _id", `{"_id": 1, "a": 1}`, `{"$set": {"_id": 1, "a": 2}}`, `{"_id": 1, "a": 2}`},
		{"_id where there is none", `{"a": 1}`, `{"$set": {"_id": 1}}`, `{"_id": 1, "a": 1}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := update.Apply(parse(t, c.pre), parse(t, c.o))
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, parse(t, c.post))
		})
	}
}

func TestModifiersRefuse(t *testing.T) {
	deep := `{"$set": {"` + strings.Repeat("a.", rawbson.MaxDepth) + `a": 1}}`
	deepValue := `{"$set": {"` + strings.Repeat("a.", rawbson.MaxDepth-3) + `a": {"b": {"$code": "x", "$scope": {"c": []}}}}}`
	for _, c := range []struct {
		name, pre, o string
		want         error
	}{
		{"nothing", `{}`, `{}`, update.ErrBadModifiers},
		{"version only", `{}`, `{"$v": 1}`, update.ErrBadModifiers},
		{"version twice", `{}`, `{"$v": 1, "$v": 1, "$set": {"a": 1}}`, update.ErrBadModifiers},
		{"unknown operator", `{}`, `{"$set": {"a": 1}, "$inc": {"b": 1}}`, update.ErrBadModifiers},
		{"no operator", `{}`, `{"a": 1}`, update.ErrBadModifiers},
		{"operator twice", `{}`, `{"$set": {"a": 1}, "$set": {"b": 1}}`, update.ErrBadModifiers},
		{"not a document", `{}`, `{"$set": [1]}`, update.ErrBadModifiers},
		{"same path", `{}`, `{"$set": {"a": 1, "a": 2}}`, update.ErrBadModifiers},
		{"same path in both", `{}`, `{"$set": {"a": 1}, "$unset": {"a": true}}`, update.ErrBadModifiers},
		{"path through another", `{}`, `{"$set": {"a": 1, "a.b": 2}}`, update.ErrBadModifiers},
		{"path through another, other way", `{}`, `{"$set": {"a.b": 1, "a": 2}}`, update.ErrBadModifiers},
		{"empty path", `{}`, `{"$set": {"": 1}}`, update.ErrBadModifiers},
		{"empty first part", `{}`, `{"$set": {".a": 1}}`, update.ErrBadModifiers},
		{"empty last part", `{}`, `{"$set": {"a.": 1}}`, update.ErrBadModifiers},
		{"empty part", `{}`, `{"$set": {"a..b": 1}}`, update.ErrBadModifiers},
		{"positional", `{}`, `{"$set": {"a.$.b": 1}}`, update.ErrBadModifiers},
		{"filtered positional", `{}`, `{"$set": {"a.$[x].b": 1}}`, update.ErrBadModifiers},
		{"too deep", `{}`, deep, update.ErrBadModifiers},
		{"value too deep", `{}`, deepValue, update.ErrBadModifiers},
		{"index written in two ways", `{"a": [1]}`, `{"$set": {"a.0": 1, "a.00": 2}}`, update.ErrBadModifiers},
		{"index written in two ways inside", `{"b": [{"a": [[1]]}]}`, `{"$set": {"b.0.a.0.0": 1, "b.0.a.0.00": 2}}`, update.ErrBadModifiers},
		{"index beyond the end written in two ways", `{"a": [1]}`, `{"$set": {"a.9": 1, "a.007": 1, "a.8": 1, "a.09": 2}}`, update.ErrBadModifiers},
		{"too much padding, with zeros", `{"a": [1]}`, `{"$set": {"a.02000000": 1, "a.1000000": 1}}`, update.ErrTooLarge},
		{"changes _id", `{"_id": 1}`, `{"$set": {"_id": 2}}`, update.ErrIDChanged},
		{"removes _id", `{"_id": 1}`, `{"$unset": {"_id": true}}`, update.ErrIDChanged},
		{"changes inside _id", `{"_id": {"a": 1}}`, `{"$set": {"_id.a": 1}}`, update.ErrIDChanged},
		{"too much padding", `{"a": [1]}`, `{"$set": {"a.1500002": 1}}`, update.ErrTooLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := update.Apply(parse(t, c.pre), parse(t, c.o))
			if got != nil || !errors.Is(err, c.want) || err.Error() == "" {
				t.Fatalf("got %v, %v", got, err)
			}
		})
	}
	got, err := update.Apply(parse(t, `{"a": [1]}`), parse(t, `{"$set": {"a.1500001": 1}}`))
	if err != nil || len(got) < 3*update.MaxPadding {
		t.Errorf("as much padding as may be: got %d bytes, %v", len(got), err)
	}
}

// The order in which many paths are written changes neither the result nor the
// time, which is a few times that of a delta that inserts the same fields.
// Inserting each path into a sorted list would take more than fifty times as long.
func TestModifiersTakeAnyOrder(t *testing.T) {
	const fields = 100_000
	set := make(bson.D, fields)
	for i := range set {
		set[i] = bson.E{Key: "k" + strconv.Itoa(fields+i), Value: int32(i)}
	}
	pre := parse(t, `{"_id": 1}`)
	apply := func(o bson.D) (post bson.Raw, took time.Duration) {
		raw, err := bson.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			start := time.Now()
			if post, err = update.Apply(pre, raw); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(start); took == 0 || d < took {
				took = d
			}
		}
		return post, took
	}
	want, delta := apply(bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{{Key: "i", Value: set}}}})
	for _, order := range []string{"ascending", "descending"} {
		got, took := apply(bson.D{{Key: "$set", Value: set}})
		if !bytes.Equal(got, want) {
			t.Errorf("%s: another document than that of the delta", order)
		}
		if took > 30*delta {
			t.Errorf("%s: %s, the delta takes %s", order, took, delta)
		}
		slices.Reverse(set)
	}
}

func TestModifiersRefuseConflictsOfMany(t *testing.T) {
	paths := make([]string, 50)
	for i := range paths {
		paths[i] = "k" + strconv.Itoa(i) + ".a"
	}
	for _, path := range []string{"k3", "k3.a", "k3.a.b", "k49", "k49.a", "k49.a.b"} {
		o := parse(t, `{"$set": {"`+strings.Join(paths, `": 1, "`)+`": 1}, "$unset": {"`+path+`": true}}`)
		_, err := update.Apply(parse(t, `{}`), o)
		if fault, ok := errors.AsType[*update.ModifierError](err); !ok || fault.Path != path || fault.Operator != "$unset" {
			t.Errorf("%s: got %v", path, err)
		}
	}
}

func TestModifiersRefuseBadBSON(t *testing.T) {
	bad := parse(t, `{"$set": {"a": "x"}}`)
	bad[len(bad)-3] = 1
	if _, err := update.Apply(parse(t, `{}`), bad); !errors.Is(err, update.ErrBadModifiers) {
		t.Errorf("got %v", err)
	} else if _, ok := errors.AsType[*rawbson.CorruptError](err); !ok {
		t.Errorf("got %v", err)
	}
	for _, c := range []struct{ doc, path string }{
		{`{"a": "x"}`, "b"}, {`{"a": {"b": "x"}}`, "a.c"}, {`{"a": ["x"]}`, "a.1"}, {`{"a": [{"b": "x"}]}`, "a.0.c"},
	} {
		// The document ends with a string without its terminator.
		doc := parse(t, c.doc)
		for i := len(doc) - 1; ; i-- {
			if doc[i] == 'x' {
				doc[i+1] = 1
				break
			}
		}
		got, err := update.Apply(doc, parse(t, `{"$set": {"`+c.path+`": 1}}`))
		if _, ok := errors.AsType[*rawbson.CorruptError](err); !ok || got != nil {
			t.Errorf("%s: got %v", c.doc, err)
		}
	}
}

func TestModifiersFollowTheModel(t *testing.T) {
	names := []string{"a", "b", "c", "0", "1", "2", "10", "é", "A", "-1", "003", "06"}
	part := rapid.SampledFrom(names)
	rapid.Check(t, func(t *rapid.T) {
		doc := bsongen.Document(t)
		if rapid.Bool().Draw(t, "repeat") {
			doc = bsongen.Repeat(t, doc)
		}
		set, unset := bson.D{}, bson.D{}
		var paths []string
		for range rapid.IntRange(1, 6).Draw(t, "modifiers") {
			path := strings.Join(rapid.SliceOfN(part, 1, 4).Draw(t, "path"), ".")
			conflict := false
			for _, p := range paths {
				conflict = conflict || strings.HasPrefix(p+".", path+".") || strings.HasPrefix(path+".", p+".")
			}
			if conflict {
				continue
			}
			paths = append(paths, path)
			if rapid.IntRange(0, 3).Draw(t, "unset") == 0 {
				unset = append(unset, bson.E{Key: path, Value: true})
			} else {
				set = append(set, bson.E{Key: path, Value: bsongen.Value(t, 3)})
			}
		}
		o, err := bson.Marshal(bson.D{{Key: "$set", Value: set}, {Key: "$unset", Value: unset}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := update.Apply(doc, o)
		if err != nil {
			t.Fatalf("%v: %s", err, bson.Raw(o))
		}
		model := modelModifiers(docTree(doc), docTree(o))
		if want := model.bytes(); string(got) != string(want) {
			t.Fatalf("doc  %s\no    %s\ngot  %s\nwant %s", doc, bson.Raw(o), got, bson.Raw(want))
		}
	})
}
