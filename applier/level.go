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
		i := largest(in[most], (p.loads[most]-p.loads[least])/2)
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

// largest returns the index of the largest of some loads that have at most limit operations, or -1.
func largest(loads []load, limit int) int {
	best := -1
	for i := range loads {
		if ops := loads[i].ops; ops <= limit && (best < 0 || ops > loads[best].ops) {
			best = i
		}
	}
	return best
}
