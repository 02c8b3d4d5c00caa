package checkpoint

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// leftOuts draws the list of the collections that a link leaves out, at least one.
func leftOuts() *rapid.Generator[[]LeftOut] {
	return rapid.Custom(func(t *rapid.T) []LeftOut {
		var list []LeftOut
		for _, ns := range rapid.SliceOfNDistinct(rapid.SampledFrom([]oplog.Namespace{"a.a", "a.b", "b.c$.x", "d.\u00e9"}), 1, 4, rapid.ID).Draw(t, "names") {
			since := rapid.Uint32Range(1, 30).Draw(t, "since")
			list = append(list, LeftOut{
				NS: ns, Since: ot(since), Wall: int64(since) * 1000,
				Asked: time.UnixMilli(rapid.Int64Range(0, 1<<40).Draw(t, "asked")).UTC(), Failed: rapid.String().Draw(t, "failed"),
			})
		}
		return list
	})
}

// TestReached: the reported position is never after the Since of a collection that is left
// out, has the wall time of its entry, and is null if the target is not consistent.
func TestReached(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		applied := rapid.Uint32Range(1, 30).Draw(t, "applied")
		durable := rapid.Uint32Range(1, applied).Draw(t, "durable")
		p := Progress{
			Applied: ot(applied), AppliedWall: int64(applied) * 1000, FetchFrom: ot(1), Durable: ot(durable), DurableWall: int64(durable) * 1000, Ops: 7,
		}
		g := Gaps{Copying: rapid.IntRange(0, 4).Draw(t, "copying") == 0}
		if rapid.Bool().Draw(t, "copied") {
			g.CopiedUntil = ot(rapid.Uint32Range(1, 30).Draw(t, "until"))
		}
		least := uint32(1 << 31)
		if rapid.Bool().Draw(t, "left out") {
			g.LeftOut = leftOuts().Draw(t, "left out")
			for _, out := range g.LeftOut {
				least = min(least, out.Since.TS.T)
			}
		}
		want := func(at uint32) (oplog.OpTime, int64) {
			if at = min(at, least); g.Copying || ot(at).Before(g.CopiedUntil) {
				return oplog.OpTime{}, 0
			}
			return ot(at), int64(at) * 1000
		}
		got := g.Reached(p)
		if at, wall := want(applied); got.Applied != at || got.AppliedWall != wall {
			t.Errorf("applied %s, %d; want %s, %d", got.Applied, got.AppliedWall, at, wall)
		}
		if at, wall := want(durable); got.Durable != at || got.DurableWall != wall {
			t.Errorf("durable %s, %d; want %s, %d", got.Durable, got.DurableWall, at, wall)
		}
		if got.FetchFrom != p.FetchFrom || got.Ops != p.Ops {
			t.Errorf("got %+v of %+v", got, p)
		}
	})
}

// TestBeginTellsReached: from the start, the metric of the newest checkpoint has the
// position to report, not the one up to which the oplog was applied.
func TestBeginTellsReached(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	told := func(s *Store) float64 { return testutil.ToFloat64(s.metrics.applied) }

	_, s, _ := copying(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	must.Get(s.Acquire(ctx, 0))(t)
	if got := told(s); got != 0 {
		t.Errorf("%v while it is copied", got)
	}

	g := &target{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}
	createData(t, g)
	s = link(t, g)
	st := first(2)
	st.CopiedUntil = oplog.OpTime{}
	must.Succeed(t, s.Create(ctx, st))
	h := must.Get(s.Acquire(ctx, 0))(t)
	since := float64(h.State().AppliedWall) / 1000
	if got := told(s); got != since {
		t.Errorf("%v of a new link, want %v", got, since)
	}
	out := LeftOut{NS: "d.b", Since: st.Applied, Wall: st.AppliedWall, Asked: time.UnixMilli(1).UTC(), Target: bson.Timestamp{T: 7, I: 2}}
	must.Succeed(t, h.ChangeLeftOut(ctx, func(mongo.Caller, []LeftOut) ([]LeftOut, error) { return []LeftOut{out}, nil }))
	later := Progress{Applied: ot(st.Applied.TS.T + 5), AppliedWall: st.AppliedWall + 5000, FetchFrom: ot(st.Applied.TS.T + 5)}
	must.Succeed(t, h.Advance(ctx, later, make([]Position, 2), Source{SetName: "rs0"}))
	must.Get(s.Acquire(ctx, 0))(t)
	if got := told(s); got != since {
		t.Errorf("%v with a collection left out at %v", got, since)
	}
}
