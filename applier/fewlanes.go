package applier

import (
	"cmp"
	"context"
	"slices"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// A collection with more operations than a thin one, if others are busy, too, has a few
// lanes: 2, 4 and so on, up to half of them. Its documents are spread over those, so that a
// flush of a lane has commands for few collections.
//
//	          the sum of their lanes would be halved
//	all ───────────────────────────────────────────────▶ few: a lane has at most half
//	lanes                                                     of its share of it
//	    ◀───────────────────────────────────────────────
//	          a lane has more than its share of it, even while changes rest
//
// If other collections are busy a comparison later, such a barrier was in vain, and the next one waits
// for more and more comparisons: up to maxWait.
//
// Which lanes is recorded (checkpoint.FewLanes), and the version of the routing is raised before
// the first such record is written.

// fewLanes are n lanes from first on: after the last one follows lane 0. The zero value means
// all lanes.
type fewLanes struct{ n, first uint32 }

// load is the number of counted operations of a collection, and its lanes.
type load struct {
	to   *route
	ops  int
	has  fewLanes
	thin bool
}

// partition assigns collections to lanes.
type partition struct {
	all, ops int // the number of lanes, and of operations
	busy     []load
	// single are thin collections, which may be moved to another lane: see level.
	single []load
	// loads are the operations of each lane.
	loads []int
}

// add adds the operations of a collection with one lane.
func (p *partition) add(seed uint32, ops int) { p.loads[int(seed%uint32(len(p.loads)))] += ops }

// lanes returns the number of lanes.
func (p *partition) lanes(of fewLanes) int {
	if of.n == 0 {
		return p.all
	}
	return int(of.n)
}

// wanted returns the number of lanes for a busy collection: each gets at most half of a lane's
// share from it.
func (p *partition) wanted(ops int) int {
	n := 2
	for ops > n*heavyLimit(p.ops, p.all) {
		n *= 2
	}
	if 2*n > p.all {
		return p.all
	}
	return n
}

// overloads reports whether a collection alone gives its lanes more than their share.
func (p *partition) overloads(l *load) bool { return l.ops*p.all > p.lanes(l.has)*p.ops }

// mayWiden reports whether collections may get more lanes while changes rest. If those that got
// them in the last comparison would not need them now, the number of comparisons without it doubles.
func (s *shares) mayWiden(p *partition) bool {
	if len(s.widened) > 0 {
		vain := true
		for _, l := range s.widened { // as it was
			for i := range p.busy {
				if now := &p.busy[i]; now.to.target == l.to.target {
					l.ops = now.ops
					vain = vain && !p.overloads(&l)
				}
			}
		}
		if s.widened = nil; vain {
			s.widen.double(maxWait)
		} else {
			s.widen = backoff{}
		}
	}
	return s.widen.isDue()
}

// change adds the changes for busy collections.
func (p *partition) change(change *checkpoint.Rerouting, s *shares, resting bool) {
	has, wanted := 0, 0
	for i := range p.busy {
		n := p.lanes(p.busy[i].has)
		has, wanted = has+n, wanted+min(n, p.wanted(p.busy[i].ops))
	}
	narrows := !resting && 2*wanted <= has
	widens := s.mayWiden(p) || !resting
	var changed []load
	for i := range p.busy {
		l := &p.busy[i]
		n, want := p.lanes(l.has), p.wanted(l.ops)
		overloaded := widens && p.overloads(l)
		switch {
		case want > n && (overloaded || l.thin && !resting), want < n && narrows:
			changed = append(changed, *l)
			if overloaded {
				s.widened = append(s.widened, *l)
			}
		default:
			p.take(l.has, l.ops)
		}
	}
	slices.SortStableFunc(changed, func(a, b load) int { return cmp.Compare(b.ops, a.ops) })
	for i := range changed {
		l := &changed[i]
		n := p.wanted(l.ops)
		if n == p.all {
			change.ByID = append(change.ByID, l.to.target)
			p.take(fewLanes{}, l.ops)
			continue
		}
		to := p.choose(n)
		p.take(to, l.ops)
		change.Few = append(change.Few, checkpoint.FewLanes{NS: l.to.target, Lanes: n, First: int(to.first)})
	}
}

// take adds the operations of a collection to its lanes.
func (p *partition) take(lanes fewLanes, ops int) {
	n := p.lanes(lanes)
	for i := range n {
		p.loads[(int(lanes.first)+i)%len(p.loads)] += ops / n
	}
}

// takeAll adds the operations of several collections to the lanes that they have.
func (p *partition) takeAll(loads []load) {
	for i := range loads {
		p.take(loads[i].has, loads[i].ops)
	}
}

// choose returns those n lanes whose busiest one has the fewest operations, and of these those
// that have the fewest together.
func (p *partition) choose(n int) fewLanes {
	best, least := 0, [2]int{}
	for first := range p.all {
		most := [2]int{}
		for i := range n {
			ops := p.loads[(first+i)%p.all]
			most[0], most[1] = max(most[0], ops), most[1]+ops
		}
		if first == 0 || slices.Compare(most[:], least[:]) < 0 {
			best, least = first, most
		}
	}
	return fewLanes{n: uint32(n), first: uint32(best)} //nolint:gosec // at most the number of lanes
}

// giveFew records the lanes of collections that get a few, after a barrier with nothing handed
// out since.
func (d *dispatcher) giveFew(ctx context.Context, few []checkpoint.FewLanes) error {
	r := &d.routes
	if len(few) == 0 {
		return nil
	}
	if !r.raised {
		// No record of few lanes is left. The two versions are the same without one.
		s := span{ops: []plan.Op{{At: checkpoint.Position{OpTime: d.last, Op: checkpoint.AllOps}}}}
		for tries := d.barrier.tries(&s); ; {
			err := d.link.RaiseRouting(ctx, checkpoint.RoutingFew)
			if err == nil {
				break
			}
			if err := tries.wait(ctx, err); err != nil {
				return err
			}
		}
		r.raised, r.void = true, nil
	}
	return d.reroute(ctx, checkpoint.Position{OpTime: d.last, Op: checkpoint.AllOps}, checkpoint.Rerouting{Few: few})
}

// namesOf returns the names of collections.
func namesOf(few []checkpoint.FewLanes) []oplog.Namespace {
	names := make([]oplog.Namespace, len(few))
	for i := range few {
		names[i] = few[i].NS
	}
	return names
}
