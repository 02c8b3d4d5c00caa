package serverupdate_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/serverupdate"
	"github.com/oplogrep/replicator/oplog/update"
)

// TestLogLeadsToDocument runs random modifiers on random documents: what they log,
// in either form, makes the same document of the same document by the rules for
// oplog entries, and doing it twice is not an error.
func TestLogLeadsToDocument(t *testing.T) {
	logged := 0
	rapid.Check(t, func(t *rapid.T) {
		doc := marshal(t, append(bson.D{{Key: "_id", Value: 1}}, drawFields(t, 3)...))
		u := drawModifiers(t)
		options := serverupdate.Options{Match: matchFields}
		results := make([]serverupdate.Result, 2)
		for i, form := range []serverupdate.LogForm{serverupdate.LogDelta, serverupdate.LogModifiers} {
			options.Log = form
			s, err := serverupdate.Compile(bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: u}, options)
			if err != nil {
				return // paths that conflict
			}
			before := bytes.Clone(doc)
			if results[i], err = s.Apply(doc, serverupdate.NoMatch); err != nil {
				return // a path that cannot be
			}
			if !bytes.Equal(before, doc) {
				t.Fatal("the stored document was changed")
			}
		}
		r := results[0]
		if !bytes.Equal(r.Doc, results[1].Doc) || r.NoOp != results[1].NoOp {
			t.Fatalf("the form of the log changes the document: %s and %s", r.Doc, results[1].Doc)
		}
		if r.NoOp {
			if !bytes.Equal(r.Doc, doc) {
				t.Fatalf("no-op, but %s became %s", doc, r.Doc)
			}
			return
		}
		logged++
		delta := marshal(t, bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: r.Delta}})
		for _, o := range []bson.Raw{delta, results[1].Modifiers} {
			got, err := update.Apply(doc, o)
			if err != nil || !bytes.Equal(got, r.Doc) {
				t.Fatalf("%s on %s gives %s, error %v; its log %s gives\n%s", u, doc, r.Doc, err, o, got)
			}
			again, err := update.Apply(got, o)
			if err != nil || !bytes.Equal(again, r.Doc) {
				t.Fatalf("the log %s again gives %s, error %v, want %s", o, again, err, r.Doc)
			}
		}
	})
	if logged == 0 {
		t.Error("nothing was ever logged")
	}
}

// matchFields knows the conditions that are drawn: fields with values.
func matchFields(filter bson.RawValue) (serverupdate.Matcher, error) {
	return func(doc bson.RawValue) (bool, error) {
		for it := rawbson.NewIter(filter.Value); it.Next(); {
			e, ok := rawbson.Lookup(doc.Value, it.Name())
			if !ok || !e.Raw().Equal(it.Raw()) {
				return false, nil
			}
		}
		return true, nil
	}, nil
}

func marshal(t *rapid.T, v any) bson.Raw {
	t.Helper()
	raw, err := bson.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func drawFields(t *rapid.T, depth int) bson.D {
	names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "0", "1"}), 0, 4, rapid.ID[string]).Draw(t, "names")
	d := bson.D{}
	for _, name := range names {
		d = append(d, bson.E{Key: name, Value: drawValue(t, depth-1)})
	}
	return d
}

func drawValue(t *rapid.T, depth int) any {
	kind := rapid.IntRange(0, 5).Draw(t, "kind")
	switch {
	case kind < 2 && depth > 0:
		return drawFields(t, depth)
	case kind < 4 && depth > 0:
		a := bson.A{}
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			a = append(a, drawValue(t, depth-1))
		}
		return a
	case kind == 4:
		return bson.Null{}
	default:
		return rapid.Int32Range(0, 3).Draw(t, "int")
	}
}

func drawModifiers(t *rapid.T) bson.Raw {
	name := rapid.SampledFrom([]string{"a", "b", "c", "0", "1", "3", "$[]"})
	path := func() string {
		first := rapid.SampledFrom([]string{"a", "b", "c", "new"}).Draw(t, "path")
		return strings.Join(append([]string{first}, rapid.SliceOfN(name, 0, 3).Draw(t, "parts")...), ".")
	}
	u := bson.D{}
	for i := range rapid.IntRange(1, 4).Draw(t, "operators") {
		op := rapid.SampledFrom([]string{
			"$set", "$unset", "$push", "$push each", "$addToSet", "$pop", "$pull", "$pullAll", "$inc", "$mul", "$min", "$max", "$rename",
		}).Draw(t, fmt.Sprint("operator ", i))
		var arg any
		switch op {
		case "$push each":
			op = "$push"
			arg = bson.D{
				{Key: "$each", Value: bson.A{drawValue(t, 1), drawValue(t, 1)}},
				{Key: "$position", Value: rapid.IntRange(-3, 4).Draw(t, "position")},
				{Key: "$slice", Value: rapid.IntRange(-4, 4).Draw(t, "slice")},
			}
		case "$pop":
			arg = 1
		case "$pullAll":
			arg = bson.A{drawValue(t, 0), drawValue(t, 1)}
		case "$inc", "$mul":
			arg = rapid.Int32Range(0, 2).Draw(t, "factor")
		case "$rename":
			arg = path()
		default:
			arg = drawValue(t, 2)
		}
		u = append(u, bson.E{Key: op, Value: bson.D{{Key: path(), Value: arg}}})
	}
	return marshal(t, u)
}
