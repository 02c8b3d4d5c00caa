package applier

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/oplogrep/replicator/checkpoint"
)

// levelLanes is the number of lanes of these tests.
const levelLanes = 16

// play counts operations of collections for some comparisons, each with a load of next, and makes the
// changes. It returns how many comparisons have changed something, and the mean of the operations of
// the busiest lane, as a multiple of its share.
func (r *routes) play(s *shares, comparisons int, all []*route, next func() []int) (changes int, busiest float64) {
	for range comparisons {
		ops := next()
		s.counts(all, ops...)
		total := s.ops
		loads, _ := laneLoads(all, levelLanes, ops...)
		busiest += float64(slices.Max(loads)*levelLanes) / float64(total*comparisons)
		resting := s.isResting()
		if change := r.compared(s, levelLanes, resting, all); change.Len() > 0 {
			changes++
			s.changed(defaultShareRest, resting)
		}
	}
	return changes, busiest
}

// equally returns loads of collections that are equally busy, in random order.
func equally(rnd *rand.Rand, colls int) func() []int {
	return func() []int {
		ops := make([]int, colls)
		for range defaultShareOps {
			ops[rnd.IntN(colls)]++
		}
		return ops
	}
}

// TestLevel: lanes of collections that are equally busy balance, and only few of the collections
// have a record of their lane.
func TestLevel(t *testing.T) {
	for _, colls := range []int{30, 64, 100, 300, 1_000, 10_000} {
		rnd := rand.New(rand.NewPCG(1, uint64(colls))) //nolint:gosec // a test's choice
		r, all := spread(colls)
		s := &shares{}
		changes, _ := r.play(s, 50, all, equally(rnd, colls))
		_, busiest := r.play(s, 5, all, equally(rnd, colls))
		moved := 0
		for _, few := range r.few {
			if few.n == 1 {
				moved++
			}
		}
		t.Logf("%d collections: the busiest lane has %.2f times its share, %d of %d have a lane that was chosen, after %d changes", colls, busiest, moved, len(r.thin)+moved, changes)
		if busiest > 1.3 || moved > 20 || changes > 3 {
			t.Errorf("%d collections: the busiest lane has %.2f times its share, %d have a lane that was chosen, after %d changes", colls, busiest, moved, changes)
		}
	}
}

// TestLevelThin: collections that are thin already are moved when one lane has half more than its
// share, while changes do not rest, if that helps; each time later.
func TestLevelThin(t *testing.T) {
	const lanes, colls = levelLanes, 160
	r, all := spread(colls)
	ordered := &route{source: "db.o", target: "db.o", seed: 3, ordered: true, oneLane: true, collection: all[0].collection}
	for i, to := range all {
		to.seed = uint32(i % lanes)
		r.changed(checkpoint.Rerouting{Thin: namesOf([]checkpoint.FewLanes{{NS: to.target}})})
		to.oneLane, to.thin = true, true
	}
	s := &shares{}
	load := func(busy ...int) []int { // lanes with twice the load
		ops := make([]int, colls)
		for i := range ops {
			if ops[i] = 60; slices.Contains(busy, i%lanes) {
				ops[i] = 120
			}
		}
		return ops
	}
	s.counts(all, load()...)
	if change := r.compared(s, lanes, false, all); change.Len() != 0 {
		t.Errorf("%+v changes, although the lanes are equal", change)
	}
	s.counts(all, load(3)...)
	if change := r.compared(s, lanes, true, all); change.Len() != 0 {
		t.Errorf("%+v changes while changes rest", change)
	}
	// Nothing relieves the lane of a collection that needs oplog order.
	s.counts(append(all[:0:0], ordered), 10_000)
	s.counts(all, load()...)
	if change := r.compared(s, lanes, false, all); change.Len() == 0 || len(change.Few) != change.Len() || len(change.Few) > colls/lanes {
		t.Errorf("%+v changes, want the thin collections of lane 3 to leave it", change)
	}
	s.level = backoff{}
	for range 3 {
		s.counts(append(all[:0:0], ordered), 10_000)
		s.counts(all, load()...)
		if change := r.compared(s, lanes, false, all); change.Len() != 0 {
			t.Errorf("%+v changes, although it does not help", change)
		}
	}
	times, last, wait := 0, -1, []int(nil)
	for i := range 200 {
		ops := make([]int, colls)
		for k, to := range all {
			if ops[k] = 60; int(to.has(lanes).first) == times%lanes {
				ops[k] = 200
			}
		}
		s.counts(all, ops...)
		if change := r.compared(s, lanes, false, all); change.Len() > 0 {
			times++
			wait, last = append(wait, i-last), i
		}
	}
	if !slices.Equal(wait, []int{1, 2, 3, 5, 9, 17, 33, 65}) {
		t.Errorf("collections are moved after %v comparisons", wait)
	}
}

