package pipeline_test

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/scope"
)

// TestDefaultReadConcern: a link copies and mirrors sets whose reads are of what a majority has by default, some time
// after the primary has written it.
func TestDefaultReadConcern(t *testing.T) {
	t.Parallel()
	late := mongosim.Options{DefaultReadConcern: "majority", JournalDelay: 50 * time.Millisecond, Moods: mongosim.NoMoods("each answer is that of the read concern")}
	w := newWorld(t, late, late)
	cfg := pipeline.Config{Link: "mirror", MetaDB: "replicator", Writers: 3}
	cfg.Copy.Wanted, cfg.Copy.SpoolDir, cfg.Copy.SpoolFree = true, t.TempDir(), 1
	write := func(cmd bson.D) { must.Succeed(t, w.source.write(t.Context(), "db", cmd)) }
	insert := func(id int) {
		write(bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}, {Key: "v", Value: id}}}}})
	}
	insert(1)
	must.Succeed(t, w.start("a", cfg, scope.Config{}))
	must.Succeed(t, w.caughtUp(w.links["a"]))
	write(bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "v", Value: 1}}}, {Key: "name", Value: "v_1"}, {Key: "unique", Value: true}}}}})
	insert(2)
	write(bson.D{{Key: "update", Value: "c"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: 3}}}}}}}}})
	must.Succeed(t, w.caughtUp(w.links["a"]))
	if report := must.Get(w.compared(w.links["a"]))(t); !report.Equal() {
		t.Error(report.String())
	}
}
