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
// The limits are far apart, and changes are rare, because each takes a barrier: they rest after one,
// for longer if it was soon regretted. They are recorded like those for collections that need oplog
// order (see routes).

// shares counts the operations of collections, to compare them each time after ShareOps.
type shares struct {
	comparison int // the number of this comparison
	ops        int
	met        []*route
	// rest is for how many comparisons nothing is changed, pause for how many after the last change.
	rest, pause int
	level       backoff // moving thin collections to other lanes: see level.go
	widen       backoff // giving more lanes while changes rest
	widened     []load  // those that got more in the last comparison
}

// isResting reports whether nothing is changed in this comparison that can wait.
func (s *shares) isResting() bool {
	resting := s.rest > 0
	s.rest = max(0, s.rest-1)
	return resting
}

// changed lets changes rest after one: half as long as the last time. If one cannot wait for the end of
// a rest, collections that were thin are busy again: then that rest is twice as long as it was going to
// be. It does not begin again: where another collection is busy every now and then, it would never end.
func (s *shares) changed(rest int, resting bool) {
	was := s.pause
	if resting {
		s.pause = min(2*max(s.pause, rest), maxRest*rest)
		s.rest += s.pause - was
		return
	}
	s.pause = max(s.pause/2, rest)
	s.rest = s.pause
}

const (
	// maxRest limits the rest, as a multiple of the usual one.
	maxRest = 64
	// maxWait is for how many comparisons no collection gets more lanes while changes rest, at most.
	maxWait = 16
)

// backoff counts the comparisons in which a change is not made again.
type backoff struct{ wait, next int }

// isDue reports whether the change may be made in this comparison.
func (b *backoff) isDue() bool {
	due := b.wait == 0
	b.wait = max(0, b.wait-1)
	return due
}

// double doubles the number of comparisons without the change, up to a limit.
func (b *backoff) double(limit int) {
	b.next = min(max(1, 2*b.next), limit)
	b.wait = b.next
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
	resting := s.isResting()
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
	s.changed(d.cfg.ShareRest, resting)
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
	var fresh []load                     // those that would be thin from now on
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
		l := load{to: to, ops: ops, has: to.few, thin: to.thin || to.few.n == 1}
		if to.oneLane {
			l.has = to.hashed(lanes)
		}
		switch {
		case to.ordered || to.direct:
			p.add(to.seed, ops) // its order requires a lane
		case l.thin && ops*movable < few:
			p.take(l.has, ops) // it is not moved, and there may be thousands
		case l.thin && ops < many:
			p.single = append(p.single, l)
		case !to.oneLane && ops <= few:
			thin += ops
			fresh = append(fresh, l)
		case !to.oneLane, l.thin:
			p.busy = append(p.busy, l)
		default:
			p.add(to.seed, ops)
		}
	}
	if thin*minThin < s.ops || resting {
		p.takeAll(fresh)
		fresh = nil
	}
	for i := range fresh {
		fresh[i].has = fresh[i].to.hashed(lanes)
	}
	p.single = append(p.single, fresh...)
	p.takeAll(p.single)
	p.change(&change, s, resting)
	p.level(&change, s, resting)
	return change
}

// hashed returns the lane of a collection that has one.
func (to *route) hashed(lanes int) fewLanes { return fewLanes{n: 1, first: to.seed % uint32(lanes)} } //nolint:gosec // at most MaxWriters
