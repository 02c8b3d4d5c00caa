package ddl_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/scope"
)

// TestAbortOfAnotherCollection: an abort leaves the indexes of a collection that has the name since the build began, as
// after a resync of it.
func TestAbortOfAnotherCollection(t *testing.T) {
	t.Parallel()
	b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
	b.run(t, "db", bson.D{{Key: "create", Value: "a"}})
	b.restart(t)
	if b.startBuild(t, `{"key": {"a": 1}}`) == nil {
		t.Fatal("no head start")
	}
	b.run(t, "db", bson.D{{Key: "drop", Value: "a"}})
	b.run(t, "db", bson.D{{Key: "createIndexes", Value: "a"}, {Key: "indexes", Value: bson.A{bson.D{
		{Key: "key", Value: bson.D{{Key: "a", Value: 1}}}, {Key: "name", Value: "0"},
	}}}})
	b.restart(t)
	must.Succeed(t, b.exec.Apply(t.Context(), b.operation(t, `c db.$cmd {"abortIndexBuild": "a", "indexBuildUUID": {"$uuid": "00000000-0000-4000-8000-000000000001"}, `+
		`"indexes": [{"v": 2, "name": "0", "key": {"a": 1}}], "cause": {"ok": false, "code": 276, "codeName": "x", "errmsg": "x"}}`), ddl.Once))
	if text := fmt.Sprint(must.Get(catalog.Indexes(t.Context(), b.server, "db.a"))(t)); !strings.Contains(text, `{"a":`) {
		t.Error(text)
	}
	if open := must.Get(b.exec.OpenBuilds(t.Context()))(t); len(open) > 0 {
		t.Errorf("%d builds are open", len(open))
	}
}

// TestOpenBuildOfAnotherCollection: the head start of a build is not taken up for another collection that has its name by
// now, which does not get its indexes; its record is deleted.
func TestOpenBuildOfAnotherCollection(t *testing.T) {
	t.Parallel()
	b := newBench(t, "7.0", ddl.Relaxed, scope.Config{})
	b.run(t, "db", bson.D{{Key: "create", Value: "a"}})
	b.restart(t)
	if b.startBuild(t, `{"key": {"a": 1}}`) == nil {
		t.Fatal("no head start")
	}
	b.restart(t)
	if open := must.Get(b.exec.OpenBuilds(t.Context()))(t); len(open) != 1 {
		t.Fatalf("%d builds are open", len(open))
	}
	b.run(t, "db", bson.D{{Key: "drop", Value: "a"}})
	b.run(t, "db", bson.D{{Key: "create", Value: "a"}})
	b.restart(t)
	if open := must.Get(b.exec.OpenBuilds(t.Context()))(t); len(open) > 0 {
		t.Errorf("%d builds of another collection are open", len(open))
	}
	docs := must.Get(catalog.ReadAll(t.Context(), b.server, "replicator", must.Get(bson.Marshal(bson.D{{Key: "find", Value: "builds"}}))(t)))(t)
	if len(docs) > 0 {
		t.Errorf("records: %v", docs)
	}
}
