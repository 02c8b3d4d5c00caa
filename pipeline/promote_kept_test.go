package pipeline_test

import (
	"testing"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/promote"
)

// TestPromoteKeptBack: a collection that waits for an index build is named, as it is behind the others.
func TestPromoteKeptBack(t *testing.T) {
	t.Parallel()
	o := newRelayed(t)
	o.links["a"].drain(nil)
	o.awaitEnd(o.links["a"])
	store := must.Get(checkpoint.New(checkpoint.Config{Target: connect(t, o.target.Set, theProgram), DB: "replicator", Link: "mirror"}))(t)
	link := must.Get(store.Acquire(t.Context(), 0))(t)
	st := link.State()
	since := checkpoint.Position{OpTime: oplog.NewOpTime(st.Applied.TS.T+1, 1, st.Applied.Term)}
	must.Succeed(t, link.Barrier().Announce(t.Context(), since, st.Lanes)) // the commit, after which lanes may be ahead
	must.Succeed(t, link.KeepBack(t.Context(), []checkpoint.KeptBack{{NS: "db.c", Since: since}}))
	for range 2 { // the second time from the record of the promotion
		got := must.Get(o.promote(func(c *promote.Config) { c.Pipeline.Copy.SpoolDir = t.TempDir() }))(t)
		if len(got.KeptBack) != 1 || got.KeptBack[0].NS != oplog.Namespace("db.c") || got.KeptBack[0].Since != since {
			t.Errorf("kept back are %+v", got.KeptBack)
		}
	}
}
