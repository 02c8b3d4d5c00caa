package applier

import (
	"context"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// Each collection needs a command of its own in each flush. Where there are many with few
// operations each, and every one is spread over all lanes, most commands have a single
// statement. So collections that have few operations get one lane each, and those that have
// many are spread again:
//
//	spread ──── at most thinLimit operations of ShareOps ────▶ thin: one lane
//	       ◀─── at least heavyLimit ──────────────────────────
//
// The limits are far apart, and changes are rare, because each takes a barrier. They are
// recorded like those for collections that need oplog order (see routes).

// shares counts the operations of collections, to compare them each time after ShareOps.
type shares struct {
	comparison int // the number of this comparison
	ops        int
	met        []*route
	// rest is for how many comparisons nothing is changed.
	rest int
}

// count counts an operation.
func (s *shares) count(r *route) {
	if r.comparison != s.comparison || r.ops == 0 {
		r.comparison, r.ops = s.comparison, 0
		s.met = append(s.met, r)
	}
	r.ops++
	s.ops++
}

// countAll counts operations that were not handed to a lane.
func (d *dispatcher) countAll(ops []plan.Op) {
	for i := range ops {
		if r := d.routes.known[ops[i].NS]; r != nil {
			d.shares.count(r)
		}
	}
}

func (s *shares) next() {
	clear(s.met)
	s.comparison++
	s.ops, s.met = 0, s.met[:0]
}

// minThin is the fraction (1/n) of the operations that collections without a lane of their
// own, and with few operations, must have together for a change: it takes a barrier.
const minThin = 8

// thinLimit is the largest number of operations of a thin collection: a quarter of a lane's
// share. Below it a lane has several collections, so that they balance, and spread over all
// lanes each would take a command of each flush for a few operations. heavyLimit is the number
// from which on a thin collection is spread again: half of a lane's share.
func thinLimit(ops, lanes int) int  { return max(1, ops/(4*lanes)) }
func heavyLimit(ops, lanes int) int { return max(2, ops/(2*lanes)) }

// shareOps is the number of operations after which shares are compared, unless it is
// configured. A lane's share is at least minLaneShare of them: of a collection with a steady
// share, the number in a comparison varies by its root. One halfway between the limits, with
// 3/8 of minLaneShare, meets neither by chance.
func shareOps(lanes int) int { return max(defaultShareOps, lanes*minLaneShare) }

const minLaneShare = 1024

// compareShares changes the lanes of collections by their shares of the last operations,
// if ShareOps have been counted. It is called between two batches.
func (d *dispatcher) compareShares(ctx context.Context) error {
	s := &d.shares
	if s.ops < d.cfg.ShareOps {
		return nil
	}
	defer s.next()
	resting := s.rest > 0
	if resting {
		s.rest--
	}
	switch {
	case len(d.writers) == 1, d.routes.frozen, len(d.routes.kept) > 0, d.isCut(), d.isCrossed(d.last), !d.last.After(d.barrierAnnounced.OpTime):
		// What an earlier attempt has begun must reach the lanes that it was given to, and
		// a barrier would wait for index builds.
		return nil
	}
	change := d.routes.byShare(s, len(d.writers), resting)
	if change.Len() == 0 {
		return nil
	}
	few := change.Few
	// After a barrier anything may change: the records of dropped collections go as well.
	rest := d.routes.differences()
	change.OneLane, change.ByID, change.Few = rest.OneLane, append(change.ByID, rest.ByID...), nil
	s.rest = d.cfg.ShareRest
	if len(few) > 0 {
		change.ByID = append(change.ByID, d.routes.void...)
	}
	if err := d.rerouteHere(ctx, change); err != nil {
		return err
	}
	if err := d.giveFew(ctx, few); err != nil {
		return err
	}
	d.routes.forget()
	d.metrics.reroutes.Inc()
	d.stats.reroutes.Add(1)
	return nil
}

// byShare returns the changes that the counted shares suggest: while they rest, only those that
// cannot wait.
func (r *routes) byShare(s *shares, lanes int, resting bool) checkpoint.Rerouting {
	var change checkpoint.Rerouting
	few, many := thinLimit(s.ops, lanes), heavyLimit(s.ops, lanes)
	thin := 0
	earlier := map[oplog.Namespace]int{} // before the namespace was looked up again
	for _, to := range s.met {
		if !r.isKnown(to) {
			earlier[to.source] += to.ops
		}
	}
	p := partition{all: lanes, ops: s.ops, loads: make([]int, lanes)}
	for _, to := range s.met {
		if to.collection == nil || !r.isKnown(to) {
			continue // it was looked up again
		}
		ops := to.ops + earlier[to.source]
		switch {
		case to.ordered || to.direct:
			p.add(to.seed, ops) // its order requires a lane
		case !to.oneLane && ops <= few:
			change.Thin = append(change.Thin, to.target)
			thin += ops
			p.add(to.seed, ops)
		case !to.oneLane:
			p.busy = append(p.busy, load{to: to, ops: ops, has: to.few})
		case ops >= many && r.thin[to.target]:
			p.busy = append(p.busy, load{to: to, ops: ops, has: fewLanes{n: 1, first: to.seed % uint32(lanes)}, thin: true})
		default:
			p.add(to.seed, ops)
		}
	}
	if thin*minThin < s.ops || resting {
		change.Thin = nil
	}
	p.change(&change, resting)
	return change
}
