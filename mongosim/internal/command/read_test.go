package command

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// numbered inserts {_id: i, x: i mod 10} for all i in a range, into the database db.
func (m *readMember) numbered(t testing.TB, coll string, from, to int) {
	t.Helper()
	var docs []any
	for i := from; i < to; i++ {
		docs = append(docs, obj("_id", i, "x", i%10))
	}
	m.insert(t, "db", coll, docs...)
}

// ids reads a cursor of the database db to its end and returns the _ids.
func (m *readMember) ids(t testing.TB, cmd bson.D, extra ...bson.E) []int64 {
	t.Helper()
	reply := m.must(t, "db", append(cmd, extra...))
	var out []int64
	for {
		docs, id := docsOf(t, reply)
		for _, text := range docs {
			var d struct {
				ID int64 `bson:"_id"`
			}
			if err := bson.UnmarshalExtJSON([]byte(text), false, &d); err != nil {
				t.Fatal(err)
			}
			out = append(out, d.ID)
		}
		if id == 0 {
			return out
		}
		_, coll, _ := strings.Cut(reply.Lookup("cursor", "ns").StringValue(), ".")
		reply = m.must(t, "db", append(obj("getMore", id, "collection", coll), extra...))
	}
}

func span(from, to, step int64) []int64 {
	var out []int64
	for i := from; i != to; i += step {
		out = append(out, i)
	}
	return out
}

func TestScanGoesOnWhileOthersWrite(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	m.numbered(t, "c", 0, 3000)
	reply := m.must(t, "db", obj("find", "c", "batchSize", 2))
	_, id := docsOf(t, reply)
	m.must(t, "db", obj("delete", "c", "deletes", bson.A{obj("q", obj("_id", obj("$gte", 1, "$lt", 100)), "limit", 0)}))
	m.numbered(t, "c", 3000, 3100)
	docs, _ := docsOf(t, m.must(t, "db", obj("getMore", id, "collection", "c")))
	if len(docs) != 3000 {
		t.Errorf("%d documents behind the first two; want 3000", len(docs))
	}
}

func TestFindEnds(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	m.numbered(t, "c", 0, 150)
	for _, c := range []struct {
		name string
		find bson.D
		docs int
		open bool
	}{
		{"the default batch", obj("find", "c"), 101, true},
		{"a batch that ends where the collection does", obj("find", "c", "batchSize", 150), 150, true},
		{"a larger batch", obj("find", "c", "batchSize", 151), 150, false},
		{"a limit", obj("find", "c", "limit", 101), 101, false},
		{"no batch", obj("find", "c", "batchSize", 0), 0, true},
		{"one batch", obj("find", "c", "singleBatch", true), 101, false},
		{"one _id", obj("find", "c", "filter", obj("_id", 7), "batchSize", 1), 1, false},
		{"a sorted batch that ends with the result", obj("find", "c", "sort", obj("x", 1), "batchSize", 150), 150, false},
		{"a skip over all", obj("find", "c", "skip", 1000), 0, false},
	} {
		docs, id := docsOf(t, m.must(t, "db", c.find))
		if len(docs) != c.docs || (id != 0) != c.open {
			t.Errorf("%s: %d documents, cursor %d; want %d, open %v", c.name, len(docs), id, c.docs, c.open)
		}
	}
}

