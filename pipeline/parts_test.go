package pipeline_test

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline"
)

// TestPartsSwept: a process that ended after it had recorded that a collection was
// copied again, and before it had completely removed the link of that copy, leaves
// documents. The next attempt of the link removes them, but not those of other links,
// or of collections still to be copied.
func TestPartsSwept(t *testing.T) {
	t.Parallel()
	opts := func(seed int64) mongosim.Options { return mongosim.Options{Members: 1, Seed: seed, Dialect: "5.0"} }
	r := &routed{world: newWorld(t, opts(7), opts(8))}
	r.insert(10)
	cfg := func() pipeline.Config {
		c := pipeline.Config{Writers: 2, CheckpointInterval: 50 * time.Millisecond}
		c.Copy.Wanted, c.Copy.SpoolDir = true, t.TempDir()
		return c
	}
	l := r.run(cfg())
	r.insert(10)
	r.isEqual(l)
	l.drain(nil)
	r.awaitEnd(l)
	at := oplog.NewOpTime(5, 1, 1)
	left := func(name, of string) *checkpoint.Store {
		t.Helper()
		store, err := checkpoint.New(checkpoint.Config{Target: r.target.conn, Link: name, Of: of})
		if err != nil {
			t.Fatal(err)
		}
		err = store.Create(t.Context(), checkpoint.State{Writers: 1, Applied: at, FetchFrom: at, Source: checkpoint.Source{SetName: "src"}})
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
	left("resync-0000000000000001", "mirror")
	left("resync-0000000000000002", "mirror")
	left("resync-0000000000000003", "another")
	left("by-itself", "")
	// One whose Remove was cut off.
	r.onTarget("replicator", bson.D{{Key: "delete", Value: "lanes"}, {Key: "deletes", Value: bson.A{
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: "resync-0000000000000002/0"}}}, {Key: "limit", Value: 1}},
	}}})
	l = r.run(cfg())
	r.insert(10)
	must.Succeed(t, r.caughtUp(l))
	for _, coll := range []string{"links", "lanes"} {
		found := map[string]bool{}
		reply := r.onTarget("replicator", bson.D{{Key: "find", Value: coll}})
		docs, err := reply.Lookup("cursor", "firstBatch").Array().Values()
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range docs {
			id, _, _ := strings.Cut(doc.Document().Lookup("_id").StringValue(), "/")
			found[id] = true
		}
		for name, want := range map[string]bool{
			"resync-0000000000000001": false, "resync-0000000000000002": false, "resync-0000000000000003": true, "by-itself": true, "mirror": true,
		} {
			if found[name] != want {
				t.Errorf("%s of %s: there %v, want %v", coll, name, found[name], want)
			}
		}
	}
}
