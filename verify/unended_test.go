package verify

import (
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/verify/standing"
)

// TestFoundBeforeFault: a collection in which a comparison has found something new, and that cannot be compared to
// its end, is not verified any more, although an earlier comparison has found nothing.
func TestFoundBeforeFault(t *testing.T) {
	t.Parallel()
	source, target := cluster(t), cluster(t)
	docs := mixed(t, 300)
	insertRaw(t, source, "d.c", docs...)
	insertRaw(t, target, "d.c", docs...)
	var planted atomic.Bool
	old := func(mongo.Command) error {
		if planted.Load() {
			return servererr.New(servererr.SnapshotTooOld, "planted")
		}
		return nil
	}
	config := func() Config {
		return Config{
			Source: &hook{Caller: source, ns: "d.c", before: old}, Target: target, Cuts: &rest{source: source, target: target},
			RangeBytes: 20_000, Workers: 1, Scope: everything(t), Progress: &Progress{Target: target, DB: "replicator", Link: "l"},
		}
	}
	is := func(what, why string, differences int64) {
		t.Helper()
		st := must.Get(standing.Read(t.Context(), target, "replicator", "l"))(t)
		if (st.AsOf == nil) != (why != "") || !strings.Contains(st.Why, why) || st.Differences != differences {
			t.Errorf("%s: verified as of %+v, %q, %d differences", what, st.AsOf, st.Why, st.Differences)
		}
	}
	check(t, config())
	is("equal", "", 0)
	planted.Store(true)
	check(t, config())
	planted.Store(false)
	is("not compared, and nothing is found", "", 0)
	run(t, target, "d", bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: idOf(docs[len(docs)/3])}}}, {Key: "limit", Value: 1},
	}}}})
	cfg := config()
	cfg.Found = func(*Difference) error {
		planted.Store(true)
		return nil
	}
	must.Get(must.Get(New(cfg))(t).Run(t.Context()))(t)
	if !planted.Load() {
		t.Fatal("nothing was found")
	}
	is("found", "did not come to its end: a cut can be read for too short a time", 0)
	planted.Store(false)
	check(t, config())
	is("compared", "", 1)
	check(t, config())
	planted.Store(true)
	check(t, config())
	is("what is found is known", "", 1)
}
