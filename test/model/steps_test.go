package model

import (
	"cmp"
	"slices"
)

// actor is the process that takes a step, or nature.
type actor int8

const (
	nature actor = -1 // time passes, messages arrive or are lost
	fault  actor = -2
)

// step is a transition: what happens, and to whom.
type step struct {
	what  string
	actor actor
}

// next calls yield with each state that can follow.
func (c *config) next(s *state, yield func(step, state)) {
	c.ticks(s, yield)
	for i := range s.msgs {
		if s.msgs[i].kind != noMessage {
			c.arrive(s, i, yield)
		}
	}
	for p := range c.processes {
		c.process(s, p, yield)
	}
	c.faults(s, yield)
}

// take removes a message.
func (s *state) take(i int) (m message) {
	m, s.msgs[i] = s.msgs[i], message{}
	s.sort()
	return m
}

// send adds a message, if there is room.
func (s *state) send(most int8, m message) bool {
	if s.msgs[most-1].kind != noMessage {
		return false
	}
	s.msgs[most-1] = m
	s.sort()
	return true
}

// sort gives states with the same messages the same form: none last.
func (s *state) sort() {
	slices.SortFunc(s.msgs[:], func(a, b message) int {
		return cmp.Or(-cmp.Compare(a.kind, b.kind), cmp.Compare(a.proc, b.proc), cmp.Compare(a.term, b.term), cmp.Compare(a.n, b.n),
			cmp.Compare(a.since, b.since), cmp.Compare(a.age, b.age), cmp.Compare(a.at, b.at), cmp.Compare(a.found, b.found), cmp.Compare(a.dur, b.dur))
	})
}

// ticks lets time pass, on any set of clocks that may not miss it.
func (c *config) ticks(s *state, yield func(step, state)) {
	for missing := range int8(1) << c.processes {
		t, ok := *s, true
		for _, st := range []*store{&t.now, &t.safe} {
			if st.left > 0 && st.left < far {
				st.left--
			}
		}
		for p := range c.processes {
			q := &t.procs[p]
			if q.stage == idle && q.watchTerm > 0 {
				q.watched = min(q.watched+1, c.unmoved())
			}
			switch {
			case missing&(1<<p) == 0:
				q.until = max(q.until-1, 0)
			case q.until == 0 || q.missed == c.slow:
				ok = false
			default:
				q.missed++
			}
		}
		for i := range t.msgs {
			m := &t.msgs[i]
			switch {
			case m.kind == renewed && m.since+1 >= c.lasts():
				*m = message{} // too late to say anything
			case m.kind == renew || m.kind == renewed:
				m.since = min(m.since+1, c.ttl)
				if m.begun {
					m.age = min(m.age+1, c.ttl)
				}
			}
		}
		if t.sort(); ok {
			yield(step{"time passes", nature}, t)
		}
	}
}

// arrive delivers a message, or loses it.
func (c *config) arrive(s *state, i int, yield func(step, state)) {
	lost := *s
	m := lost.take(i)
	yield(step{"a message is lost", nature}, lost)
	t := lost
	switch m.kind {
	case noMessage:
	case raise:
		c.raised(&t, &m)
		yield(step{"the term is raised, if it may be", nature}, t)
	case renew:
		if c.stalls && !m.begun {
			begun := *s
			begun.msgs[i].begun = true
			begun.sort()
			yield(step{"the server begins a renewal", nature}, begun)
		}
		if c.renewal(&t, &m) {
			yield(step{"a renewal is executed, its reply lost", nature}, t)
			if m.since < c.lasts() && t.send(c.messages, message{kind: renewed, proc: m.proc, term: m.term, since: m.since}) {
				yield(step{"a renewal is executed", nature}, t)
			}
		}
	case renewed:
		if p := &t.procs[m.proc]; p.uses() && p.term == m.term {
			p.until, p.missed = c.lasts()-m.since, 0
		}
		yield(step{"a process knows that its lease was renewed", nature}, t)
	case write:
		c.written(&t, &m)
		yield(step{"entries are written, if they may be", nature}, t)
	}
}

// raised executes the statement that raises the term.
func (c *config) raised(t *state, m *message) {
	st := &t.now
	switch {
	case st.number >= m.term: // too old, or executed already
		return
	case c.has(compareAndSet) && st.term != m.found:
		return
	case !m.forced && !st.free(m.proc) && (!m.moved || st.term != m.found || st.dur != m.dur):
		return
	}
	st.number, st.term, st.holder, st.dur, st.left, st.released = m.term, m.term, m.proc+1, 0, c.ttl, false
}

// renewal executes a renewal, and reports whether it met the document.
func (c *config) renewal(t *state, m *message) bool {
	st := &t.now
	if !st.has(m.proc, m.term) || c.has(numberedRenewals) && st.dur >= m.n {
		return false
	}
	st.dur, st.left = m.n, c.ttl-m.age
	return true
}

// written executes a transaction that writes the entry after at.
func (c *config) written(t *state, m *message) {
	st := &t.now
	switch {
	case st.laneNumber > m.term:
		return
	case c.has(fence) && st.lane != m.term:
		return
	case c.has(position) && st.at != m.at:
		return
	}
	switch {
	case m.term < t.led:
		t.broken = order
	case m.at != st.value:
		t.broken = once
	}
	st.laneNumber, st.at, st.value = m.term, m.at+1, m.at+1
}

// faults are what happens to the store.
func (c *config) faults(s *state, yield func(step, state)) {
	if s.forgets > 0 {
		t := *s
		t.forgets--
		t.now.number, t.now.laneNumber, t.safe.number, t.safe.laneNumber = 0, 0, 0, 0
		yield(step{"the sessions are forgotten", fault}, t)
	}
	if s.elections == 0 {
		return
	}
	for _, rolledBack := range []bool{false, true} {
		t := *s
		if t.elections--; rolledBack {
			t.now = t.safe
		}
		yield(step{"an election", fault}, t)
		if !c.skews || t.now.left == 0 {
			continue
		}
		t.now.left, t.safe.left = 0, 0
		yield(step{"an election, the clock is ahead", fault}, t)
		t.now.left, t.safe.left = far, far
		yield(step{"an election, the clock is behind", fault}, t)
	}
}
