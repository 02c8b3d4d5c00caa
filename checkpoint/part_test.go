package checkpoint

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
)

// TestCreatePart: the link of a part is created for a collection that the link leaves out, for that request, once, and by the
// process that has the link's lease.
func TestCreatePart(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 1)
	part := must.Get(New(Config{Target: g, Link: "resync-1", Of: "a"}))(t)
	asked := time.UnixMilli(1_700_000_000_123).UTC()
	leaveOut := func(h *Link, list ...LeftOut) {
		t.Helper()
		must.Succeed(t, h.ChangeLeftOut(ctx, func(mongo.Caller, []LeftOut) ([]LeftOut, error) { return list, nil }))
	}
	create := func(h *Link) error { return h.CreatePart(ctx, part, "d.c", asked, first(1)) }
	refused := func(what string, h *Link, want error) {
		t.Helper()
		if err := create(h); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	out := LeftOut{NS: "d.c", Since: ot(100), Wall: 1, Asked: asked}
	refused("it leaves out nothing", h, ErrNotLeftOut)
	other, failed := out, out
	other.Asked, failed.Failed = asked.Add(time.Millisecond), "planted"
	leaveOut(h, other)
	refused("for another request", h, ErrNotLeftOut)
	leaveOut(h, failed)
	refused("it has failed", h, ErrNotLeftOut)
	leaveOut(h, out)

	next := must.Get(link(t, g).Acquire(ctx, 0))(t)
	refused("another process has the lease", h, lease.ErrFenced)
	if parts := must.Get(s.Parts(ctx))(t); len(parts) != 0 {
		t.Fatalf("the part was created: %v", parts)
	}
	must.Succeed(t, create(next))
	if parts := must.Get(s.Parts(ctx))(t); !slices.Equal(parts, []string{"resync-1"}) {
		t.Errorf("parts %v", parts)
	}
	refused("it exists", next, ErrExists)
	must.Succeed(t, next.Check(ctx))
	must.Get(part.Acquire(ctx, 0))(t)
	must.Succeed(t, part.Remove(ctx))
	next.lease.Spend()
	refused("its lease is spent", next, lease.ErrSpent)
	ended, cancel := context.WithCancelCause(ctx)
	stopped := errors.New("ended")
	cancel(stopped)
	must.Fail(t, must.Get(link(t, g).Acquire(ctx, 0))(t).CreatePart(ended, part, "d.c", asked, first(1)), stopped)
	if parts := must.Get(s.Parts(ctx))(t); len(parts) != 0 {
		t.Errorf("the part was created: %v", parts)
	}
}
