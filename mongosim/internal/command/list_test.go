package command

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

func TestLists(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	m.numbered(t, "c", 0, 3)
	m.must(t, "db", obj("createIndexes", "c", "indexes", bson.A{obj("key", obj("x", 1), "name", "x_1")}))
	m.must(t, "db", obj("create", "v", "viewOn", "c", "pipeline", bson.A{}))
	docs, _ := docsOf(t, m.must(t, "db", obj("listCollections", 1, "nameOnly", true)))
	if diff := cmp.Diff([]string{`{"name": "c","type": "collection"}`, `{"name": "system.views","type": "collection"}`, `{"name": "v","type": "view"}`}, docs); diff != "" {
		t.Error(diff)
	}
	docs, _ = docsOf(t, m.must(t, "db", obj("listCollections", 1, "filter", obj("type", "view"))))
	if diff := cmp.Diff([]string{`{"name": "v","type": "view","options": {"viewOn": "c","pipeline": []},"info": {"readOnly": true}}`}, docs); diff != "" {
		t.Error(diff)
	}
	reply := m.must(t, "db", obj("listCollections", 1, "cursor", obj("batchSize", 1), "nameOnly", true))
	docs, id := docsOf(t, reply)
	rest, end := docsOf(t, m.must(t, "db", obj("getMore", id, "collection", "$cmd.listCollections")))
	if len(docs) != 1 || len(rest) != 2 || end != 0 {
		t.Errorf("batches of %d and %d, cursor %d; want 1, 2, 0", len(docs), len(rest), end)
	}
	docs, _ = docsOf(t, m.must(t, "db", obj("listIndexes", "c")))
	if len(docs) != 2 || !strings.Contains(docs[1], `"name": "x_1"`) {
		t.Error(docs)
	}
	docs, _ = docsOf(t, m.must(t, "local", obj("listCollections", 1, "filter", obj("name", "oplog.rs"))))
	if len(docs) != 1 || !strings.Contains(docs[0], `"options": {"capped": true,"size": {"$numberInt":"268435456"},"autoIndexId": false}`) {
		t.Error(docs)
	}
	reply = m.must(t, "admin", obj("listDatabases", 1))
	if got := fmt.Sprint(reply.Lookup("databases")); !strings.Contains(got, `"name": "db","sizeOnDisk": {"$numberLong":"`) || !strings.Contains(got, `"name": "local"`) {
		t.Error(got)
	}
	reply = m.must(t, "db", obj("dbStats", 1))
	if reply.Lookup("collections").AsInt64() != 2 || reply.Lookup("objects").AsInt64() != 4 || reply.Lookup("views").AsInt64() != 1 {
		t.Errorf("%s", reply)
	}
	reply = m.must(t, "db", obj("collStats", "c"))
	if reply.Lookup("count").AsInt64() != 3 || reply.Lookup("size").AsInt64() != 63 || reply.Lookup("avgObjSize").AsInt64() != 21 || reply.Lookup("nindexes").AsInt64() != 2 {
		t.Errorf("%s", reply)
	}
	m.must(t, "db", obj("collStats", "missing"))
	reply = m.must(t, "db", obj("aggregate", "c", "cursor", obj(), "pipeline", bson.A{obj("$collStats", obj("count", obj(), "storageStats", obj())), obj("$project", obj("count", 1))}))
	if reply.Lookup("cursor", "firstBatch", "0", "count").AsInt64() != 3 {
		t.Errorf("%s", reply)
	}
}

func TestListOrder(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	for _, coll := range []string{"b", "c", "a"} { // their UUIDs ascend
		m.numbered(t, coll, 0, 1)
	}
	docs, _ := docsOf(t, m.must(t, "db", obj("listCollections", 1, "nameOnly", true)))
	want := []string{`{"name": "b","type": "collection"}`, `{"name": "c","type": "collection"}`, `{"name": "a","type": "collection"}`}
	if diff := cmp.Diff(want, docs); diff != "" {
		t.Error(diff)
	}
}

// TestDBHashOrder expects the hash of documents in the order of _id, however
// they lie.
func TestDBHashOrder(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	m.insert(t, "up", "c", obj("_id", 1), obj("_id", 2))
	m.insert(t, "down", "c", obj("_id", 2), obj("_id", 1))
	up, down := m.must(t, "up", obj("dbHash", 1)).Lookup("md5"), m.must(t, "down", obj("dbHash", 1)).Lookup("md5")
	if !up.Equal(down) {
		t.Errorf("%s and %s; want the same", up, down)
	}
}

// TestDBHashOfOneInt is the recorded hash of a collection of one document.
func TestDBHashOfOneInt(t *testing.T) {
	m := newReadMember(t, storage.Options{})
	m.insert(t, "t", "c", obj("_id", int32(1795168891)))
	reply := m.must(t, "t", obj("dbHash", 1))
	if got, want := reply.Lookup("collections", "c").StringValue(), "a4ef6504699af056244a186cb1b69d4c"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	if got, want := reply.Lookup("md5").StringValue(), "1f91338e2334358bd5d383bc8e550067"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
}

