package ddl_test

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
)

// found is a target that returns the same documents to every command.
type found []byte

func (d found) Call(context.Context, mongo.Command) (bson.Raw, error) {
	return bson.Marshal(bson.D{
		{Key: "ok", Value: 1},
		{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "db.x"}, {Key: "firstBatch", Value: bson.A{bson.Raw(d)}}}},
	})
}

// FuzzDeferred reads any document as a deferred spec and overlays a collection with it.
func FuzzDeferred(f *testing.F) {
	spec, err := bson.Marshal(bson.D{{Key: "name", Value: "x_1"}, {Key: "unique", Value: true}})
	if err != nil {
		f.Fatal(err)
	}
	for _, index := range []string{"", "x_1", "y_1"} {
		d, err := bson.Marshal(bson.D{
			{Key: "_id", Value: bson.D{{Key: "link", Value: "l"}, {Key: "ns", Value: "db.a"}, {Key: "index", Value: index}}},
			{Key: "uuid", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}},
			{Key: "deferred", Value: bson.A{"unique"}},
			{Key: "absent", Value: index == "y_1"},
			{Key: "spec", Value: bson.Binary{Data: spec}},
		})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(d)
	}
	f.Fuzz(func(t *testing.T, d []byte) {
		if rawbson.Validate(d) != nil {
			return
		}
		deferred, err := ddl.ReadDeferred(t.Context(), found(d), "meta", "l")
		if err != nil {
			return
		}
		options, indexes := deferred.Overlay(deferred[0].NS, bsongen.FromJSON(t, `{"temp": true}`), []bson.Raw{bsongen.FromJSON(t, `{"name": "x_1"}`)})
		if err := rawbson.Validate(options); err != nil {
			t.Error(err)
		}
		for _, spec := range indexes {
			if err := rawbson.Validate(spec); err != nil {
				t.Error(err)
			}
		}
	})
}

// FuzzApply executes any command or view write on a target with arbitrary contents: it
// returns, with an error or without.
func FuzzApply(f *testing.F) {
	for _, text := range []string{
		`{"create": "a", "viewOn": "b", "pipeline": [{"$lookup": {"from": "c", "pipeline": [{"$unionWith": "d"}]}}]}`,
		`{"create": "system.buckets.a", "timeseries": {"timeField": "t"}}`,
		`{"collMod": "a", "index": {"name": "x_1", "expireAfterSeconds": 1}}`,
		`{"createIndexes": "a", "key": {"x": 1}, "name": "x_1", "unique": true}`,
		`{"renameCollection": "db.a", "to": "db.b"}`,
		`{"_id": "db.v", "viewOn": "a", "pipeline": [{"$facet": {"x": [{"$graphLookup": {"from": "y"}}]}}]}`,
		`{"dropDatabase": 1}`,
	} {
		f.Add([]byte(bsongen.FromJSON(f, text)), uint8(0))
	}
	f.Fuzz(func(t *testing.T, o []byte, again uint8) {
		if rawbson.Validate(o) != nil {
			return
		}
		target := found(bsongen.FromJSON(t, `{"name": "a", "type": "collection", "options": {}, "info": {"uuid": {"$uuid": "00000000-0000-4000-8000-000000000001"}}}`))
		cat, err := catalog.Load(t.Context(), target, nil)
		if err != nil {
			t.Fatal(err)
		}
		sc, err := scope.New(scope.Config{})
		if err != nil {
			t.Fatal(err)
		}
		exec, err := ddl.New(ddl.Config{Target: target, Fence: plain{target}, Catalog: cat, Scope: sc, Link: "l"})
		if err != nil {
			t.Fatal(err)
		}
		for kind, ns := range map[string]string{"c": "db.$cmd", "i": "db.system.views", "u": "db.system.views"} {
			raw, err := bson.Marshal(bson.D{
				{Key: "op", Value: kind},
				{Key: "ns", Value: ns},
				{Key: "ts", Value: bson.Timestamp{T: 1, I: 1}},
				{Key: "t", Value: int64(1)},
				{Key: "v", Value: int64(2)},
				{Key: "wall", Value: bson.DateTime(0)},
				{Key: "o", Value: bson.Raw(o)},
				{Key: "o2", Value: bson.D{{Key: "_id", Value: "db.v"}}},
			})
			if err != nil {
				t.Fatal(err)
			}
			entry, err := oplog.ParseEntry(raw)
			if err != nil {
				continue
			}
			_ = exec.Apply(t.Context(), &entry.Op, ddl.Once+ddl.Mode(again%3))
		}
	})
}
