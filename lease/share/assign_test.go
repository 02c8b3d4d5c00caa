package share

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// shared is an assignment with its members.
type shared struct {
	members    []candidate
	partitions []string
	owners     map[string]string
	round      int
	since      map[string]time.Time
}

// next assigns again.
func (s *shared) next() map[string]string {
	var old []Assignment
	for p, m := range s.owners {
		old = append(old, Assignment{Partition: p, Member: m, Since: s.since[p]})
	}
	return assign(old, s.members, s.partitions)
}

// adopt takes the next assignment.
func (s *shared) adopt() {
	next := s.next()
	s.round++
	for p, m := range next {
		if s.owners[p] != m {
			s.since[p] = time.Unix(int64(s.round), 0)
		}
	}
	s.owners = next
}

func (s *shared) count() map[string]int {
	n := map[string]int{}
	for _, m := range s.owners {
		n[m]++
	}
	return n
}

// draw returns members that have their parts.
func draw(t *rapid.T, limits, drains bool) *shared {
	s := &shared{owners: map[string]string{}, since: map[string]time.Time{}}
	for i := range rapid.IntRange(1, 12).Draw(t, "members") {
		c := candidate{name: fmt.Sprintf("m%02d", i), refuses: map[string]bool{}}
		if limits && rapid.Bool().Draw(t, "limited") {
			c.limit = rapid.IntRange(1, 9).Draw(t, "limit")
		}
		c.drained = drains && rapid.IntRange(0, 3).Draw(t, "drained") == 0
		s.members = append(s.members, c)
	}
	for i := range rapid.IntRange(0, 60).Draw(t, "partitions") {
		s.partitions = append(s.partitions, fmt.Sprintf("p%02d", i))
	}
	s.adopt()
	return s
}

// check fails unless the assignment is complete, even and within the limits.
func (s *shared) check(t *rapid.T) {
	t.Helper()
	n := s.count()
	room, isOpen := 0, map[string]candidate{}
	for _, c := range s.members {
		if !c.drained {
			isOpen[c.name] = c
			if c.limit == 0 {
				room = len(s.partitions)
			}
			room += c.limit
		}
		if c.limit > 0 && n[c.name] > c.limit {
			t.Errorf("%s has %d, at most %d", c.name, n[c.name], c.limit)
		}
	}
	if len(s.owners) != len(s.partitions) {
		t.Errorf("%d of %d partitions", len(s.owners), len(s.partitions))
	}
	for p, m := range s.owners {
		if _, open := isOpen[m]; !open && room >= len(s.partitions) {
			t.Errorf("%s is %q's", p, m)
		}
	}
	for _, a := range isOpen {
		for _, b := range isOpen {
			if n[a.name] > n[b.name]+1 && (b.limit == 0 || n[b.name] < b.limit) {
				t.Errorf("%s has %d, %s has %d of %d", a.name, n[a.name], b.name, n[b.name], b.limit)
			}
		}
	}
}

// change adopts the next assignment, and returns how many moved, and how many of those from or to a member.
func (s *shared) change(member string) (moved, from, to int) {
	before := maps.Clone(s.owners)
	s.adopt()
	for p, m := range s.owners {
		switch was := before[p]; {
		case was == m || was == "":
			continue
		case was == member:
			from++
		case m == member:
			to++
		}
		moved++
	}
	return moved, from, to
}

// TestEven: whatever the limits and drains, and nothing moves when nothing changes.
func TestEven(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := draw(t, true, true)
		s.check(t)
		if moved, _, _ := s.change(""); moved != 0 {
			t.Errorf("%d moved without a change", moved)
		}
	})
}

