package checkpoint

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// leftOuts draws what a link leaves out, at least one.
func leftOuts() *rapid.Generator[[]LeftOut] {
	return rapid.Custom(func(t *rapid.T) []LeftOut {
		var list []LeftOut
		for _, ns := range rapid.SliceOfNDistinct(rapid.SampledFrom([]oplog.Namespace{"a.a", "a.b", "b.c$.x", "d.\u00e9"}), 1, 4, rapid.ID).Draw(t, "names") {
			since := rapid.Uint32Range(1, 30).Draw(t, "since")
			list = with(list, LeftOut{
				NS: ns, Since: ot(since), Wall: int64(since) * 1000,
				Asked: time.UnixMilli(rapid.Int64Range(0, 1<<40).Draw(t, "asked")).UTC(), Failed: rapid.String().Draw(t, "failed"),
			})
		}
		return list
	})
}

// TestReached: what may be reported is never beyond any of what is missing, is with
// the wall time of its entry, and is nothing where the target is not consistent.
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

// TestLeaveOut: what is left out is in the link's document from one checkpoint on,
// through failures, new requests and starts, until it is done.
func TestLeaveOut(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	since, wall := h.State().Applied, h.State().AppliedWall
	is := func(when string, want ...LeftOut) {
		t.Helper()
		st, _, err := s.Load(ctx)
		succeed(t, err)
		gaps := h.Gaps()
		if len(st.LeftOut) != len(want) || len(gaps.LeftOut) != len(want) {
			t.Fatalf("%s: %+v and %+v, want %+v", when, st.LeftOut, gaps.LeftOut, want)
		}
		for i := range want {
			if st.LeftOut[i] != want[i] || gaps.LeftOut[i] != want[i] {
				t.Errorf("%s: %+v and %+v, want %+v", when, st.LeftOut[i], gaps.LeftOut[i], want[i])
			}
		}
	}
	request := func(ns oplog.Namespace, asked int64) ResyncRequest {
		return ResyncRequest{NS: ns, Asked: time.UnixMilli(asked).UTC()}
	}
	succeed(t, s.RequestResync(ctx, "d.b"))
	succeed(t, h.LeaveOut(ctx, request("d.b", 1)))
	b := LeftOut{NS: "d.b", Since: since, Wall: wall, Asked: time.UnixMilli(1).UTC()}
	is("left out", b)
	if w := must[Requests](t)(s.ReadRequests(ctx)); len(w.Resync) != 1 || w.Resync[0].State != ResyncCopying {
		t.Errorf("requests %+v", w)
	}
	later := Progress{Applied: ot(since.TS.T + 5), AppliedWall: wall + 5000, FetchFrom: ot(since.TS.T + 5)}
	succeed(t, h.Advance(ctx, later, make([]Position, 2), Source{SetName: "rs0"}))
	succeed(t, h.TellResync(ctx, "d.b", ResyncFailed, "x"))
	b.Failed = "x"
	is("failed", b)

	h = must[*Link](t)(s.Acquire(ctx, 0))
	is("another start", b)
	succeed(t, h.LeaveOut(ctx, request("d.b", 3)))
	succeed(t, h.LeaveOut(ctx, request("d.a", 2)))
	b.Failed, b.Asked = "", time.UnixMilli(3).UTC()
	a := LeftOut{NS: "d.a", Since: later.Applied, Wall: later.AppliedWall, Asked: time.UnixMilli(2).UTC()}
	is("asked for anew", a, b)
	st, _, err := s.Load(ctx)
	succeed(t, err)
	if at := st.Reached(); at.Applied != since && !st.CopiedUntil.After(since) || st.Applied != later.Applied {
		t.Errorf("reached %s, applied %s, left out at %s", at.Applied, st.Applied, since)
	}
	if is, told := linkDocument(ctx, t, g).Lookup("consistent").BooleanOK(); !told || is {
		t.Error("it is not said that the target is not consistent")
	}
	succeed(t, h.TellResync(ctx, "d.b", ResyncCopying, "half"))
	succeed(t, h.TellResync(ctx, "d.b", ResyncDone, ""))
	is("one is done", a)
	succeed(t, h.TellResync(ctx, "d.a", ResyncDone, ""))
	is("all are done")
	for _, name := range []string{"leftOut", "consistent"} {
		if v, err := linkDocument(ctx, t, g).LookupErr(name); err == nil {
			t.Errorf("%s is %s", name, v)
		}
	}
	// Asked for again while it is copied, as what it has may have been damaged just now,
	// it stays left out since it first was.
	succeed(t, h.LeaveOut(ctx, request("d.b", 5)))
	b = LeftOut{NS: "d.b", Since: later.Applied, Wall: later.AppliedWall, Asked: time.UnixMilli(5).UTC()}
	succeed(t, s.RequestResync(ctx, "d.b"))
	succeed(t, h.TellResync(ctx, "d.b", ResyncCopying, ""))
	succeed(t, s.RequestResyncAgain(ctx, "d.b"))
	succeed(t, h.TellResync(ctx, "d.b", ResyncDone, ""))
	is("to be copied once more", b)
	succeed(t, h.TellResync(ctx, "d.b", ResyncCopying, ""))
	succeed(t, h.TellResync(ctx, "d.b", ResyncDone, ""))
	is("copied once more")

	old := h
	must[*Link](t)(link(t, g).Acquire(ctx, 0))
	wantError(t, old.LeaveOut(ctx, request("d.c", 1)), lease.ErrFenced)
}

// TestBeginTellsReached: the metric of the newest checkpoint says from the start what
// the target has, not how far the log was applied.
func TestBeginTellsReached(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	told := func(s *Store) float64 { return testutil.ToFloat64(s.metrics.applied) }

	_, s, _ := copying(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	must[*Link](t)(s.Acquire(ctx, 0))
	if got := told(s); got != 0 {
		t.Errorf("%v while it is copied", got)
	}

	g := &target{set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}
	createData(t, g)
	s = link(t, g)
	st := first(2)
	st.CopiedUntil = oplog.OpTime{}
	succeed(t, s.Create(ctx, st))
	h := must[*Link](t)(s.Acquire(ctx, 0))
	since := float64(h.State().AppliedWall) / 1000
	if got := told(s); got != since {
		t.Errorf("%v of a new link, want %v", got, since)
	}
	succeed(t, s.RequestResync(ctx, "d.b"))
	succeed(t, h.LeaveOut(ctx, ResyncRequest{NS: "d.b", Asked: time.UnixMilli(1).UTC()}))
	later := Progress{Applied: ot(st.Applied.TS.T + 5), AppliedWall: st.AppliedWall + 5000, FetchFrom: ot(st.Applied.TS.T + 5)}
	succeed(t, h.Advance(ctx, later, make([]Position, 2), Source{SetName: "rs0"}))
	must[*Link](t)(s.Acquire(ctx, 0))
	if got := told(s); got != since {
		t.Errorf("%v with a collection left out at %v", got, since)
	}
}