func TestBatchBytes(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	big := strings.Repeat("x", 6<<20)
	for i := range 5 {
		m.insert(t, "db", "c", obj("_id", i, "big", big))
	}
	// Of a sorted result it is known that the document put aside is the last.
	docs, id := docsOf(t, m.must(t, "db", obj("find", "c", "sort", obj("big", 1), "limit", 3)))
	if len(docs) != 2 || id == 0 {
		t.Fatalf("%d documents, cursor %d; want 2 and a cursor", len(docs), id)
	}
	if docs, id = docsOf(t, m.must(t, "db", obj("getMore", id, "collection", "c"))); len(docs) != 1 || id != 0 {
		t.Fatalf("%d documents, cursor %d; want the last", len(docs), id)
	}
	docs, id = docsOf(t, m.must(t, "db", obj("find", "c")))
	if len(docs) != 2 || id == 0 {
		t.Fatalf("%d documents, cursor %d; want 2 and a cursor", len(docs), id)
	}
	docs, id = docsOf(t, m.must(t, "db", obj("getMore", id, "collection", "c")))
	if len(docs) != 2 || id == 0 {
		t.Fatalf("%d documents, cursor %d; want 2 and a cursor", len(docs), id)
	}
	if docs, id = docsOf(t, m.must(t, "db", obj("getMore", id, "collection", "c"))); len(docs) != 1 || id != 0 {
		t.Fatalf("%d documents, cursor %d; want the last", len(docs), id)
	}
}

// TestFindAgainstModel compares finds, whatever way they take, with what the
// filter and the sort say of all documents.
func TestFindAgainstModel(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	var all []bson.Raw
	for i := range 1500 {
		raw, _ := bson.Marshal(obj("_id", (i*7)%1500, "x", i%10, "y", bson.A{i % 3, i % 5}))
		all = append(all, raw)
		m.insert(t, "db", "c", bson.Raw(raw))
	}
	rapid.Check(t, func(rt *rapid.T) {
		number := rapid.IntRange(-5, 1600)
		filter := rapid.SampledFrom([]func() bson.D{
			func() bson.D { return bson.D{} },
			func() bson.D { return obj("_id", number.Draw(rt, "id")) },
			func() bson.D { return obj("_id", obj("$in", bson.A{number.Draw(rt, "a"), number.Draw(rt, "b"), 3, 3})) },
			func() bson.D {
				return obj("_id", obj("$gt", number.Draw(rt, "lo"), "$lte", number.Draw(rt, "hi")))
			},
			func() bson.D {
				return obj("x", rapid.IntRange(0, 9).Draw(rt, "x"), "_id", obj("$gte", number.Draw(rt, "lo")))
			},
			func() bson.D { return obj("y", 4) },
		}).Draw(rt, "filter")()
		sort := rapid.SampledFrom([]bson.D{
			obj("_id", 1), obj("_id", -1), obj("_id", -1, "x", 1), obj("x", 1, "_id", -1), obj("y", -1, "_id", 1), obj("$natural", -1),
		}).Draw(rt, "sort")
		skip, limit := rapid.IntRange(0, 30).Draw(rt, "skip"), rapid.IntRange(0, 300).Draw(rt, "limit")
		got := m.ids(t, obj("find", "c", "filter", filter, "sort", sort, "skip", skip, "limit", limit,
			"batchSize", rapid.IntRange(0, 40).Draw(rt, "batchSize")))

		f, _ := bson.Marshal(filter)
		s, _ := bson.Marshal(sort)
		match, err := serverquery.Compile(f, serverquery.Options{})
		if err != nil {
			rt.Fatal(err)
		}
		order, err := serverquery.CompileSort(s, serverquery.Options{})
		if err != nil {
			rt.Fatal(err)
		}
		var docs []bson.Raw
		for _, doc := range all {
			if ok, _ := match.Match(doc); ok {
				docs = append(docs, doc)
			}
		}
		if order.Natural() < 0 {
			slices.Reverse(docs)
		} else if err := order.Docs(docs); err != nil {
			rt.Fatal(err)
		}
		docs = docs[min(skip, len(docs)):]
		if limit > 0 {
			docs = docs[:min(limit, len(docs))]
		}
		var want []int64
		for _, doc := range docs {
			want = append(want, doc.Lookup("_id").AsInt64())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			rt.Fatal(diff)
		}
	})
}

