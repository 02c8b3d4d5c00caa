package applier

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// counts counts operations of collections.
func (s *shares) counts(all []*route, ops ...int) {
	for i, n := range ops {
		for range n {
			s.count(all[i])
		}
	}
}

// laneLoads returns how many operations each lane gets, and in how many lanes each collection is.
func laneLoads(all []*route, lanes int, ops ...int) (loads, of []int) {
	loads = make([]int, lanes)
	for i, to := range all {
		few := to.few
		switch {
		case to.oneLane:
			few = fewLanes{n: 1, first: to.seed % uint32(lanes)}
		case few.n == 0:
			few = fewLanes{n: uint32(lanes)}
		}
		of = append(of, int(few.n))
		for k := range few.n {
			loads[int(few.first+k)%lanes] += ops[i] / int(few.n)
		}
	}
	return loads, of
}

// TestFewLanes: busy collections have as many lanes as their load takes, and these balance.
func TestFewLanes(t *testing.T) {
	const lanes = 16
	for _, tt := range []struct {
		colls, of int // the lanes of each
	}{{1, 16}, {2, 16}, {3, 16}, {4, 8}, {6, 8}, {8, 4}, {12, 4}, {16, 2}, {30, 2}, {60, 2}} {
		r, all := spread(tt.colls)
		ops := make([]int, tt.colls)
		for i := range ops {
			ops[i] = defaultShareOps / tt.colls
		}
		s := &shares{}
		s.counts(all, ops...)
		r.compared(s, lanes, false, all)
		loads, of := laneLoads(all, lanes, ops...)
		for i, n := range of {
			if n != tt.of {
				t.Errorf("%d collections: number %d has %d lanes, want %d", tt.colls, i, n, tt.of)
			}
		}
		for i, n := range loads {
			if n > defaultShareOps/lanes*3/2 {
				t.Errorf("%d collections: lane %d has %d of %d operations", tt.colls, i, n, defaultShareOps)
			}
		}
	}
}

// TestFewLanesUnequal: of unequal collections the larger ones choose their lanes first, so that the smaller ones fill the gaps.
func TestFewLanesUnequal(t *testing.T) {
	const lanes, logs = 16, 200
	rnd := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // a test's choice
	sum := 0.0
	for range logs {
		ops, total := make([]int, 5+rnd.IntN(25)), 0
		for i := range ops {
			ops[i] = int(300 * math.Exp(2*rnd.Float64()))
			total += ops[i]
		}
		r, all := spread(len(ops))
		s := &shares{}
		s.counts(all, ops...)
		r.compared(s, lanes, false, all)
		loads, _ := laneLoads(all, lanes, ops...)
		sum += float64(slices.Max(loads)*lanes) / float64(total)
	}
	if mean := sum / logs; mean > 1.15 { // 1.12, and 1.21 in the reverse order
		t.Errorf("the busiest lane has %.3f times its share in the mean", mean)
	}
}

// TestFewLanesWiden: a collection whose lanes have more than their share gets more, even while
// changes rest. Fewer lanes, and one instead of several, wait.
func TestFewLanesWiden(t *testing.T) {
	const lanes, share = 16, 1024
	r, all := spread(30)
	equal := make([]int, 30)
	for i := range equal {
		equal[i] = 546
	}
	s := &shares{}
	s.counts(all, equal...)
	if change := r.compared(s, lanes, true, all); change.Len() != 0 {
		t.Errorf("%d collections change while changes rest", change.Len())
	}
	s.counts(all, equal...)
	if change := r.compared(s, lanes, false, all); len(change.Few) != 30 || change.Len() != 30 {
		t.Errorf("%+v changes, want two lanes for each", change)
	}
	// One has nearly two lanes' shares, then more.
	ops := append([]int{2*share - 100}, make([]int, 29)...)
	for i := range ops[1:] {
		ops[1+i] = (lanes*share - ops[0]) / 29
	}
	s.counts(all, ops...)
	if change := r.compared(s, lanes, false, all); change.Len() != 0 {
		t.Errorf("%+v changes, although no lane has more than its share", change)
	}
	ops[0] += 200
	s.counts(all, ops...)
	if change := r.compared(s, lanes, true, all); len(change.Few) != 1 || change.Few[0].NS != "db.c0" || change.Few[0].Lanes != 8 || change.Len() != 1 {
		t.Errorf("%+v changes, want eight lanes for db.c0", change)
	}
	// Alone it has all.
	s.counts(all, lanes*share)
	if change := r.compared(s, lanes, true, all); len(change.ByID) != 1 || change.ByID[0] != "db.c0" || change.Len() != 1 {
		t.Errorf("%+v changes, want all lanes for db.c0", change)
	}
	// A thin one that is busy beside others gets a few, too.
	r.changed(checkpoint.Rerouting{Thin: []oplog.Namespace{"db.c1"}})
	all[1].oneLane, all[1].thin, all[1].few = true, true, fewLanes{}
	s.counts(all, equal...)
	if change := r.compared(s, lanes, true, all); change.Len() != 0 {
		t.Errorf("%+v changes while changes rest", change)
	}
	s.counts(all, equal...)
	if change := r.compared(s, lanes, false, all); len(change.Few) != 1 || change.Few[0].NS != "db.c1" || change.Few[0].Lanes != 2 {
		t.Errorf("%+v changes, want two lanes for db.c1", change)
	}
}

