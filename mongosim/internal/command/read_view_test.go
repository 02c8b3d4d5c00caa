package command

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/mongosim/internal/command/ddl"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

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

// TestTimeseriesReads reads back through the view the measurements inserted when
// the buckets were recorded.
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
