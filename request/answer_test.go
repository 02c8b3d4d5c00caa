package request

import (
	"context"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

// linkDocument returns the document of the link a.
func linkDocument(ctx context.Context, t *testing.T, target mongo.Caller) bson.Raw {
	t.Helper()
	return must.Get(metadata.FindOne(ctx, target, "replicator", metadata.Links, metadata.ByID("a")))(t)
}

// leaving is a link whose collections are left out.
type leaving struct {
	*testing.T
	s        *checkpoint.Store
	h        *checkpoint.Link
	requests *Store
}

func startLeaving(t *testing.T) (*leaving, mongo.Caller) {
	t.Helper()
	g := newTarget(t)
	s, h := create(t, g)
	return &leaving{T: t, s: s, h: h, requests: New(s)}, g
}

// is compares the collections that are left out, in the target and as the link has them.
func (l *leaving) is(when string, want ...checkpoint.LeftOut) {
	l.Helper()
	st, _, err := l.s.Load(l.Context())
	must.Succeed(l.T, err)
	for _, got := range [][]checkpoint.LeftOut{st.LeftOut, l.h.Gaps().LeftOut} {
		got = slices.Clone(got)
		for i := range got {
			if got[i].Target.IsZero() {
				l.Errorf("%s: %+v: it is not known which writes were before the copy", when, got[i])
			}
			got[i].Target = bson.Timestamp{}
		}
		if !slices.Equal(got, want) {
			l.Errorf("%s: %+v, want %+v", when, got, want)
		}
	}
}

// leaveOut leaves a collection out for a request of that time.
func (l *leaving) leaveOut(ns oplog.Namespace, asked int64) {
	l.Helper()
	must.Succeed(l.T, l.requests.LeaveOut(l.Context(), l.h, Resync{NS: ns, Asked: time.UnixMilli(asked).UTC()}))
}

func (l *leaving) answer(ns oplog.Namespace, state, why string) {
	l.Helper()
	must.Succeed(l.T, l.requests.Answer(l.Context(), l.h, ns, state, why))
}

// TestLeaveOut: a collection that is left out stays in the link's document with the same
// checkpoint, through failures, new requests and restarts, until its request is done.
func TestLeaveOut(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l, g := startLeaving(t)
	since, wall := l.h.State().Applied, l.h.State().AppliedWall
	must.Succeed(t, l.requests.Resync(ctx, "d.b"))
	l.leaveOut("d.b", 1)
	b := checkpoint.LeftOut{NS: "d.b", Since: since, Wall: wall, Asked: time.UnixMilli(1).UTC()}
	l.is("left out", b)
	if w := must.Get(l.requests.Read(ctx))(t); len(w.Resync) != 1 || w.Resync[0].State != Copying {
		t.Errorf("requests %+v", w)
	}
	later := checkpoint.Progress{Applied: at(since.TS.T + 5), AppliedWall: wall + 5000, FetchFrom: at(since.TS.T + 5)}
	must.Succeed(t, l.h.Advance(ctx, later, make([]checkpoint.Position, 1), checkpoint.Source{SetName: "rs0"}))
	l.answer("d.b", Failed, "x")
	b.Failed = "x"
	l.is("failed", b)

	l.h = must.Get(l.s.Acquire(ctx, 0))(t)
	l.is("another start", b)
	l.leaveOut("d.b", 3)
	l.leaveOut("d.a", 2)
	b.Failed, b.Asked = "", time.UnixMilli(3).UTC()
	a := checkpoint.LeftOut{NS: "d.a", Since: later.Applied, Wall: later.AppliedWall, Asked: time.UnixMilli(2).UTC()}
	l.is("asked for anew", a, b)
	st, _, err := l.s.Load(ctx)
	must.Succeed(t, err)
	if at := st.Reached(); at.Applied != since && !st.CopiedUntil.After(since) || st.Applied != later.Applied {
		t.Errorf("reached %s, applied %s, left out at %s", at.Applied, st.Applied, since)
	}
	if is, told := linkDocument(ctx, t, g).Lookup("consistent").BooleanOK(); !told || is {
		t.Error("it is not said that the target is not consistent")
	}
	l.answer("d.b", Copying, "half")
	l.answer("d.b", Done, "")
	l.is("one is done", a)
	l.answer("d.a", Done, "")
	l.is("all are done")
	for _, name := range []string{"leftOut", "consistent"} {
		if v, err := linkDocument(ctx, t, g).LookupErr(name); err == nil {
			t.Errorf("%s is %s", name, v)
		}
	}
}

// TestLeaveOutAgain: requested again while it is copied, because its data may have been
// damaged, a collection stays left out, with the first Since.
func TestLeaveOutAgain(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l, g := startLeaving(t)
	b := checkpoint.LeftOut{NS: "d.b", Since: l.h.State().Applied, Wall: l.h.State().AppliedWall, Asked: time.UnixMilli(5).UTC()}
	l.leaveOut("d.b", 5)
	must.Succeed(t, l.requests.Resync(ctx, "d.b"))
	l.answer("d.b", Copying, "")
	must.Succeed(t, l.requests.ResyncAgain(ctx, "d.b"))
	l.answer("d.b", Done, "")
	l.is("to be copied once more", b)
	l.answer("d.b", Copying, "")
	l.answer("d.b", Done, "")
	l.is("copied once more")

	must.Get(links(t, g, "a").Acquire(ctx, 0))(t)
	must.Fail(t, l.requests.LeaveOut(ctx, l.h, Resync{NS: "d.c"}), lease.ErrFenced)
}

// TestLeaveOutAt: a copy deals with what the target had as it was asked for, as far as that was committed;
// an attempt that continues the copy does not change that.
func TestLeaveOutAt(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	l, g := startLeaving(t)
	newest := func() bson.Timestamp {
		return must.Get(replset.NewestEntry(ctx, g, replset.Majority))(t).OpTime.TS
	}
	target := func(asked int64) bson.Timestamp {
		before := newest()
		l.leaveOut("d.b", asked)
		at := l.h.Gaps().LeftOut[0].Target
		if at.After(newest()) {
			t.Errorf("%v is later than the request", at)
		}
		if at.Before(before) {
			return bson.Timestamp{}
		}
		return at
	}
	first := target(1)
	if first.IsZero() {
		t.Error("what was written before it counts as later")
	}
	l.h = must.Get(l.s.Acquire(ctx, 0))(t)
	if target(1); l.h.Gaps().LeftOut[0].Target != first {
		t.Errorf("what was written during the copy counts as earlier: %+v, at first %v", l.h.Gaps().LeftOut, first)
	}
	if again := target(2); !again.After(first) {
		t.Errorf("what was written before another copy counts as later: %v, that of the first is at %v", again, first)
	}
	blind := &unshown{Caller: g}
	s := New(links(t, mongo.Caller(blind), "a"))
	must.Succeed(t, s.LeaveOut(ctx, l.h, Resync{NS: "d.b", Asked: time.UnixMilli(3).UTC()}))
	if at := l.h.Gaps().LeftOut[0].Target; !at.IsZero() {
		t.Errorf("a target that does not show its oplog: %v", at)
	}
}

// unshown is a target that does not show its oplog.
type unshown struct{ mongo.Caller }

// Call implements mongo.Caller.
func (u *unshown) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if cmd.DB == "local" {
		return nil, servererr.New(servererr.Unauthorized, "not authorized")
	}
	return u.Caller.Call(ctx, cmd)
}