// TestJoins: one that joins N gets at most ⌈P/N⌉, and none moves between others.
func TestJoins(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limits := rapid.Bool().Draw(t, "limits")
		s := draw(t, limits, false)
		n := len(s.members)
		s.members = append(s.members, candidate{name: rapid.SampledFrom([]string{"a", "m05x", "z"}).Draw(t, "name")})
		moved, _, to := s.change(s.members[n].name)
		s.check(t)
		if moved != to || !limits && moved > (len(s.partitions)+n-1)/n {
			t.Errorf("%d moved, %d to it: %d partitions on %d members before", moved, to, len(s.partitions), n)
		}
	})
}

// TestLeaves: of one that leaves or drains, only its own move.
func TestLeaves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := draw(t, rapid.Bool().Draw(t, "limits"), false)
		i := rapid.IntRange(0, len(s.members)-1).Draw(t, "who")
		name := s.members[i].name
		if rapid.Bool().Draw(t, "drains") {
			s.members[i].drained = true
		} else {
			s.members = slices.Delete(s.members, i, i+1)
		}
		moved, from, _ := s.change(name)
		s.check(t)
		if moved != from {
			t.Errorf("%d moved, %d from it", moved, from)
		}
	})
}

// TestPartitionsChange: no more move than the quotas need.
func TestPartitionsChange(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := draw(t, false, false)
		before := s.count()
		if rapid.Bool().Draw(t, "more") {
			for i := range rapid.IntRange(1, 20).Draw(t, "new") {
				s.partitions = append(s.partitions, fmt.Sprintf("q%02d", i))
			}
			if moved, _, _ := s.change(""); moved != 0 {
				t.Errorf("%d moved for new ones, from %v", moved, before)
			}
			s.check(t)
			return
		}
		s.partitions = slices.DeleteFunc(s.partitions, func(string) bool { return rapid.Bool().Draw(t, "removed") })
		left := map[string]int{}
		for _, p := range s.partitions {
			left[s.owners[p]]++
		}
		needed, share := 0, len(s.partitions)/len(s.members)
		over := 0
		for _, m := range s.members {
			needed += max(0, left[m.name]-share)
			over += min(1, max(0, left[m.name]-share))
		}
		needed -= min(over, len(s.partitions)%len(s.members))
		moved, _, _ := s.change("")
		s.check(t)
		if moved != needed {
			t.Errorf("%d moved, %d had to: %v of %d partitions", moved, needed, left, len(s.partitions))
		}
	})
}

// TestRefused: what a member refuses goes to one that does not, if there is room; nothing else
// moves to where others refuse, and it ends.
func TestRefused(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := draw(t, false, false)
		for i := range s.members {
			for _, p := range s.partitions {
				if rapid.IntRange(0, 9).Draw(t, "refuses") == 0 {
					s.members[i].refuses[p] = true
				}
			}
		}
		s.adopt()
		for p, m := range s.owners {
			i := slices.IndexFunc(s.members, func(c candidate) bool { return c.name == m })
			taken := slices.ContainsFunc(s.members, func(c candidate) bool { return !c.refuses[p] })
			if m == "" || taken && s.members[i].refuses[p] {
				t.Errorf("%s is %q's", p, m)
			}
		}
		for range 3 {
			s.adopt()
		}
		if moved, _, _ := s.change(""); moved != 0 {
			t.Errorf("%d move for ever", moved)
		}
	})
}

// TestRefusesOne: the refused one moves, and nothing for it.
func TestRefusesOne(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := draw(t, false, false)
		if len(s.members) < 2 || len(s.partitions) == 0 {
			return
		}
		p := rapid.SampledFrom(s.partitions).Draw(t, "which")
		i := slices.IndexFunc(s.members, func(c candidate) bool { return c.name == s.owners[p] })
		s.members[i].refuses[p] = true
		if moved, from, _ := s.change(s.members[i].name); moved != 1 || from != 1 {
			t.Errorf("%d moved, %d from it", moved, from)
		}
		s.since[p] = time.Time{} // it is not the first to move any more
		if moved, _, _ := s.change(""); moved != 0 {
			t.Errorf("%d moved in exchange", moved)
		}
	})
}
