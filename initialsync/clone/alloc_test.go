package clone

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/idrange"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/oplog"
)

// numberedReply is a document of some 200 bytes as a reply has it, with its record
// id, and room for as many copies of it.
func numberedReply(t testing.TB, copies int) (one bson.Raw, docs []bson.Raw) {
	doc := must.Marshal(t, bson.D{
		{Key: "_id", Value: bson.ObjectID{1, 2, 3}},
		{Key: "n", Value: 42},
		{Key: "at", Value: bson.DateTime(1_700_000_000_000)},
		{Key: "tags", Value: bson.A{"a", "b"}},
		{Key: "pad", Value: strings.Repeat("x", 100)},
	})
	one = withElement(doc, bsoncore.AppendInt64Element(nil, recordField, 7))
	for range copies {
		docs = append(docs, make(bson.Raw, len(one)))
	}
	return one, docs
}

// inspected are copies of a document, as a page has them.
func inspected(t testing.TB, copies int) []*document {
	one, raws := numberedReply(t, copies)
	docs := make([]*document, copies)
	for i, raw := range raws {
		copy(raw, one)
		d, err := inspect(raw, true)
		if err != nil {
			t.Fatal(err)
		}
		docs[i] = &d
	}
	return docs
}

// TestAllocs: the allocations for a document from a reply to a command. A
// command of many has a list of them, which grows by doubling, and its own fields.
func TestAllocs(t *testing.T) {
	race.Skip(t, "the race detector makes allocations of its own")
	const many = 1000
	one, raws := numberedReply(t, 1)
	docs := inspected(t, many)
	const ns = oplog.Namespace("shop.orders")
	budget := func(what string, want float64, run func()) {
		t.Helper()
		if n := testing.AllocsPerRun(50, run); n > want {
			t.Errorf("%s: %g allocations, at most %g are allowed", what, n, want)
		}
	}
	budget("inspect a document", 0, func() {
		copy(raws[0], one)
		if _, err := inspect(raws[0], true); err != nil {
			t.Fatal(err)
		}
	})
	budget("the _id of a document", 0, func() {
		if id := docs[0].id(); id.Type != bson.TypeObjectID {
			t.Fatal(id)
		}
	})
	budget("an insert of 1000 documents", 24, func() { commands(ns, docs, false, false) })
	budget("1000 upserts", many+32, func() { commands(ns, docs, true, false) })
	reply := must.Marshal(t, bson.D{{Key: "n", Value: int32(many)}, {Key: "ok", Value: 1.0}})
	list := commands(ns, docs, false, false)
	budget("the reply to a command", 0, func() {
		if refused, err := refusals(reply); err != nil || len(refused) > 0 {
			t.Fatal(refused, err)
		}
		if err := wrote(reply, &list[0], ns); err != nil {
			t.Fatal(err)
		}
	})
	p, _ := idrange.Of(bson.TypeObjectID)
	filter := make([]byte, 0, 1024)
	budget("the filter of a piece", 4, func() { filter = p.AppendFilter(filter[:0], bson.RawValue{}) })
	last := docs[0].id()
	budget("the filter of the rest of a piece", 0, func() { filter = p.AppendFilter(filter[:0], last) })
	at := place{order: natural, record: 8, anchors: anchors{1, 2}}
	budget("a place for the metadata", 11, func() { at.encode() })
}

// BenchmarkInspect is per document.
func BenchmarkInspect(b *testing.B) {
	one, raws := numberedReply(b, 1)
	b.SetBytes(int64(len(one)))
	b.ReportAllocs()
	for b.Loop() {
		copy(raws[0], one)
		if _, err := inspect(raws[0], true); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCommands is per flush of 1000 documents.
func BenchmarkCommands(b *testing.B) {
	docs := inspected(b, 1000)
	for name, upsert := range map[string]bool{"inserts": false, "upserts": true} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(docs) * len(docs[0].raw)))
			b.ReportAllocs()
			for b.Loop() {
				commands("shop.orders", docs, upsert, false)
			}
		})
	}
}

// BenchmarkFilter is per command that opens a cursor.
func BenchmarkFilter(b *testing.B) {
	pieces := idrange.All()
	dst := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		for i := range pieces {
			dst = pieces[i].AppendFilter(dst[:0], bson.RawValue{})
		}
	}
}
