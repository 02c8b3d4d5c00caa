package share

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// deputies is how many members try often to become the coordinator.
const deputies = 3

// view is the state from which a coordinator decides.
type view struct {
	members []Member
	// dead has the members that are, and since when their beats have not moved.
	dead       map[string]time.Duration
	partitions []string // sorted
	now        time.Time
}

// isFree reports whether partitions can be assigned to a member, or stay with it.
func (v *view) isFree(m *Member) bool {
	_, dead := v.dead[m.Name]
	return m.Process != "" && !m.Leaving && !dead
}

func (v *view) candidates() []candidate {
	var list []candidate
	for i := range v.members {
		m := &v.members[i]
		if !v.isFree(m) {
			continue
		}
		c := candidate{name: m.Name, limit: m.Limit, drained: m.Drained, refuses: map[string]bool{}}
		for _, r := range m.Refuses {
			c.refuses[r.Partition] = true
		}
		list = append(list, c)
	}
	return list
}

// replan returns the assignments that follow the old ones.
func (v *view) replan(old []Assignment) []Assignment {
	candidates := v.candidates()
	next := assign(old, candidates, v.partitions)
	had, number := make(map[string]Assignment, len(old)), map[string]int{}
	for _, a := range old {
		had[a.Partition] = a
		number[a.Member]++
	}
	list := make([]Assignment, 0, len(v.partitions))
	for _, p := range v.partitions {
		was, known := had[p]
		a := Assignment{Partition: p, Member: next[p], Since: v.now}
		switch {
		case known && was.Member == a.Member:
			a = was
			v.stays(&a)
		case a.Member == "":
			a.Why = nobody(candidates)
			if cause := v.cause(&was, number); was.Member != "" {
				a.Why = cause + "; " + a.Why
			}
		case was.Member != "":
			a.Why = "moved: " + v.cause(&was, number)
		case known:
			a.Why = a.Member + " has room now"
		case len(candidates) == 1:
			a.Why = "new; the only free member"
		default:
			a.Why = "new; had the fewest partitions"
		}
		list = append(list, a)
	}
	return list
}

// staying begins the reason for a partition that a drained member keeps.
const staying = "stays: "

// stays says why a partition is not moved where one would expect it.
func (v *view) stays(a *Assignment) {
	m := v.member(a.Member)
	switch {
	case m != nil && m.Drained:
		a.Why = staying + m.Name + " drains, but no other member has room"
	case strings.HasPrefix(a.Why, staying):
		a.Why = a.Member + " drains no more"
	}
}

func (v *view) member(name string) *Member {
	for i := range v.members {
		if v.members[i].Name == name {
			return &v.members[i]
		}
	}
	return nil
}

// cause is why a partition leaves its member. Number has how many each had.
func (v *view) cause(was *Assignment, number map[string]int) string {
	name := was.Member
	m := v.member(name)
	if m == nil || m.Process == "" {
		return name + " has left"
	}
	if quiet, dead := v.dead[name]; dead {
		return fmt.Sprintf("%s died: not heard for %s", name, max(quiet, v.now.Sub(m.Beat)).Round(time.Second))
	}
	for _, r := range m.Refuses {
		if r.Partition == was.Partition {
			return fmt.Sprintf("failed %d times on %s: %s", r.Failures, name, r.Why)
		}
	}
	switch {
	case m.Leaving:
		return name + " shuts down"
	case m.Drained:
		return name + " drains"
	case m.Limit > 0 && number[name] > m.Limit:
		return fmt.Sprintf("%s takes %d at most", name, m.Limit)
	default:
		return name + " had more than others"
	}
}

// nobody returns the reason why a partition is assigned to no member.
func nobody(candidates []candidate) string {
	if len(candidates) == 0 {
		return "no member is there"
	}
	return "no member has room"
}

// deputize returns the deputies: those of before that are still there, and others by name.
func (v *view) deputize(old []string, coordinator string) []string {
	var free []string
	for i := range v.members {
		if m := &v.members[i]; v.isFree(m) && !m.Drained && m.Name != coordinator {
			free = append(free, m.Name)
		}
	}
	slices.SortFunc(free, func(a, b string) int {
		return cmp.Or(rank(old, a)-rank(old, b), cmp.Compare(a, b))
	})
	free = free[:min(len(free), deputies)]
	slices.Sort(free)
	return free
}

func rank(old []string, name string) int {
	if slices.Contains(old, name) {
		return 0
	}
	return 1
}
