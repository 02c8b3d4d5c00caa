package clone

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/idrange"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// withElement is a document with an element at its end.
func withElement(doc bson.Raw, elem []byte) bson.Raw {
	return closeDocument(slices.Concat([]byte(doc[:len(doc)-1]), elem), 0)
}

// TestInspectCuts: the element that the server appends is cut off, and nothing else.
func TestInspectCuts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		doc := withElement(bsongen.Document(t), bsoncore.AppendInt32Element(nil, "_id", 1))
		n := rapid.Int64Range(1, 1<<62).Draw(t, "record")
		raw := withElement(doc, bsoncore.AppendInt64Element(nil, recordField, n))
		d := must.Get(inspect(raw, true))(t)
		if d.record != n || !bytes.Equal(d.raw, doc) {
			t.Fatalf("record %d of %s, want %d of %s", d.record, d.raw, n, doc)
		}
	})
}

func TestInspectRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		doc      bson.D
		numbered bool
		record   bool // the error is errNoRecord
	}{
		{bson.D{{Key: "a", Value: 1}}, false, false},
		{bson.D{{Key: "_id", Value: 1}}, true, true},
		{bson.D{{Key: "_id", Value: 1}, {Key: recordField, Value: "x"}}, true, true},
		{bson.D{{Key: "_id", Value: 1}, {Key: recordField, Value: int32(1)}}, true, true},
		{bson.D{{Key: "_id", Value: 1}, {Key: recordField, Value: int64(1)}, {Key: "a", Value: 1}}, true, true},
		{bson.D{{Key: recordField, Value: int64(1)}}, true, false},
	} {
		_, err := inspect(must.Marshal(t, c.doc), c.numbered)
		if err == nil || errors.Is(err, errNoRecord) != c.record {
			t.Errorf("%v: error %v", c.doc, err)
		}
	}
	if _, err := inspect(bson.Raw{9, 0, 0, 0, 1, 'a', 0, 0, 0}, false); err == nil {
		t.Error("no BSON")
	}
}

func TestAnchors(t *testing.T) {
	t.Parallel()
	var a anchors
	for i := range int64(1000) {
		was := slices.Clone(a)
		next := a.add(i)
		if !slices.Equal(a, was) {
			t.Fatal("the list before was changed")
		}
		a = next.add(i - 1)
		if len(a) > maxAnchors || !slices.IsSorted(a) || a[len(a)-1] != i {
			t.Fatalf("%v", a)
		}
	}
	if a[0] > 500 || a[len(a)-2] != 998 {
		t.Errorf("%v", a)
	}
}

// FuzzPlaces: a place that is read from the metadata is written back unchanged.
func FuzzPlaces(f *testing.F) {
	s := spec{order: natural, from: 3, to: 9, before: []int64{1, 2}}
	f.Add([]byte(s.encode()))
	s = spec{order: byID, pieces: idrange.Cut([]bson.RawValue{rawID(1), rawID("a")})[1]}
	f.Add([]byte(s.encode()))
	s.pieces = idrange.All()
	f.Add([]byte(s.encode()))
	for _, p := range []place{
		{order: natural, record: 8, anchors: anchors{1, 2}},
		{order: byID, piece: 2, last: rawID("x")},
	} {
		f.Add([]byte(p.encode()))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseSpec(b); err == nil {
			again := must.Get(parseSpec(s.encode()))(t)
			if !bytes.Equal(again.encode(), s.encode()) {
				t.Errorf("%+v became %+v", s, again)
			}
		}
		if p, err := parsePlace(b); err == nil && p.order != "" {
			again := must.Get(parsePlace(p.encode()))(t)
			if !bytes.Equal(again.encode(), p.encode()) {
				t.Errorf("%+v became %+v", p, again)
			}
		}
	})
}
