package checkpoint

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
)

// loseFlush flushes on a lane with w: 1 on a partitioned primary, and makes another
// member primary, so that the flush rolls back.
func loseFlush(ctx context.Context, t *testing.T, g *target, l *Lane, next Position) {
	t.Helper()
	g.Lose(ctx, t, func() { flush(ctx, t, l, next, "lost") })
	if has(ctx, t, g, "lost") {
		t.Fatal("the flush was not rolled back")
	}
}

// TestRewound: the first method that notices that the target lost a flush returns
// ErrRewound, and after the next Acquire the flush is written again.
func TestRewound(t *testing.T) {
	t.Parallel()
	barrier := func(h *Link) *Lane { return h.Barrier() }
	idle := func(h *Link) *Lane { return h.Lane(1) }
	for name, c := range map[string]struct {
		lost  func(h *Link) *Lane
		found func(ctx context.Context, h *Link) error
	}{
		"the lane's next flush": {idle, func(ctx context.Context, h *Link) error {
			return h.Lane(1).Move(ctx, h.Lane(1).Session().Begin(), at(106, 0))
		}},
		"the checkpoint, while the lane is idle": {idle, func(ctx context.Context, h *Link) error {
			return h.Advance(ctx, progress(105), positions(h), Source{})
		}},
		"a barrier transaction": {idle, func(ctx context.Context, h *Link) error {
			txn := h.Barrier().Session().Begin()
			if err := h.Barrier().Move(ctx, txn, at(106, 0)); err != nil {
				return err
			}
			return h.Verify(ctx, txn, positions(h))
		}},
		"a barrier command": {idle, func(ctx context.Context, h *Link) error {
			return h.Barrier().Announce(ctx, at(106, 0), positions(h))
		}},
		"the lane's own command": {idle, func(ctx context.Context, h *Link) error {
			return h.Lane(1).Announce(ctx, at(106, 0), nil)
		}},
		"resizing": {idle, func(ctx context.Context, h *Link) error {
			return h.Resize(ctx, progress(105), 4)
		}},
		"a flush of a writer that waited for the lost barrier": {barrier, func(ctx context.Context, h *Link) error {
			return h.Lane(0).Move(ctx, h.Lane(0).Session().Begin(), at(106, 0))
		}},
		"a flush of a writer that waited for the lost barrier, sent without waiting": {barrier, func(ctx context.Context, h *Link) error {
			l := h.Lane(0)
			return l.MoveWith(ctx, l.Session().Begin(), at(106, 0), []mongo.Command{insert("next")}, func(int, bson.Raw) error { return nil })
		}},
		"a command of a writer that waited for the lost barrier": {barrier, func(ctx context.Context, h *Link) error {
			return h.Lane(0).Announce(ctx, at(106, 0), nil)
		}},
		"the checkpoint, after a lost barrier": {barrier, func(ctx context.Context, h *Link) error {
			return h.Advance(ctx, progress(105), positions(h), Source{})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := within(t)
			g, s, h := begun(t, mongosim.Options{Members: 3, Seed: 1}, 2)
			flush(ctx, t, h.Lane(0), at(101, 0), "kept-0")
			flush(ctx, t, h.Lane(1), at(102, 0), "kept-1")
			flush(ctx, t, h.Barrier(), at(103, AllOps), "kept-barrier")
			flush(ctx, t, h.Lane(0), at(104, 0), "kept-2") // has seen the barrier
			must.Succeed(t, h.Advance(ctx, progress(103), positions(h), Source{}))
			lane := c.lost(h)
			was := lane.Position()
			loseFlush(ctx, t, g, lane, at(105, 0))

			must.Fail(t, c.found(ctx, h), lease.ErrRewound)
			again := must.Get(s.Acquire(ctx, h.Term()))(t)
			if got := c.lost(again).Position(); got != was {
				t.Fatalf("the lane is at %s, it was at %s before the lost flush", got, was)
			}
			if got := again.State().Applied; got != ot(103) {
				t.Errorf("the checkpoint is at %s", got)
			}
			flush(ctx, t, c.lost(again), at(105, 0), "lost")
			flush(ctx, t, again.Lane(0), at(106, 0), "next")
			must.Succeed(t, again.Advance(ctx, progress(106), positions(again), Source{}))
		})
	}
}

// TestSeenBarrier: a writer reads the barrier in its first flush after that has moved, and
// not again.
func TestSeenBarrier(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, _, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	finds := 0
	g.Intercept(counting("find", &finds))
	l := h.Lane(0)
	flush(ctx, t, l, at(101, 0), "a")
	if finds != 0 {
		t.Errorf("%d finds before the barrier moved", finds)
	}
	flush(ctx, t, h.Barrier(), at(102, 0), "b")
	aborted := open(ctx, t, l, at(103, 0), "c")
	aborted.Abort(ctx)
	if finds != 1 {
		t.Errorf("%d finds after the barrier moved", finds)
	}
	flush(ctx, t, l, at(103, 0), "c")
	if finds != 2 {
		t.Errorf("%d finds after a transaction that was not committed", finds)
	}
	flush(ctx, t, l, at(104, 0), "d")
	if finds != 2 {
		t.Errorf("%d finds after one that was", finds)
	}
}