func TestSnapshotReads(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	m.numbered(t, "c", 0, 10)
	snapshot := obj("level", "snapshot")
	reply := m.must(t, "db", obj("find", "c", "batchSize", 2, "readConcern", snapshot))
	_, id := docsOf(t, reply)
	at := reply.Lookup("cursor", "atClusterTime")
	if at.Type != bson.TypeTimestamp {
		t.Fatalf("%s; want atClusterTime", reply)
	}
	m.must(t, "db", obj("delete", "c", "deletes", bson.A{obj("q", obj(), "limit", 0)}))
	if docs, _ := docsOf(t, m.must(t, "db", obj("getMore", id, "collection", "c"))); len(docs) != 8 {
		t.Errorf("%d documents; want the 8 of the snapshot", len(docs))
	}
	got := m.ids(t, obj("aggregate", "c", "pipeline", bson.A{}, "cursor", obj("batchSize", 3),
		"readConcern", append(snapshot, bson.E{Key: "atClusterTime", Value: at})))
	if diff := cmp.Diff(span(0, 10, 1), got); diff != "" {
		t.Error(diff)
	}
	m.node.hold()
	m.numbered(t, "c", 20, 21)
	if got := m.ids(t, obj("find", "c", "readConcern", obj("level", "majority"))); len(got) != 0 {
		t.Errorf("read %v that is not committed", got)
	}
	m.refused(t, "db", obj("find", "c", "readConcern", obj("level", "linearizable")), 238)
}

func TestReadsOfTransactions(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	m.numbered(t, "c", 0, 5)
	lsid := bson.E{Key: "lsid", Value: obj("id", bson.Binary{Subtype: 4, Data: make([]byte, 16)})}
	txn := []bson.E{lsid, {Key: "txnNumber", Value: int64(1)}, {Key: "autocommit", Value: false}}
	m.must(t, "db", append(obj("insert", "c", "documents", bson.A{obj("_id", 5)}, "startTransaction", true), txn...))
	m.numbered(t, "c", 10, 12)
	if diff := cmp.Diff(span(0, 6, 1), m.ids(t, obj("find", "c", "sort", obj("_id", 1)), txn...)); diff != "" {
		t.Error(diff)
	}
	reply := m.must(t, "db", append(obj("find", "c", "batchSize", 1), txn...))
	_, id := docsOf(t, reply)
	m.refused(t, "db", obj("getMore", id, "collection", "c", lsid.Key, lsid.Value), 50740)
	m.must(t, "admin", append(obj("commitTransaction", 1), txn...))
	m.refused(t, "db", obj("getMore", id, "collection", "c", lsid.Key, lsid.Value), 43)
}

func TestReadsByUUID(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	m.numbered(t, "c", 0, 3)
	docs, _ := docsOf(t, m.must(t, "db", obj("listCollections", 1)))
	var listed struct{ Info struct{ UUID bson.Binary } }
	if err := bson.UnmarshalExtJSON([]byte(docs[0]), false, &listed); err != nil {
		t.Fatal(err)
	}
	reply := m.must(t, "db", obj("find", listed.Info.UUID))
	if docs, _ := docsOf(t, reply); len(docs) != 3 || reply.Lookup("cursor", "ns").StringValue() != "db.c" {
		t.Errorf("%s; want the documents of db.c", reply)
	}
	m.must(t, "db", obj("listIndexes", listed.Info.UUID))
	m.refused(t, "other", obj("find", listed.Info.UUID), 26)
	m.refused(t, "db", obj("find", bson.Binary{Subtype: 4, Data: make([]byte, 16)}), 26)
}

