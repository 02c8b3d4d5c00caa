package checkpoint

import (
	"errors"
	"testing"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
)

// TestMoveCopy: each move to another member is counted, in the target too: the end of a copy depends on whether it was
// read from one member only.
func TestMoveCopy(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, _, h := copying(t, mongosim.Options{Members: 1, Seed: 1}, 1)
	for n, host := range []string{"b:1", "c:1", "c:1"} {
		next := *h.Copy()
		next.Host, next.RBID = host, int64(n)
		must.Succeed(t, h.MoveCopy(ctx, next, func(*mongo.Txn) error { return nil }))
		if c := h.Copy(); c.Moves != int64(n+1) || c.Host != host || c.RBID != int64(n) {
			t.Errorf("move %d: %+v", n, c)
		}
	}
	if c := must.Get(link(t, g).Acquire(ctx, 0))(t).Copy(); c.Moves != 3 || c.Host != "c:1" {
		t.Errorf("found by the next term: %+v", c)
	}
}

// TestMoveCopyUnknown: a move whose outcome was unknown, and that was made, is not undone by a later change.
func TestMoveCopyUnknown(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, _, h := copying(t, mongosim.Options{Members: 1, Seed: 1}, 1)
	lost := errors.New("lost")
	g.Intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == "commitTransaction" {
			return &mongo.LostError{Err: lost}, true
		}
		return nil, false
	})
	next := *h.Copy()
	next.Host = "b:1"
	must.Fail(t, h.MoveCopy(ctx, next, func(*mongo.Txn) error { return nil }), lost)
	g.Intercept(nil)
	cleared := *h.Copy()
	cleared.Cleared = true
	must.Fail(t, h.UpdateCopy(ctx, cleared, nil), ErrAhead)
	if c := must.Get(link(t, g).Acquire(ctx, 0))(t).Copy(); c.Moves != 1 || c.Host != "b:1" || c.Cleared {
		t.Errorf("found by the next term: %+v", c)
	}
}