// TestCommandsOfBusy: of 30 collections with equal shares, a batch takes two commands for each,
// not 16.
func TestCommandsOfBusy(t *testing.T) {
	if cmds := commandsOf(t, 30); cmds > 3*30 {
		t.Errorf("16,000 inserts took %d commands", cmds)
	}
}

// TestKnowsRouting: a link with few lanes is continued as one without is, also while its lanes are
// apart. Another one is not.
func TestKnowsRouting(t *testing.T) {
	for version, want := range []bool{false, true, true, false, false} {
		if got := KnowsRouting(version); got != want {
			t.Errorf("version %d: %v, want %v", version, got, want)
		}
	}
}

// TestFewLanesAfterEarlierRelease: records of few lanes are such of one lane once a release has run
// that does not know them. They stay that when the version is raised again.
func TestFewLanesAfterEarlierRelease(t *testing.T) {
	r := newRig(t, 16, mongosim.Options{Members: 1})
	r.target.create(t, "db", "u")
	r.target.unique(t, "db", "u")
	for i := range 6 {
		r.target.create(t, "db", fmt.Sprint("c", i))
	}
	link := r.endTransactions(t)
	must.Succeed(t, link.RaiseRouting(t.Context(), checkpoint.RoutingFew))
	must.Succeed(t, link.Barrier().Reroute(t.Context(), checkpoint.Position{}, link.State().Lanes, checkpoint.Rerouting{
		Few: []checkpoint.FewLanes{{NS: "db.u", Lanes: 4, First: 3}, {NS: "elsewhere.c", Lanes: 2, First: 3}},
	}))
	must.Succeed(t, link.SetRouting(t.Context(), Routing))
	l := newLog(t)
	n := 0
	for range 40 {
		for i := range 6 {
			l.insertsTo(fmt.Sprint("c", i), 1, &n)
		}
		l.insertsTo("u", 1, &n)
		l.end()
	}
	changes := 0
	r.apply(t, l.batches(), reroutings(&changes))
	link = r.endTransactions(t)
	got := must.Get(link.Routes(t.Context()))(t)
	if !slices.Equal(got.OneLane, []oplog.Namespace{"db.u"}) || len(got.Few) != 6 || len(got.Void) != 0 || link.State().Routing != checkpoint.RoutingFew {
		t.Errorf("routing %d: %+v, want one lane for db.u and few for 6", link.State().Routing, got)
	}
	if docs := len(r.target.documents(t, "db.u")); docs != 40 {
		t.Errorf("db.u has %d documents, want 40", docs)
	}
}

// TestFewLanesOfDropped: the record of a collection that does not exist any more goes with the next change.
func TestFewLanesOfDropped(t *testing.T) {
	r := newRig(t, 16, mongosim.Options{Members: 1})
	for i := range 6 {
		r.target.create(t, "db", fmt.Sprint("c", i))
	}
	link := r.endTransactions(t)
	must.Succeed(t, link.RaiseRouting(t.Context(), checkpoint.RoutingFew))
	link = r.endTransactions(t)
	must.Succeed(t, link.Barrier().Reroute(t.Context(), checkpoint.Position{}, link.State().Lanes, checkpoint.Rerouting{
		Few: []checkpoint.FewLanes{{NS: "db.gone", Lanes: 4, First: 3}, {NS: "elsewhere.c", Lanes: 2, First: 3}},
	}))
	l := newLog(t)
	n := 0
	for range 40 {
		for i := range 6 {
			l.insertsTo(fmt.Sprint("c", i), 1, &n)
		}
		l.end()
	}
	changes := 0
	r.apply(t, l.batches(), reroutings(&changes))
	got := must.Get(r.endTransactions(t).Routes(t.Context()))(t)
	is := func(ns oplog.Namespace) bool {
		return slices.ContainsFunc(got.Few, func(few checkpoint.FewLanes) bool { return few.NS == ns })
	}
	if is("db.gone") || !is("db.c0") || !is("elsewhere.c") { // of elsewhere nothing was read
		t.Errorf("%+v", got)
	}
}
