package command

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/serverquery"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/mongosim/internal/command/ddl"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
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

func TestViews(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	m.numbered(t, "c", 0, 300)
	m.numbered(t, "other", 0, 4)
	m.must(t, "db", obj("create", "odd", "viewOn", "c", "pipeline", bson.A{obj("$match", obj("x", obj("$in", bson.A{1, 3, 5, 7, 9}))), obj("$set", obj("y", "$x"))}))
	m.must(t, "db", obj("create", "five", "viewOn", "odd", "pipeline", bson.A{obj("$match", obj("y", 5)), obj("$set", obj("view", true))}))
	if diff := cmp.Diff([]int64{25, 35}, m.ids(t, obj("find", "five", "filter", obj("_id", obj("$gt", 10)), "skip", 1, "limit", 2, "projection", obj("view", 1)))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(span(1, 301, 2), m.ids(t, obj("find", "odd", "batchSize", 7))); diff != "" {
		t.Error(diff)
	}
	if n := m.must(t, "db", obj("count", "five")).Lookup("n").AsInt64(); n != 30 {
		t.Errorf("counted %d; want 30", n)
	}
	if n := m.must(t, "db", obj("count", "five", "query", obj("_id", obj("$lt", 100)), "skip", 2, "limit", 5)).Lookup("n").AsInt64(); n != 5 {
		t.Errorf("counted %d; want 5", n)
	}
	reply := m.must(t, "db", obj("distinct", "odd", "key", "x"))
	if values, _ := reply.Lookup("values").Array().Values(); len(values) != 5 {
		t.Errorf("%s; want five values", reply)
	}
	reply = m.must(t, "db", obj("aggregate", "other", "cursor", obj(), "pipeline", bson.A{
		obj("$project", obj("x", 1)), obj("$count", "n"),
	}))
	if n := reply.Lookup("cursor", "firstBatch", "0", "n").AsInt64(); n != 4 {
		t.Errorf("%s; want 4", reply)
	}
	if got := m.refused(t, "db", obj("listIndexes", "odd"), 166); got != "Namespace db.odd is a view, not a collection" {
		t.Error(got)
	}
	m.refused(t, "db", obj("find", "odd", "tailable", true), 168)
	m.refused(t, "db", obj("collStats", "odd"), 166)

	// A view may come to stand on itself by way of another one's definition.
	m.must(t, "db", obj("create", "a", "viewOn", "b", "pipeline", bson.A{}))
	m.must(t, "db", obj("create", "b", "viewOn", "a2", "pipeline", bson.A{}))
	err := m.Config.Path.Write(func(b *opwrite.Batch) error {
		def, _ := bson.Marshal(obj("_id", "db.a2", "viewOn", "a", "pipeline", bson.A{}))
		return ddl.InsertView(b, "db.a2", def)
	})
	if err != nil {
		t.Fatal(err)
	}
	m.refused(t, "db", obj("find", "a"), 165)
}

// TestTimeseriesReads reads back through the view what was inserted when the
// buckets were recorded.
func TestTimeseriesReads(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	scenarios, err := corpus.Open("../../../testdata/corpus/timeseries")
	if err != nil {
		t.Fatal(err)
	}
	type measurement struct {
		ID  bson.ObjectID `bson:"_id"`
		T   bson.DateTime
		Dev any
		V   any
		S   any
	}
	var want, got []measurement
	add := func(list *[]measurement, doc []byte) {
		var one measurement
		if err := bson.Unmarshal(doc, &one); err != nil {
			t.Fatal(err)
		}
		*list = append(*list, one)
	}
	for c, err := range scenarios[0].Commands() {
		if err != nil {
			t.Fatal(err)
		}
		switch name, _ := c.Command.Index(0).KeyErr(); name {
		case "create":
			m.must(t, "ts", obj("create", "m", "timeseries", c.Command.Lookup("timeseries"), "expireAfterSeconds", int64(536870912)))
		case "insert":
			values, _ := c.Command.Lookup("documents").Array().Values()
			for _, v := range values {
				add(&want, v.Document())
			}
		}
	}
	buckets, err := os.ReadFile("../../../testdata/corpus/timeseries/after/ts.system.buckets.m.bson")
	if err != nil {
		t.Fatal(err)
	}
	err = m.Config.Path.Write(func(b *opwrite.Batch) error {
		coll, _ := b.View().Collection("ts.system.buckets.m")
		for in := bytes.NewReader(buckets); in.Len() > 0; {
			doc, err := bson.ReadDocument(in)
			if err != nil {
				return err
			}
			if _, err := b.Insert(coll, []bson.Raw{doc}, nil); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	reply := m.must(t, "ts", obj("find", "m", "sort", obj("_id", 1), "batchSize", 1000))
	values, _ := reply.Lookup("cursor", "firstBatch").Array().Values()
	for _, v := range values {
		add(&got, v.Document())
	}
	slices.SortFunc(want, func(a, b measurement) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	if diff := cmp.Diff(want, got); diff != "" || len(got) < 60 {
		t.Errorf("%d measurements: %s", len(got), diff)
	}
	docs, _ := docsOf(t, m.must(t, "ts", obj("listCollections", 1, "nameOnly", true)))
	if want := `{"name": "m","type": "timeseries"}`; !slices.Contains(docs, want) {
		t.Errorf("%v; want %s", docs, want)
	}
	docs, _ = docsOf(t, m.must(t, "ts", obj("listCollections", 1, "filter", obj("name", "m"))))
	if !strings.Contains(docs[0], `"options": {"expireAfterSeconds": {"$numberLong":"536870912"},"timeseries": {"timeField": "t","metaField": "dev"`) {
		t.Error(docs[0])
	}
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
