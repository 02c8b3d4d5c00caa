package applier

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
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

// TestLevel: lanes of collections that are equally busy balance, whatever their names are, and only few of the collections
// have a record of their lane.
func TestLevel(t *testing.T) {
	const sets = 10 // of names
	for colls, limit := range map[int]float64{30: 1.1, 64: 1.2, 100: 1.2, 150: 1.2, 200: 1.2, 300: 1.2, 1_000: 1.2, 10_000: 1.1} {
		mean, chosen := 0.0, 0
		for set := range sets {
			rnd := rand.New(rand.NewPCG(1, uint64(colls))) //nolint:gosec // a test's choice
			r, all := spread(colls)
			for i, to := range all {
				if set > 0 {
					to.seed = oplog.HashNamespace(oplog.Namespace(fmt.Sprintf("db%d.c%d", set, i)))
				}
			}
			s := &shares{}
			changes, _ := r.play(s, 50, all, equally(rnd, colls))
			_, busiest := r.play(s, 5, all, equally(rnd, colls))
			moved := 0
			for _, few := range r.few {
				if few.n == 1 {
					moved++
				}
			}
			if busiest > 1.3 || moved > 20 || changes > 3 {
				t.Errorf("%d collections: the busiest lane has %.2f times its share, %d have a lane that was chosen, after %d changes", colls, busiest, moved, changes)
			}
			mean, chosen = mean+busiest/sets, chosen+moved
		}
		t.Logf("%d collections: the busiest lane has %.3f times its share, %.1f have a lane that was chosen", colls, mean, float64(chosen)/sets)
		if mean > limit {
			t.Errorf("%d collections: the busiest lane has %.2f times its share, want at most %.2f", colls, mean, limit)
		}
	}
}

