package checkpoint

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// TestAdvanceFromElsewhere: Advance only changes the link's document from the state in
// which this Link left it.
func TestAdvanceFromElsewhere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		is   uint32
		want error
	}{"rewound": {101, lease.ErrRewound}, "ahead": {103, ErrAhead}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := within(t)
			g, s, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
			must.Succeed(t, h.Advance(ctx, progress(101), positions(h), Source{}))
			must.Succeed(t, h.Advance(ctx, progress(102), positions(h), Source{}))
			must.Get(g.Call(ctx, metadata.Majority(metadata.Update("replicator", metadata.Links, metadata.Statement{
				Filter: metadata.ByID("a"), Change: func(dst []byte) []byte {
					return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return metadata.AppendOpTime(dst, "applied", ot(c.is)) })
				},
			}))))(t)
			must.Fail(t, h.Advance(ctx, progress(104), positions(h), Source{}), c.want)
			state, _, err := s.Load(ctx)
			must.Succeed(t, err)
			if state.Applied != ot(c.is) {
				t.Errorf("it was moved from %s to %s", ot(c.is), state.Applied)
			}
			must.Fail(t, h.SetRouting(ctx, 7), c.want)
		})
	}
}

// TestBegunStays: operations that an earlier term had begun stay begun if a later term
// begins fewer, until the lane has moved past them.
func TestBegunStays(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, _, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	must.Succeed(t, h.Lane(0).Announce(ctx, at(110, AllOps), nil))
	for _, part := range []uint32{105, 108} {
		h = must.Get(link(t, g).Acquire(ctx, 0))(t)
		must.Succeed(t, h.Lane(0).Announce(ctx, at(part, AllOps), nil))
		if got := h.Lane(0).Announced(); got != at(110, AllOps) {
			t.Errorf("begun up to %v", got)
		}
		must.Succeed(t, h.Lane(0).Complete(ctx, at(part, AllOps)))
		if got := must.Get(link(t, g).Acquire(ctx, 0))(t).State().LanesAnnounced[0]; got != at(110, AllOps) {
			t.Errorf("begun up to %v, found by the next term", got)
		}
	}
}

// TestAnnounceAgain: Announce writes even if the same operations were begun before: the
// commit of a transaction without changes does not confirm earlier writes.
func TestAnnounceAgain(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, _, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	newest := func() oplog.OpTime {
		t.Helper()
		v, ok := g.Set.Primary().Status()
		if !ok {
			t.Fatal("the primary is down")
		}
		return v.LastApplied
	}
	doc := func(id string) bson.Raw {
		t.Helper()
		docs := must.Get(metadata.Found(must.Get(g.Call(ctx, metadata.Find("replicator", metadata.Lanes, 1, metadata.ByID(id))))(t)))(t)
		return append(bson.Raw(nil), docs[0]...)
	}
	for name, begin := range map[string]func(h *Link) error{
		"a/1":       func(h *Link) error { return h.Lane(1).Announce(ctx, at(105, 0), nil) },
		"a/barrier": func(h *Link) error { return h.Barrier().Announce(ctx, at(105, 0), positions(h)) },
	} {
		must.Succeed(t, begin(h))
		was, before := newest(), doc(name)
		must.Succeed(t, begin(h))
		if after := doc(name); !newest().After(was) || after.Lookup("writes").AsInt64() != before.Lookup("writes").AsInt64()+1 {
			t.Errorf("%s was begun again at %s, after %s, without a write: %s", name, newest(), was, after)
		}
	}
}
