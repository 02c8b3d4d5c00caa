package checkpoint

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
)

// cut makes a cut and confirms it.
func cut(t *testing.T, h *Link, seconds uint32) Cut {
	t.Helper()
	c := must.Get(h.Barrier().Cut(t.Context(), ot(seconds), int64(seconds)*1000, positions(h)))(t)
	if !must.Get(h.Confirm(t.Context(), c))(t) {
		t.Fatalf("the cut at %s is gone", c.Source)
	}
	return c
}

// The cluster time of a cut is after all flushes before it, and before all that follow.
func TestCutTime(t *testing.T) {
	ctx := within(t)
	g, _, h := begun(t, mongosim.Options{Members: 1}, 2)
	flush(ctx, t, h.Lane(0), at(130, 0), "before")
	c := cut(t, h, 130)
	flush(ctx, t, h.Lane(1), at(131, 0), "after")
	for id, want := range map[string]bool{"before": true, "after": false} {
		find := metadata.Find("data", "c", 1, metadata.ByID(id))
		find.Body = must.Get(bson.Marshal(append(must.Get(toD(find.Body))(t), bson.E{Key: "readConcern", Value: bson.D{
			{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: c.Target},
		}})))(t)
		reply := must.Get(g.Call(ctx, find))(t)
		if got := len(must.Get(metadata.Found(reply))(t)) > 0; got != want {
			t.Errorf("at the cut, %q is there: %t, want %t", id, got, want)
		}
	}
}

func toD(doc bson.Raw) (d bson.D, err error) {
	err = bson.Unmarshal(doc, &d)
	return d, err
}

// A process that has lost the lease makes no cut, and neither does one whose target has
// lost what a lane had acknowledged.
func TestCutRefused(t *testing.T) {
	ctx := within(t)
	_, s, h := begun(t, mongosim.Options{Members: 1}, 2)
	c := cut(t, h, 110)
	lost := positions(h)
	lost[1] = at(140, 0)
	if _, err := h.Barrier().Cut(ctx, ot(140), 0, lost); !errors.Is(err, lease.ErrRewound) {
		t.Errorf("a cut without what a lane had acknowledged: %v", err)
	}
	if _, err := h.Lane(0).Cut(ctx, ot(140), 0, positions(h)); !errors.Is(err, errNotBarrier) {
		t.Errorf("a cut by a lane: %v", err)
	}
	next := must.Get(s.Acquire(ctx, h.Term()))(t)
	if _, err := h.Barrier().Cut(ctx, ot(140), 0, positions(h)); !errors.Is(err, lease.ErrFenced) {
		t.Errorf("a cut of an earlier term: %v", err)
	}
	list := must.Get(next.OpenCuts(ctx))(t)
	if len(list) != 1 || list[0].Target != c.Target || list[0].Source != c.Source || list[0].SourceWall != 110_000 || list[0].At.UnixMilli() != c.At.UnixMilli() {
		t.Errorf("listed: %v, want %v", list, c)
	}
}

// A cut is confirmed as long as its record is the last one, and the metadata list the
// newest cuts of all terms.
func TestCutConfirmed(t *testing.T) {
	ctx := within(t)
	_, s, h := begun(t, mongosim.Options{Members: 1}, 2)
	must.Get(h.OpenCuts(ctx))(t)
	old := must.Get(h.Barrier().Cut(ctx, ot(101), 0, positions(h)))(t)
	cut(t, h, 102)
	if there, err := h.Confirm(ctx, old); there || err != nil {
		t.Errorf("a cut whose record is gone: %t, %v", there, err)
	}
	next := must.Get(s.Acquire(ctx, h.Term()))(t)
	must.Get(next.OpenCuts(ctx))(t)
	for i := range uint32(9) {
		cut(t, next, 103+i)
	}
	list := must.Get(s.Cuts(ctx))(t)
	if len(list) != keptCuts || list[0].Source != ot(111) || list[9].Source != ot(102) {
		t.Errorf("listed: %v", list)
	}
	cut(t, next, 112)
	if list := must.Get(s.Cuts(ctx))(t); len(list) != keptCuts || list[9].Source != ot(103) {
		t.Errorf("listed: %v", list)
	}
	must.Succeed(t, s.Remove(ctx))
	if list := must.Get(s.Cuts(ctx))(t); len(list) > 0 {
		t.Errorf("left of a link that was removed: %v", list)
	}
}

// A cut stays one if another process takes the link over before it is confirmed: that process lists
// it, too, unless it has made one of its own meanwhile.
func TestCutTakenOver(t *testing.T) {
	ctx := within(t)
	_, s, h := begun(t, mongosim.Options{Members: 1}, 2)
	must.Get(h.OpenCuts(ctx))(t)
	flush(ctx, t, h.Lane(0), at(130, 0), "before")
	late := must.Get(h.Barrier().Cut(ctx, ot(130), 0, positions(h)))(t)
	next := must.Get(s.Acquire(ctx, h.Term()))(t)
	if there, err := h.Confirm(ctx, late); !there || err != nil {
		t.Errorf("%t, %v", there, err)
	}
	must.Get(next.OpenCuts(ctx))(t)
	own := cut(t, next, 131)
	list := must.Get(s.Cuts(ctx))(t)
	if len(list) != 2 || list[0].Target != own.Target || list[1].Target != late.Target {
		t.Errorf("listed: %v", list)
	}
	if there, err := h.Confirm(ctx, late); there || err != nil {
		t.Errorf("confirmed over a newer one: %t, %v", there, err)
	}
}
