package model

import (
	"fmt"
	"slices"
	"strings"
)

// invariant is what a state may break.
type invariant string

const (
	// No write takes effect after a process of a newer term has begun to lead.
	order invariant = "order"
	// Each entry is written once, in order, and none that was acknowledged is gone.
	once invariant = "exactly once"
	// No two processes have a lease of the same term.
	terms invariant = "terms"
	// A process that uses a lease has it by the store's clock, too.
	oneHolder invariant = "one holder"
	// Each process can get to lead by itself.
	live invariant = "liveness"
)

// check returns the invariant that a state breaks, "" for none.
func (c *config) check(s *state) invariant {
	if s.broken != "" {
		return s.broken
	}
	if s.now.value < s.acked {
		return once
	}
	if c.elections > 0 || c.takeovers > 0 {
		return ""
	}
	for p := range c.processes {
		if q := &s.procs[p]; q.uses() && (!s.now.has(p, q.term) || s.now.left == 0) {
			return oneHolder
		}
	}
	return ""
}

// explored has the states that were reached.
type explored struct {
	cfg    *config
	states []state
	// from is the state before each, by the step that leads to it; into has all edges.
	from  []int32
	by    []step
	edges []edge
	index map[state]int32
	// bad is the first state that breaks an invariant, or -1.
	bad    int32
	broken invariant
}

type edge struct {
	from, to int32
	actor    actor
}

// explore visits every state, breadth first, until one breaks an invariant. With edges it
// records them.
func (c *config) explore(edges bool) *explored {
	e := &explored{cfg: c, index: map[state]int32{}, bad: -1}
	e.add(state{elections: c.elections, forgets: c.forgets, takeovers: c.takeovers}, -1, step{})
	for i := int32(0); int(i) < len(e.states) && e.bad < 0; i++ {
		s := e.states[i]
		c.next(&s, func(by step, t state) {
			to := e.add(t, i, by)
			if edges && by.actor != fault {
				e.edges = append(e.edges, edge{i, to, by.actor})
			}
		})
	}
	return e
}

func (e *explored) add(s state, from int32, by step) int32 {
	i, found := e.index[s]
	if found {
		return i
	}
	i = int32(len(e.states))
	e.index[s] = i
	e.states, e.from, e.by = append(e.states, s), append(e.from, from), append(e.by, by)
	if broken := e.cfg.check(&s); broken != "" && e.bad < 0 {
		e.bad, e.broken = i, broken
	}
	return i
}

// stuck returns a state from which a process, not disturbed and with all others dead, cannot
// get to lead, -1 if there is none. Those at the bounds of the model do not count.
func (e *explored) stuck() (at int32, process int8) {
	before := make([][]edge, len(e.states))
	for _, d := range e.edges {
		before[d.to] = append(before[d.to], d)
	}
	for p := range e.cfg.processes {
		can := make([]bool, len(e.states))
		var todo []int32
		for i := range e.states {
			s := &e.states[i]
			if can[i] = s.procs[p].stage == leading && s.procs[p].uses() || max(s.now.term, s.procs[p].seen) >= e.cfg.terms; can[i] {
				todo = append(todo, int32(i))
			}
		}
		for len(todo) > 0 {
			i := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			for _, d := range before[i] {
				if !can[d.from] && (d.actor == nature || d.actor == actor(p)) {
					can[d.from] = true
					todo = append(todo, d.from)
				}
			}
		}
		for i := range can {
			if !can[i] {
				return int32(i), p
			}
		}
	}
	return -1, 0
}

// trace says how a state is reached.
func (e *explored) trace(at int32) string {
	var lines []string
	for i := at; i > 0; i = e.from[i] {
		s, by := &e.states[i], e.by[i]
		var b strings.Builder
		if by.actor >= 0 {
			fmt.Fprintf(&b, "process %d: ", by.actor)
		}
		fmt.Fprintf(&b, "%s\n    store %+v", by.what, s.now)
		for p := range e.cfg.processes {
			fmt.Fprintf(&b, "\n    process %d %+v", p, s.procs[p])
		}
		for _, m := range s.msgs {
			if m.kind != noMessage {
				fmt.Fprintf(&b, "\n    message %+v", m)
			}
		}
		lines = append(lines, b.String())
	}
	slices.Reverse(lines)
	return fmt.Sprintf("%d steps:\n%s", len(lines), strings.Join(lines, "\n"))
}
