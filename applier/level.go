package applier

import (
	"slices"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// The hashes of thin collections do not balance: of 64 to 200 that are equally busy, the busiest
// lane has nearly twice its share. So some are moved from the busiest lanes to the ones with the
// fewest operations, and recorded with the lane that they have now: few lanes, one of them.
//
//	thin: the lane of its hash ──── its lane has too much ────▶ few: one lane, chosen
//
// Those that are thin since this comparison are moved as soon as a lane has an eighth more than its
// share: their barrier is made anyway. The others only if one has half more. Each time that this
// happens, the number of comparisons without it doubles, up to maxLevel.

const (
	// movable is the fraction (1/n) of thinLimit from which on a collection is moved. Smaller ones
	// balance by their number, and so at most 4 * movable of a lane come into question.
	movable = 16
	// maxLevel is the largest number of comparisons in which none that was thin before is moved.
	maxLevel = 1024
)

// level adds the changes for thin collections: for those that are moved, and for the others that
// have one lane from now on.
func (p *partition) level(change *checkpoint.Rerouting, s *shares, resting bool) {
	due, before := s.level.isDue() && !resting, slices.Clone(p.loads)
	moved := p.move(func(l *load) bool { return !l.thin })
	if most, share := slices.Max(p.loads), p.ops/p.all; due && 2*most > 3*share {
		p.loads = before
		// It must be worth the barrier.
		if all := p.move(func(*load) bool { return true }); most-slices.Max(p.loads) >= share/4 {
			moved = all
			s.level.double(maxLevel)
		}
	}
	change.Few = append(change.Few, moved...)
	is := make(map[oplog.Namespace]bool, len(moved))
	for i := range moved {
		is[moved[i].NS] = true
	}
	for i := range p.single {
		if l := &p.single[i]; !l.thin && !is[l.to.target] {
			change.Thin = append(change.Thin, l.to.target)
		}
	}
}

// move moves those of the single collections that may be moved, from the busiest lane to the one
// with the fewest operations, as long as that makes them more equal.
func (p *partition) move(may func(*load) bool) (moved []checkpoint.FewLanes) {
	in := make([][]load, p.all)
	for i := range p.single {
		if l := &p.single[i]; may(l) && l.ops*movable >= thinLimit(p.ops, p.all) {
			in[l.has.first] = append(in[l.has.first], *l)
		}
	}
	to := map[*route]int{}
	for {
		most, least := slices.Index(p.loads, slices.Max(p.loads)), slices.Index(p.loads, slices.Min(p.loads))
		if 8*p.loads[most]*p.all <= 9*p.ops {
			break
		}
		i := nearest(in[most], p.loads[most]-p.loads[least])
		if i < 0 {
			break
		}
		l := in[most][i]
		in[most] = slices.Delete(in[most], i, i+1)
		in[least] = append(in[least], l)
		p.loads[most] -= l.ops
		p.loads[least] += l.ops
		to[l.to] = least
	}
	for i := range p.single {
		l := &p.single[i]
		if first, is := to[l.to]; is && first != int(l.has.first) {
			moved = append(moved, checkpoint.FewLanes{NS: l.to.target, Lanes: 1, First: first})
		}
	}
	return moved
}

// nearest returns the index of the load that makes two lanes most equal, if it moves from the one to the other, which has fewer
// operations by a difference; -1 if there is none. One of more than half the difference leaves the other lane with more. One of
// nearly all of it would only exchange the two: so each move makes the sum of the squares of all loads smaller, by an eighth of the
// difference times twice the load at least, and they end.
func nearest(loads []load, difference int) int {
	best, off := -1, 0
	for i := range loads {
		ops := loads[i].ops
		if now := max(2*ops-difference, difference-2*ops); 8*ops <= 7*difference && (best < 0 || now < off) {
			best, off = i, now
		}
	}
	return best
}
