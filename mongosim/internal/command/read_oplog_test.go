package command

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

func TestOplogReads(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	m.numbered(t, "c", 0, 3000)
	var stamps []bson.Timestamp
	_ = m.store.Read(func(r *storage.Reader) error {
		for e := range r.Oplog().From(bson.Timestamp{}) {
			stamps = append(stamps, e.At.TS)
		}
		return nil
	})
	// read returns the timestamps of a find to its end.
	read := func(cmd bson.D) []bson.Timestamp {
		t.Helper()
		reply := m.must(t, "local", append(obj("find", "oplog.rs", "projection", obj("ts", 1)), cmd...))
		out := []bson.Timestamp{}
		for {
			docs, id := docsOf(t, reply)
			for _, text := range docs {
				var d struct{ TS bson.Timestamp }
				if err := bson.UnmarshalExtJSON([]byte(text), false, &d); err != nil {
					t.Fatal(err)
				}
				out = append(out, d.TS)
			}
			if id == 0 {
				return out
			}
			reply = m.must(t, "local", obj("getMore", id, "collection", "oplog.rs", "batchSize", 1000))
		}
	}
	backward := slices.Clone(stamps)
	slices.Reverse(backward)
	last := len(stamps) - 1
	for _, c := range []struct {
		name string
		find bson.D
		want []bson.Timestamp
	}{
		{"all", obj(), stamps},
		{"from", obj("filter", obj("ts", obj("$gte", stamps[1700]))), stamps[1700:]},
		{"from, backward", obj("filter", obj("ts", obj("$gte", stamps[1700])), "sort", obj("$natural", -1)), backward[:last-1699]},
		{"from, resumed before it", obj("filter", obj("ts", obj("$gte", stamps[1700])), "hint", obj("$natural", 1), "$_requestResumeToken", true,
			"$_resumeAfter", obj("$recordId", int64(stamps[10].T)<<32|int64(stamps[10].I))), stamps[1700:]},
		{"from, resumed behind it", obj("filter", obj("ts", obj("$gte", stamps[10])), "hint", obj("$natural", 1), "$_requestResumeToken", true,
			"$_resumeAfter", obj("$recordId", int64(stamps[1700].T)<<32|int64(stamps[1700].I))), stamps[1701:]},
		{"from the beginning", obj("filter", obj("ts", obj("$gte", bson.Timestamp{}))), stamps},
		{"from, and no more", obj("filter", obj("ts", obj("$gte", stamps[1700], "$lt", stamps[1702]))), stamps[1700:1702]},
		{"from, and something else", obj("filter", obj("ts", obj("$gte", stamps[1700]), "op", "none")), []bson.Timestamp{}},
		{"from what is no timestamp", obj("filter", obj("ts", obj("$gte", 1))), []bson.Timestamp{}},
		{"after", obj("filter", obj("ts", obj("$gt", stamps[1700]))), stamps[1701:]},
		{"between", obj("filter", obj("ts", obj("$gt", stamps[10], "$lte", stamps[20]))), stamps[11:21]},
		{"one", obj("filter", obj("ts", stamps[10])), stamps[10:11]},
		{"two", obj("filter", obj("ts", obj("$in", bson.A{stamps[10], stamps[12]}))), []bson.Timestamp{stamps[10], stamps[12]}},
		{"backward", obj("sort", obj("$natural", -1)), backward},
		{"the newest", obj("sort", obj("$natural", -1), "limit", 1), backward[:1]},
		{"backward by hint", obj("hint", obj("$natural", -1), "limit", 2), backward[:2]},
		{"backward before", obj("filter", obj("ts", obj("$lte", stamps[5])), "sort", obj("$natural", -1)), backward[last-5:]},
		{"the oldest", obj("sort", obj("$natural", 1), "limit", 1), stamps[:1]},
	} {
		if diff := cmp.Diff(c.want, read(c.find)); diff != "" {
			t.Errorf("%s: %.600s", c.name, diff)
		}
	}

	m.node.hold()
	m.numbered(t, "c", 3000, 3010)
	for _, find := range []bson.D{obj("readConcern", obj("level", "majority")), obj("readConcern", obj("level", "majority"), "sort", obj("$natural", -1))} {
		if got := read(find); len(got) != len(stamps) {
			t.Errorf("%v: %d entries; want the %d that are committed", find, len(got), len(stamps))
		}
	}
	if n := m.must(t, "local", obj("count", "oplog.rs", "query", obj("op", "i", "o._id", obj("$gte", 3000)))).Lookup("n").AsInt64(); n != 10 {
		t.Errorf("counted %d; want 10", n)
	}
	reply := m.must(t, "local", obj("aggregate", "oplog.rs", "cursor", obj(), "pipeline", bson.A{
		obj("$match", obj("ts", obj("$gte", stamps[1700]), "op", "i")), obj("$count", "n"),
	}))
	if n := reply.Lookup("cursor", "firstBatch", "0", "n").AsInt64(); n != int64(len(stamps)-1700+10) {
		t.Errorf("aggregated %s; want %d", reply, len(stamps)-1700+10)
	}
	m.refused(t, "local", obj("find", "oplog.rs", "term", int64(9)), 135)
	if diff := cmp.Diff([]int64{9}, m.node.saw); diff != "" {
		t.Error(diff)
	}
	stats := m.must(t, "local", obj("collStats", "oplog.rs"))
	if !stats.Lookup("capped").Boolean() || stats.Lookup("count").AsInt64() != int64(len(stamps)+10) || stats.Lookup("maxSize").AsInt64() != 256<<20 {
		t.Errorf("collStats: %s", stats)
	}
}

func TestOplogRollsOver(t *testing.T) {
	m := newReadMember(t, storage.Options{OplogBytes: 20000})
	m.numbered(t, "c", 0, 10)
	_, id := docsOf(t, m.must(t, "local", obj("find", "oplog.rs", "tailable", true, "awaitData", true, "batchSize", 3)))
	m.numbered(t, "c", 10, 1000)
	const lost = "Executor error during getMore :: caused by :: CollectionScan died due to position in capped collection being deleted. Last seen record id: RecordId("
	if got := m.refused(t, "local", more(id), 136); !strings.HasPrefix(got, lost) {
		t.Error(got)
	}
}

func TestResumeToken(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	m.numbered(t, "c", 0, 10)
	natural := obj("find", "c", "hint", obj("$natural", 1), "$_requestResumeToken", true, "batchSize", 4)
	reply := m.must(t, "db", natural)
	want := []string{"firstBatch", "postBatchResumeToken", "id", "ns"}
	elems, _ := reply.Lookup("cursor").Document().Elements()
	var names []string
	for _, e := range elems {
		names = append(names, e.Key())
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	token := reply.Lookup("cursor", "postBatchResumeToken").Document()
	again := append(slices.Clone(natural[:3]), bson.E{Key: "$_resumeAfter", Value: token})
	if diff := cmp.Diff(span(4, 10, 1), m.ids(t, again)); diff != "" {
		t.Error(diff)
	}
	m.must(t, "db", obj("delete", "c", "deletes", bson.A{obj("q", obj("_id", 3), "limit", 1)}))
	m.refused(t, "db", again, 211)
	m.refused(t, "db", obj("find", "c", "$_requestResumeToken", true), 2)
	if reply := m.must(t, "db", append(slices.Clone(natural[:3]), bson.E{Key: "batchSize", Value: 0})); reply.Lookup("cursor", "postBatchResumeToken", "$recordId").Type != bson.TypeNull {
		t.Errorf("%s; want a token of null", reply)
	}
}
