package checkpoint

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

// routing is the expected routing of a link: the version of the rule, and the records.
type routing struct {
	version int
	routes  map[oplog.Namespace]route
}

// route is the record of a collection: some lanes, or one lane.
type route struct {
	few  FewLanes
	thin bool
}

// read returns the expected result of Routes.
func (r *routing) read() (want Rerouting) {
	for _, ns := range slices.Sorted(maps.Keys(r.routes)) {
		switch to := r.routes[ns]; {
		case to.few.Lanes > 0 && r.version < RoutingFew:
			want.Void = append(want.Void, ns)
		case to.few.Lanes > 0:
			want.Few = append(want.Few, to.few)
		case to.thin:
			want.Thin = append(want.Thin, ns)
		default:
			want.OneLane = append(want.OneLane, ns)
		}
	}
	return want
}

// change makes a change.
func (r *routing) change(change Rerouting) {
	for _, ns := range change.ByID {
		delete(r.routes, ns)
	}
	for _, ns := range change.OneLane {
		r.routes[ns] = route{}
	}
	for _, ns := range change.Thin {
		r.routes[ns] = route{thin: true}
	}
	for _, few := range change.Few {
		r.routes[few.NS] = route{few: few}
	}
}

// resized removes what a change of the number of lanes removes.
func (r *routing) resized() {
	maps.DeleteFunc(r.routes, func(_ oplog.Namespace, to route) bool { return to.few.Lanes > 0 })
}

// drawRerouting draws a change for some collections.
func drawRerouting(rt *rapid.T, lanes int) (change Rerouting) {
	for _, ns := range []oplog.Namespace{"x.a", "x.b", "x.c"} {
		switch rapid.IntRange(0, 5).Draw(rt, "route") {
		case 0:
			change.OneLane = append(change.OneLane, ns)
		case 1:
			change.Thin = append(change.Thin, ns)
		case 2:
			change.ByID = append(change.ByID, ns)
		case 3, 4:
			few := FewLanes{NS: ns, Lanes: rapid.IntRange(1, lanes).Draw(rt, "lanes"), First: rapid.IntRange(0, lanes-1).Draw(rt, "first")}
			change.Few = append(change.Few, few)
		}
	}
	return change
}

// reroute changes the routes, as an applier does: before the version is raised for the first record
// of few lanes, those of an earlier version are removed.
func (c *course) reroute(rt *rapid.T) {
	p := c.pick(rt)
	if p == nil {
		return
	}
	change := drawRerouting(rt, len(p.link.lanes))
	if len(change.Few) > 0 && c.model.routing.version < RoutingFew {
		void := Rerouting{ByID: c.model.routing.read().Void}
		if !c.recorded(rt, p, "remove the void", func() error { return p.link.Barrier().Reroute(c.ctx, Position{}, nil, void) }) {
			return
		}
		c.model.routing.change(void)
		if p.lost || !c.recorded(rt, p, "raise", func() error { return p.link.RaiseRouting(c.ctx, RoutingFew) }) {
			return
		}
		c.model.routing.version = RoutingFew
		if p.lost {
			return
		}
	}
	var to Position
	if rapid.Bool().Draw(rt, "moves") {
		c.clock++
		to = at(c.clock, AllOps)
	}
	if c.recorded(rt, p, "change", func() error { return p.link.Barrier().Reroute(c.ctx, to, positions(p.link), change) }) {
		c.model.routing.change(change)
		if to != (Position{}) {
			c.moved(len(p.link.lanes), to, "")
			delete(c.model.data, "")
		}
	}
}

// recorded reports whether a process has made a change of the routing. It may lose the reply to the
// commit, which may not have been carried out: then the process has lost the link.
func (c *course) recorded(rt *rapid.T, p *process, what string, do func() error) bool {
	end := rapid.SampledFrom([]string{"commit", "commit", "commit", "lost", "unsent"}).Draw(rt, what)
	over := false
	if end != "commit" {
		c.g.Intercept(func(cmd mongo.Command) (error, bool) {
			if over {
				return errCut, false
			}
			if over = simcaller.Name(cmd) == "commitTransaction"; over {
				return errCut, end == "lost"
			}
			return nil, false
		})
	}
	err := do()
	c.g.Intercept(nil)
	switch {
	case c.stale(p):
		must.Fail(rt, err, lease.ErrFenced)
		return false
	case c.model.began != c.model.term && errors.Is(err, lease.ErrFenced):
		return false
	case over:
		if err == nil {
			rt.Fatalf("%s: no error, although the reply was lost", what)
		}
		p.lost = true
		return end == "lost"
	}
	must.Succeed(rt, err)
	return true
}

// checkRoutes compares what the process that has just acquired the link reads. Sometimes it is one of
// the release that does not know few lanes.
func (c *course) checkRoutes(rt *rapid.T, h *Link) {
	want := &c.model.routing
	st := h.State()
	if _, _, apart := st.Apart(); rapid.IntRange(0, 4).Draw(rt, "earlier release") == 0 {
		err := h.SetRouting(c.ctx, 1)
		if _, is := errors.AsType[*RoutingError](err); is != (apart && len(h.lanes) > 1) || !is && err != nil {
			rt.Fatalf("lanes apart: %v, and it begins with %v", apart, err)
		} else if !is {
			want.version = 1
		}
	}
	if got := h.State().Routing; got != want.version {
		rt.Fatalf("routing %d, want %d", got, want.version)
	}
	if diff := cmp.Diff(want.read(), readRoutes(c.ctx, rt, h)); diff != "" {
		rt.Fatalf("routes (-want +got)\n%s", diff)
	}
}

// readRoutes returns the recorded routes, in order.
func readRoutes(ctx context.Context, t tester, h *Link) Rerouting {
	t.Helper()
	r := must.Get(h.Routes(ctx))(t)
	slices.Sort(r.OneLane)
	slices.Sort(r.Thin)
	slices.Sort(r.Void)
	slices.SortFunc(r.Few, func(a, b FewLanes) int { return strings.Compare(string(a.NS), string(b.NS)) })
	return r
}
