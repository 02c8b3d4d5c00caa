package pipeline_test

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/mongosim/fault"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/scope"
)

// A connection that takes 8 s for a reply of 16 MB, with a latency of 50 ms: longer
// than the time limit for a whole reply. The link progresses, with the only member, and
// does not leave it.
func TestSlowLine(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves a hundred megabytes or more")
	slow := mongosim.NoMoods("the line is slow, and one attempt has to do")
	w := newWorld(t, mongosim.Options{Moods: slow}, mongosim.Options{Moods: slow})
	cfg := pipeline.Config{Writers: 2, Await: 100 * time.Millisecond}
	must.Succeed(t, w.start("a", cfg, scope.Config{}))
	must.Succeed(t, w.caughtUp(w.links["a"]))
	must.Succeed(t, w.source.write(t.Context(), "db", bson.D{{Key: "create", Value: "c"}}))
	must.Succeed(t, w.caughtUp(w.links["a"]))
	w.links["a"].drain(nil)
	w.awaitEnd(w.links["a"])

	const megabytes = 64
	filler := make([]byte, 1<<20)
	for i := range megabytes {
		docs := bson.A{bson.D{{Key: "_id", Value: i}, {Key: "x", Value: filler}}}
		must.Succeed(t, w.source.write(t.Context(), "db", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: docs}}))
	}
	if err := w.source.Fault(mongosim.Client, 0,
		fault.Fault{Kind: fault.Rate, Bytes: 2 << 20}, fault.Fault{Kind: fault.Latency, Delay: 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	must.Succeed(t, w.start("a", cfg, scope.Config{}))
	must.Succeed(t, w.caughtUp(w.links["a"]))
	t.Logf("%d MiB in %s", megabytes, time.Since(began))
	if n := w.links["a"].p.Snapshot().Attempts; n != 1 {
		t.Errorf("%d attempts, want 1: %s", n, w.links["a"].p.Snapshot().LastError)
	}
	w.source.HealAll()
	if report, err := w.equal(w.links["a"]); err != nil || report != "equal" {
		t.Error(report, err)
	}
}
