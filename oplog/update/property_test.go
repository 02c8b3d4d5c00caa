package update_test

import (
	"bytes"
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog/update"
)

// entry returns the o field that a server logs for a pipeline that turned pre into
// made.
func entry(tb interface{ Fatal(...any) }, pre, made bson.Raw) (o bson.Raw, isDelta bool) {
	whole := made
	if _, ok := rawbson.Lookup(made, "_id"); !ok {
		whole = stored(pre, made)
	}
	diff, ok := update.Diff(pre, made, update.EnvelopePadding)
	if !ok {
		return whole, false
	}
	if len(diff) == rawbson.MinSize {
		if !bytes.Equal(pre, made) {
			tb.Fatal("an empty diff of documents that differ")
		}
		// Nothing to log; a replacement by an equal document is equivalent.
		return whole, false
	}
	o, err := bson.Marshal(bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: diff}})
	if err != nil {
		tb.Fatal(err)
	}
	return o, true
}

// stored computes the document that a server stores for an update's result, the
// simple way: nothing new if the two are equal, otherwise _id first, the document's
// own if the result has none.
func stored(pre, made bson.Raw) bson.Raw {
	if bytes.Equal(pre, made) {
		return pre
	}
	out := tree{typ: bson.TypeEmbeddedDocument}
	before, after := docTree(pre), docTree(made)
	if id := after.get("_id"); id != nil {
		out.fields = append(out.fields, treeField{"_id", *id})
	} else if id := before.get("_id"); id != nil {
		out.fields = append(out.fields, treeField{"_id", *id})
	}
	first := true
	for _, f := range after.fields {
		if f.name != "_id" || !first {
			out.fields = append(out.fields, f)
		} else {
			first = false
		}
	}
	return out.bytes()
}

// large pads a document so that deltas of it pay off.
func large(doc bson.Raw) bson.Raw {
	out := append([]byte{}, doc[:len(doc)-1]...)
	out = append(out, parsePad...)
	out = append(out, 0)
	out[0], out[1] = byte(len(out)), byte(len(out)>>8)
	out[2], out[3] = byte(len(out)>>16), 0
	return out
}

var parsePad = func() []byte {
	raw, _ := bson.Marshal(bson.D{{Key: "large", Value: bytes.Repeat([]byte("p"), 5000)}})
	return raw[4 : len(raw)-1]
}()

func TestDiffApplied(t *testing.T) {
	deltas, replacements, moved := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		pre := bsongen.Document(t)
		if rapid.Bool().Draw(t, "large") {
			pre = large(pre)
		}
		made := bsongen.Made(t, pre)
		post := stored(pre, made)
		o, isDelta := entry(t, pre, made)
		if isDelta {
			deltas++
			d, err := update.ParseDelta(bson.Raw(o.Lookup("diff").Value))
			if err != nil {
				t.Fatalf("%v: %s", err, o)
			}
			if got, err := d.AppendApply(nil, pre); err != nil || !bytes.Equal(got, made) {
				t.Fatalf("%v: pre %s o %s\ngot  %s\nwant %s", err, pre, o, bson.Raw(got), made)
			}
			if err := d.CheckID(post.Lookup("_id")); err != nil {
				t.Fatalf("%v: %s", err, o)
			}
			if place := o.Lookup("diff", "i", "_id"); place.Type != 0 {
				moved++
			}
		} else {
			replacements++
		}
		got, err := update.Apply(pre, o)
		if err != nil {
			t.Fatalf("%v: pre %s o %s", err, pre, o)
		}
		if !bytes.Equal(got, post) {
			t.Fatalf("pre  %s\no    %s\ngot  %s\nwant %s", pre, o, got, post)
		}
		again, err := update.Apply(got, o)
		if err != nil || !bytes.Equal(again, post) {
			t.Fatalf("applied again: %v\no    %s\ngot  %s\nwant %s", err, o, again, post)
		}
	})
	if deltas < 10 || replacements < 10 || moved == 0 {
		t.Errorf("%d deltas, %d with _id, and %d replacements", deltas, moved, replacements)
	}
}

// The method of the server's own idempotency tests: apply a sequence of updates,
// then to the result any prefix of it, the whole sequence, and any suffix. The
// document must be the same each time.
func TestSequencesConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := bsongen.Document(t)
		if rapid.Bool().Draw(t, "large") {
			first = large(first)
		}
		var entries []bson.Raw
		doc := first
		for range rapid.IntRange(1, 8).Draw(t, "updates") {
			made := bsongen.Made(t, doc)
			o, _ := entry(t, doc, made)
			entries = append(entries, o)
			doc = stored(doc, made)
		}
		apply := func(doc bson.Raw, entries []bson.Raw) bson.Raw {
			for _, o := range entries {
				var err error
				if doc, err = update.Apply(doc, o); err != nil {
					t.Fatal(err)
				}
			}
			return doc
		}
		want := apply(first, entries)
		if !bytes.Equal(want, doc) {
			t.Fatalf("got  %s\nwant %s", want, doc)
		}
		for i := range entries {
			got := apply(want, entries[:i+1])
			for _, part := range [][]bson.Raw{entries, entries[i:]} {
				got = apply(got, part)
				if !bytes.Equal(got, want) {
					t.Fatalf("prefix or suffix at %d of %s\ngot  %s\nwant %s", i, entries, got, want)
				}
			}
		}
	})
}

func TestDeltasFollowTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		doc := bsongen.Document(t)
		if rapid.Bool().Draw(t, "repeat") {
			doc = bsongen.Repeat(t, doc)
		}
		diff := bsongen.Delta(t)
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			diff = bsongen.BinaryDelta(t)
		case 1, 2:
			diff = bsongen.IDDelta(t, doc.Lookup("_id"))
			doc = bsongen.MoveID(t, doc)
		}
		got, err := update.ApplyDelta(doc, diff)
		if errors.Is(err, update.ErrBinaryDiff) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		model := modelDelta(docTree(doc), docTree(diff))
		if want := stored(doc, model.bytes()); !bytes.Equal(got, want) {
			t.Fatalf("doc  %s\ndiff %s\ngot  %s\nwant %s", doc, diff, got, want)
		}
		if err := rawbson.Validate(got); err != nil {
			t.Fatal(err)
		}
	})
}

// Wherever _id is, a delta, the entry with it and its compiled form give the same
// document, with _id first if anything has changed.
func TestDeltasPutIDFirst(t *testing.T) {
	moved := 0
	rapid.Check(t, func(t *rapid.T) {
		pre := bsongen.MoveID(t, bsongen.Document(t))
		diff := bsongen.Delta(t)
		if rapid.Bool().Draw(t, "of _id") {
			diff = bsongen.IDDelta(t, pre.Lookup("_id"))
		}
		got, err := update.ApplyDelta(pre, diff)
		if err != nil {
			t.Fatal(err)
		}
		o, err := bson.Marshal(bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: diff}})
		if err != nil {
			t.Fatal(err)
		}
		if whole, err := update.Apply(pre, o); err != nil || !bytes.Equal(whole, got) {
			t.Fatalf("the entry gives %s, %v\nthe delta %s", whole, err, got)
		}
		if first, err := got.IndexErr(0); !bytes.Equal(got, pre) && (err != nil || first.Key() != "_id") {
			t.Fatalf("of %s comes %s", pre, got)
		}
		compiles(t, pre, diff, update.CompileOptions{})
		if before, err := pre.IndexErr(0); err == nil && before.Key() != "_id" && !bytes.Equal(got, pre) {
			moved++
		}
	})
	if moved == 0 {
		t.Error("_id was never moved")
	}
}

func FuzzApply(f *testing.F) {
	docs := []string{
		`{"_id": 1, "a": {"b": [1, {"c": 2}]}, "f": {"$binary": {"base64": "YWJj", "subType": "07"}}}`,
		`{"a": [[], {}], "_id": 1}`,
	}
	updates := []string{
		`{"$v": 2, "diff": {"d": {"x": false}, "u": {"y": 1}, "i": {"z": 1}, "sa": {"sb": {"a": true, "l": 3, "s1": {"u": {"c": 3}}}}}}`,
		`{"$v": 2, "diff": ` + binaryDiff(2) + `}`,
		`{"$v": 2, "diff": {"sa": {"a": true, "u5": 1}}}`,
		`{"$v": 1, "$set": {"a.b.5.c": 1, "a.b.0": 2, "x.y": 3}, "$unset": {"a.b.1.c": true}}`,
		`{"b": 1, "_id": 1}`,
		`{"$v": 2, "diff": {"i": {"new": 0, "_id": 1, "a": 1}}}`,
		`{"$v": 2, "diff": {"d": {"_id": false}, "i": {"b": 1}}}`,
		`{"$v": 2, "diff": {"u": {"_id": 1.0}}}`,
		`{"$v": 2, "diff": {"s_id": {"u": {"a": 1}}}}`,
	}
	for _, doc := range docs {
		for _, o := range updates {
			f.Add([]byte(parse(f, doc)), []byte(parse(f, o)))
		}
	}
	f.Fuzz(func(t *testing.T, doc, o []byte) {
		if _, ok := update.Diff(doc, o, 0); ok && (rawbson.Validate(doc) != nil || rawbson.Validate(o) != nil) {
			t.Fatal("a diff of what is not BSON")
		}
		got, err := update.Apply(doc, o)
		if err != nil {
			if got != nil {
				t.Fatal("a document and an error")
			}
			return
		}
		if rawbson.Validate(doc) == nil {
			if err := rawbson.Validate(got); err != nil {
				t.Fatalf("%v: %x", err, got)
			}
		}
	})
}
