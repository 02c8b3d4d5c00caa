package checkpoint

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// TestApart: lanes are apart if one is after the position up to which all have applied
// everything.
func TestApart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		state    State
		from, to Position
		apart    bool
	}{
		"as made":                   {State{Lanes: []Position{at(100, AllOps), at(100, AllOps)}}, at(100, AllOps), at(100, AllOps), false},
		"one ahead":                 {State{Lanes: []Position{at(100, AllOps), at(105, 3)}}, at(100, AllOps), at(105, 3), true},
		"in the checkpoint's entry": {State{Lanes: []Position{at(100, 3), at(90, 0)}}, at(100, AllOps), at(100, 3), false},
		"all ahead":                 {State{Lanes: []Position{at(105, 0), at(103, 0)}}, at(103, 0), at(105, 0), true},
		"all ahead alike":           {State{Lanes: []Position{at(105, 0), at(105, 0)}}, at(105, 0), at(105, 0), false},
		"begun":                     {State{Lanes: []Position{at(99, 0), at(99, 0)}, LanesAnnounced: []Position{{}, at(101, 0)}}, at(100, AllOps), at(101, 0), true},
		"before the barrier":        {State{Lanes: []Position{at(99, 0), at(105, 0)}, Barrier: at(106, 0)}, at(106, 0), at(105, 0), false},
		"after the barrier":         {State{Lanes: []Position{at(99, 0), at(107, 0)}, Barrier: at(106, 0)}, at(106, 0), at(107, 0), true},
		"before a command":          {State{Lanes: []Position{at(99, 0), at(105, 0)}, Announced: at(106, 0)}, at(106, -1), at(105, 0), false},
		"without lanes":             {State{}, at(100, AllOps), Position{}, false},
	} {
		c.state.Applied = ot(100)
		from, to, apart := c.state.Apart()
		if from != c.from || to != c.to || apart != c.apart {
			t.Errorf("%s: apart from %s to %s: %v, want from %s to %s: %v", name, from, to, apart, c.from, c.to, c.apart)
		}
	}
}

// oneLane returns the recorded collections with one lane.
func oneLane(t *testing.T, h *Link) []oplog.Namespace {
	t.Helper()
	r := must.Get(h.Routes(t.Context()))(t)
	return slices.Concat(r.OneLane, r.Thin)
}

// TestReroute: recorded routes are read in any term, and not by another link.
func TestReroute(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	read := func(h *Link, want ...oplog.Namespace) {
		t.Helper()
		got := oneLane(t, h)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%v have one lane, want %v", got, want)
		}
	}
	read(h)
	b := h.Barrier()
	must.Succeed(t, b.Reroute(ctx, at(100, AllOps), positions(h), Rerouting{OneLane: []oplog.Namespace{"x.a", "x.b"}}))
	must.Succeed(t, b.Reroute(ctx, at(100, AllOps), positions(h), Rerouting{OneLane: []oplog.Namespace{"x.b"}}))
	read(h, "x.a", "x.b")
	if got := b.Position(); got != at(100, AllOps) {
		t.Errorf("the barrier moved to %s", got)
	}
	// At a later position the barrier moves there, and no lane may be after it.
	flush(ctx, t, h.Lane(0), at(105, 0), "a")
	must.Fail(t, b.Reroute(ctx, at(104, AllOps), positions(h), Rerouting{ByID: []oplog.Namespace{"x.a"}}), errAhead)
	read(h, "x.a", "x.b")
	must.Succeed(t, b.Reroute(ctx, at(105, AllOps), positions(h), Rerouting{OneLane: []oplog.Namespace{"x.c"}, ByID: []oplog.Namespace{"x.a", "x.none"}}))
	read(h, "x.b", "x.c")
	if err := h.Lane(1).Reroute(ctx, at(106, 0), nil, Rerouting{}); err == nil {
		t.Error("a lane changed the routing")
	}
	again := must.Get(s.Acquire(ctx, h.Term()))(t)
	read(again, "x.b", "x.c")
	if got := again.State().Barrier; got != at(105, AllOps) {
		t.Errorf("the barrier is at %s", got)
	}
	// The previous term is fenced.
	must.Fail(t, b.Reroute(ctx, at(106, AllOps), positions(h), Rerouting{OneLane: []oplog.Namespace{"x.late"}}), lease.ErrFenced)
	must.Fail(t, b.Reroute(ctx, at(105, AllOps), positions(h), Rerouting{OneLane: []oplog.Namespace{"x.late"}}), lease.ErrFenced)
	read(again, "x.b", "x.c")

	other := must.Get(New(Config{Target: g, Link: "a.b"}))(t)
	must.Succeed(t, other.Create(ctx, first(2)))
	read(must.Get(other.Acquire(ctx, 0))(t))
	// A large number of routes is read completely.
	var many []oplog.Namespace
	for i := range 1500 {
		many = append(many, oplog.Namespace(fmt.Sprintf("x.many%04d", i)))
	}
	must.Succeed(t, again.Barrier().Reroute(ctx, at(105, AllOps), positions(again), Rerouting{OneLane: many}))
	read(again, append([]oplog.Namespace{"x.b", "x.c"}, many...)...)
}