// has returns the lane of a collection with one.
func (to *route) has(lanes int) fewLanes {
	if to.oneLane {
		return to.hashed(lanes)
	}
	return to.few
}

// TestLevelAgain: one with a lane that was chosen keeps it while it has few operations, and is spread
// like another thin one when it has many.
func TestLevelAgain(t *testing.T) {
	const lanes = levelLanes
	r, all := spread(100)
	r.changed(checkpoint.Rerouting{Few: []checkpoint.FewLanes{{NS: "db.c0", Lanes: 1, First: 7}}})
	all[0].few = r.few["db.c0"]
	ops := slices.Repeat([]int{160}, 100)
	s := &shares{}
	s.counts(all, ops...)
	r.compared(s, lanes, false, all)
	if got := r.few["db.c0"]; got != (fewLanes{n: 1, first: 7}) || r.thin["db.c0"] {
		t.Errorf("it has %+v", got)
	}
	ops[0] = 600
	s.counts(all, ops...)
	if change := r.compared(s, lanes, true, all); change.Len() != 0 {
		t.Errorf("%+v changes while changes rest", change)
	}
	s.counts(all, ops...)
	if r.compared(s, lanes, false, all); r.few["db.c0"].n != 2 {
		t.Errorf("it has %+v, want two lanes", r.few["db.c0"])
	}
}

// turns returns loads of collections of which one at a time has all but a part of the operations,
// for a number of comparisons.
func turns(colls int, period, background float64) func() []int {
	rnd := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // a test's choice
	at, busy := 0.0, 0
	return func() []int {
		ops := make([]int, colls)
		for range defaultShareOps {
			if at += 1.0 / defaultShareOps; at > period {
				at, busy = at-period, (busy+1)%colls
			}
			if rnd.Float64() < background {
				ops[rnd.IntN(colls)]++
			} else {
				ops[busy]++
			}
		}
		return ops
	}
}

// TestTurns: where another collection is busy every now and then, changes are rare, and the busy ones
// keep their lanes.
func TestTurns(t *testing.T) {
	const comparisons = 300
	for _, tt := range []struct {
		colls   int
		period  float64 // comparisons
		changes int     // at most
		busiest float64 // at most, the mean of the last 200 comparisons
	}{
		{5, 1, 12, 1.7},
		{5, 2, 12, 1.3},
		{5, 8, 12, 1.2},
		{30, 0.5, 20, 1.8},
		{30, 2, 35, 1.1},
		{30, 4, 35, 1.5},
		{30, 24, 15, 1.9},
		// Those that get more lanes are not busy any more.
		{1_000, 0.25, 40, 5},
		{1_000, 0.5, 40, 9},
		// Those that do are.
		{1_000, 8, 45, 3},
	} {
		r, all := spread(tt.colls)
		s := &shares{}
		next := turns(tt.colls, tt.period, 0.15)
		changes, _ := r.play(s, comparisons-200, all, next)
		more, busiest := r.play(s, 200, all, next)
		t.Logf("another of %d collections every %.3g comparisons: %d changes, then %d, the busiest lane has %.2f times its share", tt.colls, tt.period, changes, more, busiest)
		if changes += more; changes > tt.changes || busiest > tt.busiest {
			t.Errorf("another of %d collections every %.3g comparisons: %d changes, the busiest lane has %.2f times its share", tt.colls, tt.period, changes, busiest)
		}
	}
}