// One definition that is invalid makes every list fail but that of the server's own
// cloner, and every name that no collection has; what exists can be used all the
// same (invalid_system_views.js, timeseries_list_collections_invalid_view.js).
func TestInvalidViews(t *testing.T) {
	for _, def := range []string{
		`{_id: "d.bad", viewOn: "c", pipeline: "bad"}`,
		`{_id: "d.bad", viewOn: "c", pipeline: {}}`,
		`{_id: "d.bad", viewOn: "c", pipeline: [1]}`,
		`{_id: "d.bad", viewOn: "c", pipeline: [[]]}`,
		`{_id: "d.bad", viewOn: "c"}`,
		`{_id: "d.bad", viewOn: "c", pipeline: [], shiny: 1}`,
		`{_id: "d.bad", viewOn: "c", pipeline: [], collation: "de"}`,
		`{_id: "d.bad", pipeline: []}`,
		`{_id: "d.embedded\u0000null", viewOn: "c", pipeline: []}`,
		`{_id: 7, viewOn: "c", pipeline: []}`,
		`{_id: "bad", viewOn: "c", pipeline: []}`,
		`{_id: "other.v", viewOn: "c", pipeline: []}`,
	} {
		m := newMember(t, "5.0.7")
		m.run(t, `{insert: "c", documents: [{_id: 1}], $db: "d"}`)
		m.run(t, `{create: "v", viewOn: "c", pipeline: [], $db: "d"}`)
		m.run(t, `{create: "s", timeseries: {timeField: "t"}, $db: "d"}`)
		want := func(cmd string, want servererr.Code) bson.Raw {
			t.Helper()
			r := m.run(t, cmd)
			if code := codeOf(r); code != want {
				t.Errorf("with %s: %s: code %v, want %v", def, cmd, code, want)
			}
			return r
		}
		want(`{insert: "system.views", documents: [`+def+`], $db: "d"}`, 0)
		for _, cmd := range []string{
			`{listCollections: 1, $db: "d"}`,
			`{listCollections: 1, nameOnly: true, $db: "d"}`,
			`{listCollections: 1, filter: {name: "c"}, $db: "d"}`,
			`{listCollections: 1, filter: {type: "collection"}, $db: "d"}`,
			`{listCollections: 1, filter: {type: "timeseries"}, $db: "d"}`,
			`{find: "v", $db: "d"}`,
			`{find: "nothing", $db: "d"}`,
			`{insert: "nothing", documents: [{_id: 1}], $db: "d"}`,
			`{create: "nothing", $db: "d"}`,
			`{create: "w", viewOn: "c", pipeline: [], $db: "d"}`,
		} {
			want(cmd, servererr.InvalidViewDefinition)
		}
		r := want(`{listCollections: 1, filter: {$or: [{type: "collection"}, {type: {$exists: false}}]}, $db: "d"}`, 0)
		if docs, _ := docsOf(t, r); len(docs) != 3 {
			t.Errorf("with %s the cloner's filter shows %s", def, docs)
		}
		want(`{insert: "c", documents: [{_id: 2}], $db: "d"}`, 0)
		want(`{find: "system.views", $db: "d"}`, 0)
		want(`{createIndexes: "c", indexes: [{key: {a: 1}, name: "a"}], $db: "d"}`, 0)
		want(`{drop: "nothing", $db: "d"}`, servererr.NamespaceNotFound)
		want(`{drop: "v", $db: "d"}`, 0)
		want(`{delete: "system.views", deletes: [{q: {viewOn: {$ne: "system.buckets.s"}}, limit: 0}], $db: "d"}`, 0)
		want(`{listCollections: 1, $db: "d"}`, 0)
	}
}

// TestListSeriesIndexes: the indexes of a time series are shown in terms of measurements; those of its buckets that have no such form,
// and the clustered one, are not.
func TestListSeriesIndexes(t *testing.T) {
	m := newMember(t, "7.0.15")
	m.steps(t, []step{
		{`{create: "bare", timeseries: {timeField: "at"}, $db: "d"}`, 0, ""},
		{`{create: "s", timeseries: {timeField: "at", metaField: "tags"}, $db: "d"}`, 0, ""},
		{`{createIndexes: "system.buckets.s", indexes: [
			{key: {"control.max.at": -1, "control.min.at": -1}, name: "down", hidden: true}, {key: {"meta.room": 1, "control.min.v": 1, "control.max.v": 1}, name: "room"},
			{key: {"control.min.v": 1}, name: "half"}, {key: {"control.min.v": 1, "control.max.w": 1}, name: "twisted"}, {key: {"data.v": 1}, name: "data"},
			{key: {metal: 1}, name: "metal"}], $db: "d"}`, 0, ""},
		{`{createIndexes: "system.buckets.bare", indexes: [{key: {meta: 1}, name: "none"}], $db: "d"}`, 0, ""},
	})
	m.want(t, `{listIndexes: "bare", $db: "d"}`, `{cursor: {id: {$numberLong: "0"}, ns: "d.bare", firstBatch: []}, ok: 1.0}`)
	m.want(t, `{listIndexes: "s", $db: "d"}`, `{cursor: {id: {$numberLong: "0"}, ns: "d.s", firstBatch: [
		{v: 2, key: {tags: 1, at: 1}, name: "tags_1_at_1"}, {v: 2, key: {at: -1}, name: "down", hidden: true}, {v: 2, key: {"tags.room": 1, v: 1}, name: "room"}]}, ok: 1.0}`)
}
