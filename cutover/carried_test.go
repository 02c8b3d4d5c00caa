package cutover_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/testkit/must"
	results "github.com/oplogrep/replicator/verify/standing"
)

// TestBackCarriesDivergences: collections that are known to differ as applications move differ afterwards, too: the way back has the open divergences of
// the link before it, by its own names, and at its start. Those of an earlier link of its name are gone.
func TestBackCarriesDivergences(t *testing.T) {
	t.Parallel()
	s := newSides(t)
	ctx, met := t.Context(), time.UnixMilli(1_000_000).UTC()
	earlier := checkpoint.Diverged{NS: "shop.old", Source: "shop.old", Ops: 9, First: bson.Timestamp{T: 1}, Last: bson.Timestamp{T: 1}, Since: met, Until: met, What: "of long ago"}
	must.Succeed(t, metadata.Run(ctx, s.last, metadata.Update("replicator", metadata.Diverged, earlier.Statement("back", "", "0")), -1))
	d := checkpoint.Diverged{
		NS: "new.c", Source: "shop.c", Ops: 2, First: bson.Timestamp{T: 3}, Last: bson.Timestamp{T: 1<<32 - 2}, Op: 4, Since: met, Until: met.Add(time.Second), What: "the update found no document",
	}
	more := d
	more.Ops = 3
	must.Succeed(t, metadata.Run(ctx, s.next, metadata.Update("replicator", metadata.Diverged, d.Statement("dr", "", "0"), more.Statement("dr", "", "1")), -1))

	must.Succeed(t, s.begin(s.last))
	must.Succeed(t, s.begin(s.last))
	state := s.back()
	d.NS, d.Source, d.Ops, d.Op, d.What = "shop.c", "new.c", 5, 0, "before the cutover of link dr: the update found no document"
	d.First, d.Last = state.Applied.TS, state.Applied.TS
	got := must.Get(results.Read(ctx, s.last, "replicator", "back"))(t)
	if diff := cmp.Diff([]checkpoint.Diverged{d}, got.Diverged); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if left := must.Get(results.Read(ctx, s.next, "replicator", "dr"))(t); len(left.Diverged) != 1 {
		t.Errorf("the link that has ended has %v", left.Diverged)
	}
}

// back returns the state of the link back.
func (s *sides) back() checkpoint.State {
	s.t.Helper()
	store := must.Get(checkpoint.New(checkpoint.Config{Target: s.last, Link: "back"}))(s.t)
	state, found, err := store.Load(s.t.Context())
	if err != nil || !found {
		s.t.Fatal(found, err)
	}
	return state
}
