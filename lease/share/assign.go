package share

import (
	"cmp"
	"slices"
)

// candidate is a member as the assignment sees it.
type candidate struct {
	name  string
	limit int // 0: none
	// drained: it keeps only partitions for which no other member has room.
	drained bool
	refuses map[string]bool
}

// seat is a candidate while partitions are assigned.
type seat struct {
	candidate
	has   []Assignment // the newest last
	quota int
}

func (s *seat) hasRoom() bool { return s.limit == 0 || len(s.has) < s.limit }

// assign assigns each partition to a member, or to "" if none has room. The members are
// those that are alive; partitions has no duplicates.
//
// The members that are not drained get equal numbers of partitions, or one more or less, but
// for their limits. As few partitions as possible move. One that its member refuses moves to
// another one that does not; a member that refuses partitions gets no others in exchange.
func assign(old []Assignment, members []candidate, partitions []string) map[string]string {
	seats := map[string]*seat{}
	var open []*seat
	for _, c := range members {
		s := &seat{candidate: c}
		seats[c.name] = s
		if !c.drained {
			open = append(open, s)
		}
	}
	slices.SortFunc(open, func(a, b *seat) int { return cmp.Compare(a.name, b.name) })
	free, homes := keep(old, seats, open, partitions)
	setQuotas(open, len(partitions))
	for _, s := range open {
		for len(s.has) > s.quota {
			last := len(s.has) - 1
			p := s.has[last].Partition
			s.has = s.has[:last]
			free, homes[p] = append(free, p), s
		}
	}
	slices.Sort(free)
	next := make(map[string]string, len(partitions))
	for _, p := range free {
		if next[p] = ""; len(seats) == 0 {
			continue
		}
		if s := place(p, open, homes[p]); s != nil {
			s.has = append(s.has, Assignment{Partition: p})
		}
	}
	for _, s := range seats {
		for _, a := range s.has {
			next[a.Partition] = s.name
		}
	}
	return next
}

// keep gives each member the partitions that it had, and returns the partitions that are free, with the
// members that had them and are alive.
func keep(old []Assignment, seats map[string]*seat, open []*seat, partitions []string) (free []string, homes map[string]*seat) {
	had := make(map[string]Assignment, len(old))
	for _, a := range old {
		had[a.Partition] = a
	}
	homes = map[string]*seat{}
	for _, p := range partitions {
		a := had[p]
		s := seats[a.Member]
		if s == nil || s.drained || s.refuses[p] && isTaken(p, open) {
			free, homes[p] = append(free, p), s
			continue
		}
		s.has = append(s.has, a)
	}
	for _, s := range open {
		slices.SortFunc(s.has, func(a, b Assignment) int {
			return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Partition, b.Partition))
		})
	}
	return free, homes
}

// isTaken reports whether a member does not refuse a partition.
func isTaken(p string, open []*seat) bool {
	return slices.ContainsFunc(open, func(s *seat) bool { return !s.refuses[p] })
}

// setQuotas says how many of n partitions each member gets. A remainder goes to those that
// have most.
func setQuotas(open []*seat, n int) {
	limits, sum := make([]int, len(open)), 0
	for i, s := range open {
		if limits[i] = s.most(n); len(s.refuses) > 0 {
			limits[i] = min(limits[i], len(s.has))
		}
		sum += limits[i]
	}
	if sum < n { // members that refuse partitions must take others
		for i, s := range open {
			limits[i] = s.most(n)
		}
	}
	level := fill(limits, n)
	rest := n
	for i, s := range open {
		s.quota = min(limits[i], level)
		rest -= s.quota
	}
	order := make([]int, len(open))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(len(open[b].has), len(open[a].has)) })
	for _, i := range order {
		if rest > 0 && limits[i] > level {
			open[i].quota++
			rest--
		}
	}
}

// most is the largest number of n partitions that the member may have.
func (s *seat) most(n int) int {
	if s.limit == 0 {
		return n
	}
	return min(s.limit, n)
}

// fill returns the largest level to which all can be filled with n, as far as their limits go.
func fill(limits []int, n int) int {
	limits = slices.Sorted(slices.Values(limits))
	for i, limit := range limits {
		share := n / (len(limits) - i)
		if limit > share {
			return share
		}
		n -= limit
	}
	if len(limits) == 0 {
		return 0
	}
	return limits[len(limits)-1]
}

// place returns the member that gets a partition, nil for none. Home had it, unless it is nil.
func place(p string, open []*seat, home *seat) *seat {
	takes := func(s *seat) bool { return !s.refuses[p] }
	if s := least(open, func(s *seat) bool { return takes(s) && len(s.has) < s.quota }); s != nil {
		return s
	}
	if home != nil && takes(home) && (home.drained || home.hasRoom()) {
		return home
	}
	if s := least(open, func(s *seat) bool { return takes(s) && s.hasRoom() }); s != nil {
		return s
	}
	if home != nil && (home.drained || home.hasRoom()) {
		return home
	}
	return least(open, (*seat).hasRoom)
}

// least returns the member with the fewest partitions of those that may have one.
func least(open []*seat, may func(*seat) bool) (best *seat) {
	for _, s := range open {
		if may(s) && (best == nil || len(s.has) < len(best.has)) {
			best = s
		}
	}
	return best
}