// TestRerouteRewound: the routing does not change on a target that has lost acknowledged
// flushes.
func TestRerouteRewound(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := begun(t, mongosim.Options{Members: 3, Seed: 1}, 2)
	flush(ctx, t, h.Lane(0), at(101, 0), "kept")
	loseFlush(ctx, t, g, h.Lane(1), at(105, 0))
	must.Fail(t, h.Barrier().Reroute(ctx, at(105, AllOps), positions(h), Rerouting{OneLane: []oplog.Namespace{"x.a"}}), lease.ErrRewound)
	again := must.Get(s.Acquire(ctx, h.Term()))(t)
	if got := oneLane(t, again); len(got) != 0 {
		t.Errorf("%v have one lane", got)
	}
}

// TestSetRouting: the routing rule changes only if the lanes are not apart.
func TestSetRouting(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	must.Succeed(t, h.SetRouting(ctx, 5))
	must.Succeed(t, h.Advance(ctx, progress(101), positions(h), Source{}))
	flush(ctx, t, h.Lane(0), at(105, 0), "a")
	h = must.Get(s.Acquire(ctx, h.Term()))(t)
	if got := h.State().Routing; got != 5 {
		t.Errorf("the routing is %d", got)
	}
	e, ok := errors.AsType[*RoutingError](h.SetRouting(ctx, 6))
	if want := (RoutingError{Link: "a", Recorded: 5, Known: 6, From: at(101, AllOps), To: at(105, 0)}); !ok || *e != want {
		t.Errorf("with lanes that are apart: %v, want %v", e, &want)
	}
	if got := must.Get(s.Acquire(ctx, h.Term()))(t).State().Routing; got != 5 {
		t.Errorf("the routing is %d", got)
	}

	// The previous format is read, and its links have no routing.
	unroute := metadata.Majority(metadata.Update("replicator", metadata.Links, metadata.Statement{Filter: metadata.ByID("a"), Change: func(dst []byte) []byte {
		dst = metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return bsoncore.AppendInt32Element(dst, "version", unrouted) })
		return metadata.AppendDoc(dst, "$unset", func(dst []byte) []byte { return bsoncore.AppendInt32Element(dst, "routing", 1) })
	}}))
	must.Get(g.Call(ctx, unroute))(t)
	must.Get(g.Call(ctx, mongo.Command{DB: "replicator", Body: metadata.Document(func(dst []byte) []byte {
		return bsoncore.AppendStringElement(dst, "drop", metadata.Routes)
	})}))(t)
	h = must.Get(s.Acquire(ctx, 0))(t)
	if _, ok := errors.AsType[*RoutingError](h.SetRouting(ctx, 6)); !ok || h.State().Routing != 0 {
		t.Errorf("a link without a recorded routing has %d", h.State().Routing)
	}
	flush(ctx, t, h.Lane(1), at(105, 0), "b")
	h = must.Get(s.Acquire(ctx, h.Term()))(t)
	must.Succeed(t, h.SetRouting(ctx, 6))
	must.Succeed(t, h.Barrier().Reroute(ctx, at(105, AllOps), positions(h), Rerouting{OneLane: []oplog.Namespace{"x.a"}}))
	if got := must.Get(s.Acquire(ctx, h.Term()))(t).State().Routing; got != 6 {
		t.Errorf("the routing is %d", got)
	}
}