func TestHints(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	m.insert(t, "db", "c", obj("_id", 1, "k", 3), obj("_id", 2, "k", 1), obj("_id", 3, "k", 2))
	m.must(t, "db", obj("createIndexes", "c", "indexes", bson.A{obj("key", obj("k", 1), "name", "k_1"), obj("key", obj("s", 1), "name", "s_1", "sparse", true)}))
	for _, hint := range []any{"k_1", obj("k", 1)} {
		if diff := cmp.Diff([]int64{2, 3, 1}, m.ids(t, obj("find", "c", "hint", hint))); diff != "" {
			t.Errorf("%v: %s", hint, diff)
		}
	}
	if diff := cmp.Diff([]int64{3, 2, 1}, m.ids(t, obj("find", "c", "hint", obj("$natural", -1)))); diff != "" {
		t.Error(diff)
	}
	m.refused(t, "db", obj("find", "c", "hint", "s_1"), 238)
	m.refused(t, "db", obj("find", "c", "hint", 5), 9)
	m.refused(t, "db", obj("count", "c", "hint", "nope"), 2)
	m.refused(t, "db", obj("aggregate", "c", "pipeline", bson.A{}, "cursor", obj(), "hint", "nope"), 2)
}

func TestRefusedReads(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	m.numbered(t, "c", 0, 3)
	for _, c := range []struct {
		cmd  bson.D
		code int32
		text string
	}{
		{obj("find", "c", "limit", "x"), 14, "BSON field 'FindCommandRequest.limit' is the wrong type 'string', expected types '[long, int, decimal, double']"},
		{obj("find", "c", "tailable", "x"), 14, "BSON field 'FindCommandRequest.tailable' is the wrong type 'string', expected types '[bool, long, int, decimal, double']"},
		{obj("find", 5), 73, "collection name has invalid type int"},
		{obj("find", "c", "awaitData", true), 9, "Cannot set 'awaitData' without also setting 'tailable'"},
		{obj("find", "c", "sort", obj("$natural", 2)), 2, "$natural sort cannot be set to a value other than -1 or 1."},
		{obj("find", "c", "min", obj("x", 1)), 238, "find option min is not implemented here"},
		{obj("find", "c", "let", obj("x", 1)), 238, "the argument let is not implemented here"},
		{obj("find", "c", "filter", obj("_id", 5), "hint", "x"), 2, "error processing query: ns=db.cTree: _id $eq 5\nSort: {}\nProj: {}\n planner returned error :: caused by :: hint provided does not correspond to an existing index"},
		{obj("getMore", 5, "collection", "c"), 14, "BSON field 'getMore.getMore' is the wrong type 'int', expected type 'long'"},
		{obj("getMore", int64(5)), 40414, "BSON field 'getMore.collection' is missing but a required field"},
		{obj("killCursors", "c"), 40414, "BSON field 'killCursors.cursors' is missing but a required field"},
		{obj("aggregate", "c", "cursor", obj()), 40414, "BSON field 'aggregate.pipeline' is missing but a required field"},
		{obj("aggregate", "c", "pipeline", 5, "cursor", obj()), 14, "'pipeline' option must be specified as an array"},
		{obj("aggregate", "c", "pipeline", bson.A{obj("$out", "x")}, "cursor", obj()), 238, ""},
		{obj("aggregate", "c", "pipeline", bson.A{obj("$changeStream", obj())}, "cursor", obj()), 238, "the stage $changeStream is not implemented here"},
		{obj("aggregate", "c", "pipeline", bson.A{obj("$indexStats", obj())}, "cursor", obj()), 238, ""},
		{obj("aggregate", 1, "pipeline", bson.A{obj("$match", obj())}, "cursor", obj()), 73, "{aggregate: 1} is not valid for '$match'; a collection is required."},
		{obj("distinct", "c"), 40414, "BSON field 'distinct.key' is missing but a required field"},
		{obj("explain", obj("find", "c")), 238, ""},
		{obj("mapReduce", "c"), 238, ""},
		{obj("collStats", "c", "scale", 0), 51024, "BSON field 'scale' value must be >= 1, actual value '0'"},
	} {
		if got := m.refused(t, "db", c.cmd, c.code); c.text != "" && got != c.text {
			t.Errorf("%v: %s; want %s", c.cmd, got, c.text)
		}
	}
}