// TestNearest: the load that is moved is the one nearest to half the difference, and not nearly all of it.
func TestNearest(t *testing.T) {
	for _, tt := range []struct {
		ops        []int
		difference int
		want       int
	}{
		{nil, 100, -1},
		{[]int{10, 40, 30}, 100, 1},
		{[]int{10, 55, 30}, 100, 1},
		{[]int{10, 87, 30}, 100, 2},
		{[]int{1, 87}, 100, 1},
		{[]int{88, 87}, 100, 1},
		{[]int{88}, 100, -1},
		{[]int{40, 60}, 100, 0},
		{[]int{7}, 8, 0},
		{[]int{8}, 8, -1},
		{[]int{1}, 0, -1},
	} {
		loads := make([]load, len(tt.ops))
		for i, ops := range tt.ops {
			loads[i].ops = ops
		}
		if got := nearest(loads, tt.difference); got != tt.want {
			t.Errorf("%v, %d: %d, want %d", tt.ops, tt.difference, got, tt.want)
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

// TestTurnsEnd: where another collection is busy before a rest is over, the rest ends nevertheless, and
// those that were busy have one lane again.
func TestTurnsEnd(t *testing.T) {
	const colls, period, comparisons = 300, 12, 4_800
	r, all := spread(colls)
	s := &shares{}
	n, most := 0, 0
	next := func() []int {
		ops := slices.Repeat([]int{6}, colls)
		ops[n/period%colls] += 6 * colls
		n++
		several := 0
		for _, to := range all {
			if !to.oneLane && to.few.n != 1 {
				several++
			}
		}
		if n > 1 { // the first time all have all
			most = max(most, several)
		}
		return ops
	}
	changes, _ := r.play(s, comparisons, all, next)
	t.Logf("%d changes, up to %d of %d collections have several lanes", changes, most, colls)
	// Those of the turns in the longest rest, and of the two at its ends.
	if limit := maxRest*defaultShareRest/period + 2; most > limit {
		t.Errorf("up to %d of %d collections have several lanes, want at most %d", most, colls, limit)
	}
}

// TestRest: a rest is half as long as the last one. A change that cannot wait for its end makes it twice
// as long, from its beginning on, up to a limit.
func TestRest(t *testing.T) {
	const rest = 4
	s := &shares{}
	next := func(comparisons int) { // all but the first of them are those of a rest
		t.Helper()
		for i := range comparisons {
			if resting := s.isResting(); resting != (i+1 < comparisons) {
				t.Fatalf("comparison %d of %d: resting is %v", i+1, comparisons, resting)
			}
		}
	}
	s.changed(rest, false)
	next(rest + 1)
	s.changed(rest, false)
	s.isResting()
	s.changed(rest, true)
	next(2 * rest)
	s.changed(rest, false)
	next(rest + 1)
	s.changed(rest, false)
	s.isResting()
	for range 10 {
		s.changed(rest, true)
	}
	next(maxRest * rest)
	s.changed(rest, false)
	next(maxRest*rest/2 + 1)
	s.changed(rest, false)
	next(maxRest*rest/4 + 1)
}

// TestRestOfChanges: the applier lets changes rest, and for longer where one could not wait.
func TestRestOfChanges(t *testing.T) {
	const colls, ops = 16, 128 // each of them is thin if they are equally busy
	changes := func(comparisons int) (n int) {
		r := newRig(t, 4, mongosim.Options{Members: 1})
		l, id := newLog(t), 0
		for i := range colls {
			r.target.create(t, "db", fmt.Sprint("c", i))
		}
		for c := range comparisons {
			for i := range ops {
				if c == 1 {
					i %= 2
				}
				l.insertsTo(fmt.Sprint("c", i%colls), 1, &id)
			}
			l.end()
		}
		l.insertsTo("c0", 1, &id) // a change is made before a batch
		l.end()
		a := r.apply(t, l.batches(), func(c *Config) { c.ShareOps, c.ShareRest = ops, 2 })
		return int(a.stats.reroutes.Load())
	}
	// After the second comparison, which is in the rest of the first, two have all lanes again.
	for comparisons, want := range map[int]int{1: 1, 2: 2, 5: 2, 6: 3} {
		if got := changes(comparisons); got != want {
			t.Errorf("%d changes in %d comparisons, want %d", got, comparisons, want)
		}
	}
}

// TestLevelOrdered: a thin collection that needs oplog order by now is not moved.
func TestLevelOrdered(t *testing.T) {
	r, all := spread(100)
	for _, to := range all {
		to.seed, to.ordered = 3, true
		r.changed(checkpoint.Rerouting{Thin: []oplog.Namespace{to.target}})
		to.oneLane, to.thin = true, true
	}
	s := &shares{}
	s.counts(all, slices.Repeat([]int{160}, 100)...)
	if change := r.compared(s, levelLanes, false, all); change.Len() != 0 {
		t.Errorf("%+v changes", change)
	}
}

// TestLoads: what a lane has of collections that keep their lanes, of the smallest thin ones, and of
// those that get all lanes, counts when others choose.
func TestLoads(t *testing.T) {
	const lanes, colls = levelLanes, 160
	even := func() (*routes, []*route, []int) {
		r, all := spread(colls)
		for i, to := range all {
			to.seed = uint32(i % lanes)
		}
		return r, all, slices.Repeat([]int{80}, colls)
	}
	thin := func(r *routes, all []*route) {
		for _, to := range all {
			r.changed(checkpoint.Rerouting{Thin: []oplog.Namespace{to.target}})
			to.oneLane, to.thin = true, true
		}
	}
	few := func(r *routes, to *route, n, first int) {
		r.changed(checkpoint.Rerouting{Few: []checkpoint.FewLanes{{NS: to.target, Lanes: n, First: first}}})
		to.few = r.few[to.target]
	}

	t.Run("one that keeps its lane", func(t *testing.T) {
		r, all, ops := even()
		thin(r, all)
		s := &shares{}
		all[0].oneLane, all[0].thin, all[1].oneLane, all[1].thin = false, false, false, false
		few(r, all[0], 1, 5)
		few(r, all[1], 2, 8)
		ops[0], ops[1] = 1_000, 2_600
		s.counts(all, ops...)
		change := r.compared(s, lanes, true, all)
		if len(change.Few) != 1 || change.Len() != 1 || change.Few[0].Lanes != 8 || change.Few[0].First < 6 || change.Few[0].First > 13 {
			t.Errorf("%+v changes, want 8 lanes without lane 5 for %s", change, all[1].target)
		}
	})
	t.Run("the smallest", func(t *testing.T) {
		r, all, ops := even()
		for i := range colls / 2 {
			all[i].seed, ops[i] = 3, 12
		}
		thin(r, all[:colls/2])
		for i := range colls / 2 {
			ops[colls/2+i] = 190
		}
		s := &shares{}
		s.counts(all, ops...)
		change := r.compared(s, lanes, false, all)
		if len(change.Few) == 0 {
			t.Fatalf("%+v changes", change)
		}
		for _, moved := range change.Few {
			if i := slices.IndexFunc(all, func(to *route) bool { return to.target == moved.NS }); all[i].seed != 3 || moved.First == 3 {
				t.Errorf("%+v is moved, from lane %d", moved, all[i].seed)
			}
		}
	})
	t.Run("one that gets all", func(t *testing.T) {
		r, all, ops := even()
		few(r, all[0], 8, 0)
		for i := range ops {
			if ops[i] = 50; i%lanes == 3 {
				ops[i] += 30
			}
		}
		ops[0] = 8_600
		s := &shares{}
		s.counts(all, ops...)
		change := r.compared(s, lanes, false, all)
		if !slices.Equal(change.ByID, []oplog.Namespace{all[0].target}) || len(change.Few) == 0 {
			t.Errorf("%+v changes, want all lanes for %s, and others that leave lane 3", change, all[0].target)
		}
	})
}

// TestWidenAgain: once more lanes were not in vain, others do not wait for theirs.
func TestWidenAgain(t *testing.T) {
	_, all := spread(1)
	s, vain := &shares{}, []load{{to: all[0], ops: 100, has: fewLanes{n: 1}}}
	p := &partition{all: levelLanes, ops: 1_600, busy: []load{{to: all[0], ops: 100}}}
	for _, want := range []int{1, 2, 4} {
		s.widened = slices.Clone(vain)
		if s.mayWiden(p) || s.widen.next != want {
			t.Errorf("%+v, want %d comparisons without", s.widen, want)
		}
	}
	p.busy[0].ops++
	s.widened = slices.Clone(vain)
	if !s.mayWiden(p) || s.widen != (backoff{}) {
		t.Errorf("%+v, want none", s.widen)
	}
}

// TestChanged: as in the record, each change of a collection's lanes takes the place of the one before.
func TestChanged(t *testing.T) {
	names := []oplog.Namespace{"db.c0"}
	kinds := []checkpoint.Rerouting{
		{OneLane: names}, {Thin: names}, {Few: []checkpoint.FewLanes{{NS: names[0], Lanes: 1, First: 7}}}, {ByID: names},
	}
	for i, earlier := range kinds {
		for k, change := range kinds {
			r, _ := spread(1)
			r.changed(earlier)
			r.changed(change)
			one, thin, few := r.oneLane[names[0]], r.thin[names[0]], r.few[names[0]].n == 1
			if one != (k < 2) || thin != (k == 1) || few != (k == 2) {
				t.Errorf("change %d after %d: one lane %v, thin %v, few %v", k, i, one, thin, few)
			}
		}
	}
}
