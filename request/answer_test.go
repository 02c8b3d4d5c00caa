package request

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

// linkDocument returns the document of the link a.
func linkDocument(ctx context.Context, t *testing.T, target mongo.Caller) bson.Raw {
	t.Helper()
	return must[bson.Raw](t)(metadata.FindOne(ctx, target, "replicator", metadata.Links, metadata.ByID("a")))
}

// TestLeaveOut: a collection that is left out stays in the link's document with the same
// checkpoint, through failures, new requests and restarts, until its request is done.
func TestLeaveOut(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	g := newTarget(t)
	s, h := create(t, g)
	requests := New(s)
	since, wall := h.State().Applied, h.State().AppliedWall
	is := func(when string, want ...checkpoint.LeftOut) {
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
	request := func(ns oplog.Namespace, asked int64) Resync {
		return Resync{NS: ns, Asked: time.UnixMilli(asked).UTC()}
	}
	succeed(t, requests.Resync(ctx, "d.b"))
	succeed(t, requests.LeaveOut(ctx, h, request("d.b", 1)))
	b := checkpoint.LeftOut{NS: "d.b", Since: since, Wall: wall, Asked: time.UnixMilli(1).UTC()}
	is("left out", b)
	if w := must[Requests](t)(requests.Read(ctx)); len(w.Resync) != 1 || w.Resync[0].State != Copying {
		t.Errorf("requests %+v", w)
	}
	later := checkpoint.Progress{Applied: at(since.TS.T + 5), AppliedWall: wall + 5000, FetchFrom: at(since.TS.T + 5)}
	succeed(t, h.Advance(ctx, later, make([]checkpoint.Position, 1), checkpoint.Source{SetName: "rs0"}))
	succeed(t, requests.Answer(ctx, h, "d.b", Failed, "x"))
	b.Failed = "x"
	is("failed", b)

	h = must[*checkpoint.Link](t)(s.Acquire(ctx, 0))
	is("another start", b)
	succeed(t, requests.LeaveOut(ctx, h, request("d.b", 3)))
	succeed(t, requests.LeaveOut(ctx, h, request("d.a", 2)))
	b.Failed, b.Asked = "", time.UnixMilli(3).UTC()
	a := checkpoint.LeftOut{NS: "d.a", Since: later.Applied, Wall: later.AppliedWall, Asked: time.UnixMilli(2).UTC()}
	is("asked for anew", a, b)
	st, _, err := s.Load(ctx)
	succeed(t, err)
	if at := st.Reached(); at.Applied != since && !st.CopiedUntil.After(since) || st.Applied != later.Applied {
		t.Errorf("reached %s, applied %s, left out at %s", at.Applied, st.Applied, since)
	}
	if is, told := linkDocument(ctx, t, g).Lookup("consistent").BooleanOK(); !told || is {
		t.Error("it is not said that the target is not consistent")
	}
	succeed(t, requests.Answer(ctx, h, "d.b", Copying, "half"))
	succeed(t, requests.Answer(ctx, h, "d.b", Done, ""))
	is("one is done", a)
	succeed(t, requests.Answer(ctx, h, "d.a", Done, ""))
	is("all are done")
	for _, name := range []string{"leftOut", "consistent"} {
		if v, err := linkDocument(ctx, t, g).LookupErr(name); err == nil {
			t.Errorf("%s is %s", name, v)
		}
	}
	// Requested again while it is copied, because its data may have been damaged, it stays
	// left out, with the first Since.
	succeed(t, requests.LeaveOut(ctx, h, request("d.b", 5)))
	b = checkpoint.LeftOut{NS: "d.b", Since: later.Applied, Wall: later.AppliedWall, Asked: time.UnixMilli(5).UTC()}
	succeed(t, requests.Resync(ctx, "d.b"))
	succeed(t, requests.Answer(ctx, h, "d.b", Copying, ""))
	succeed(t, requests.ResyncAgain(ctx, "d.b"))
	succeed(t, requests.Answer(ctx, h, "d.b", Done, ""))
	is("to be copied once more", b)
	succeed(t, requests.Answer(ctx, h, "d.b", Copying, ""))
	succeed(t, requests.Answer(ctx, h, "d.b", Done, ""))
	is("copied once more")

	old := h
	must[*checkpoint.Link](t)(links(t, g, "a").Acquire(ctx, 0))
	wantError(t, requests.LeaveOut(ctx, old, request("d.c", 1)), lease.ErrFenced)
}
