package checkpoint

import (
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestBegunGoesWithCopy: operations that were announced for a void copy are not begun for the next one, whose entries are
// applied to other documents.
func TestBegunGoesWithCopy(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, _, h := copying(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	must.Succeed(t, h.Lane(0).Announce(ctx, at(110, AllOps), nil))
	must.Succeed(t, h.Barrier().Announce(ctx, at(120, 0), positions(h)))
	next := *h.State().Copy
	next.Number++
	must.Succeed(t, h.BeginCopy(ctx, next, 1))
	st := must.Get(link(t, g).Acquire(ctx, 0))(t).State()
	if st.LanesAnnounced[0] != (Position{}) || st.Announced != (Position{}) {
		t.Errorf("begun up to %v, the barrier %v", st.LanesAnnounced, st.Announced)
	}
}
