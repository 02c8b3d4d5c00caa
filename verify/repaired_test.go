package verify

import (
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/verify/standing"
)

// TestRepairedBefore: a difference that is found without a cut after a repair has found its document the same, in the same
// comparison, is not taken for one that the repair has removed.
func TestRepairedBefore(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	docs := neighbours(t, 0, 10)
	insertRaw(t, source, "d.c", docs...)
	insertRaw(t, target, "d.c", docs...)
	store := standing.Store{Target: target, DB: "replicator", Link: "l"}
	progress := func() *Progress { return &Progress{Target: target, DB: "replicator", Link: "l"} }
	is := func(what string, differences int64) {
		t.Helper()
		if st := must.Get(standing.Read(t.Context(), target, "replicator", "l"))(t); st.AsOf == nil || st.Differences != differences {
			t.Errorf("%s: %d differences, want %d, as of %+v", what, st.Differences, differences, st.AsOf)
		}
	}
	check(t, Config{Source: source, Target: target, Cuts: &rest{source: source, target: target}, Progress: progress()})
	is("equal", 0)
	repaired := func() {
		id := IDText(docs[7].Lookup("_id"))
		must.Succeed(t, store.Repaired(t.Context(), "d.c", []string{id}, must.Get(mongo.OperationTime(t.Context(), target))(t)))
	}
	var once sync.Once
	before := func(cmd mongo.Command) error {
		if _, atCut := at(cmd); atCut {
			return servererr.New(servererr.SnapshotUnavailable, "planted")
		}
		once.Do(func() {
			repaired()
			run(t, target, "d", bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{bson.D{
				{Key: "q", Value: bson.D{{Key: "_id", Value: int32(7)}}}, {Key: "limit", Value: 1},
			}}}})
		})
		return nil
	}
	_, found := check(t, Config{Source: source, Target: &hook{Caller: target, ns: "d.c", before: before}, Cuts: &rest{source: source, target: target}, Progress: progress()})
	if len(found) != 1 || found[0].Kind != Missing {
		t.Fatalf("%+v", found)
	}
	is("found after a repair", 1)
	insertRaw(t, target, "d.c", docs[7])
	repaired()
	is("repaired after that", 0)
}

// TestCutsOfDifferences: differences that are found without a cut need one more for each range, and not for each group that is
// reported.
func TestCutsOfDifferences(t *testing.T) {
	t.Parallel()
	const groups, ranges = 12, 3
	source, target := cluster(t), cluster(t)
	docs := neighbours(t, 0, groups*mostFound)
	insertRaw(t, source, "d.c", docs...)
	run(t, target, "d", bson.D{{Key: "create", Value: "c"}})
	refuse := func(cmd mongo.Command) error {
		if _, atCut := at(cmd); atCut {
			return servererr.New(servererr.SnapshotUnavailable, "planted")
		}
		return nil
	}
	made := func(to mongo.Caller) int {
		cuts := &rest{source: source, target: target}
		_, found := check(t, Config{
			Source: source, Target: to, Cuts: cuts, Progress: &Progress{Target: target, DB: "replicator", Link: "l"},
			Workers: 1, RangeBytes: int64(len(docs) * len(docs[0]) / ranges),
		})
		if len(found) < len(docs) {
			t.Fatalf("%d differences", len(found))
		}
		return cuts.made
	}
	atCuts := made(target)
	if without := made(&hook{Caller: target, ns: "d.c", before: refuse}); without > atCuts+ranges {
		t.Errorf("%d cuts, and %d where the collection is read at one", without, atCuts)
	}
}
