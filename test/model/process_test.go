package model

// process takes the steps of one process.
func (c *config) process(s *state, p int8, yield func(step, state)) {
	do := func(what string, change func(t *state, q *proc) bool) {
		t := *s
		if change(&t, &t.procs[p]) {
			yield(step{what, actor(p)}, t)
		}
	}
	q := &s.procs[p]
	switch {
	case q.stage == idle:
		c.standBy(s, p, do)
		return
	case q.until == 0:
		do("its lease is over", func(_ *state, q *proc) bool { return q.end() })
		return
	}
	if c.ends {
		do("its attempt ends", func(_ *state, q *proc) bool { return q.end() })
	}
	switch q.stage {
	case idle:
	case raising:
		do("it reads whether it has the lease", func(t *state, q *proc) bool {
			q.seen = max(q.seen, t.now.term)
			if q.stage = granted; !t.now.has(p, q.term) {
				q.end()
			}
			return true
		})
	case granted:
		do("its grant is majority-committed", func(t *state, q *proc) bool {
			switch {
			case !c.has(majority):
			case !t.now.has(p, q.term):
				return q.end()
			default:
				t.safe = t.now
			}
			if t.owner[q.term] != 0 {
				t.broken = terms
			}
			q.stage, t.owner[q.term] = committed, p+1
			return true
		})
	case committed:
		do("it fences the lane, and leads", func(t *state, _ *proc) bool { return c.lead(t, p) })
	case leading:
		c.work(s, p, do)
	}
}

// end makes a process stand by.
func (p *proc) end() bool {
	*p = proc{seen: p.seen}
	return true
}

type doer func(what string, change func(t *state, q *proc) bool)

// standBy are the steps of a process that stands by.
func (c *config) standBy(s *state, p int8, do doer) {
	if q := &s.procs[p]; c.skews && (q.watchTerm != s.now.term || q.watchDur != s.now.dur) || q.seen < s.now.term {
		do("it looks at the lease", func(t *state, q *proc) bool {
			q.seen = max(q.seen, t.now.term)
			if c.skews {
				q.watchTerm, q.watchDur, q.watched = t.now.term, t.now.dur, 0
			}
			return true
		})
	}
	acquire := func(t *state, q *proc, m message) bool {
		m.kind, m.proc, m.found, m.dur = raise, p, t.now.term, t.now.dur
		m.term = m.found + 1
		if q.seen > m.found {
			if !c.has(above) {
				return false
			}
			m.term = q.seen + 1
		}
		if m.term > c.terms {
			return false
		}
		*q = proc{stage: raising, seen: max(q.seen, m.found), term: m.term, until: c.lasts()}
		return t.send(c.messages, m)
	}
	switch {
	case s.now.free(p):
		do("it acquires the lease", func(t *state, q *proc) bool { return acquire(t, q, message{}) })
		return
	case s.takeovers > 0:
		do("it takes the lease over", func(t *state, q *proc) bool {
			t.takeovers--
			return acquire(t, q, message{forced: true})
		})
	}
	do("it acquires the lease, which has not moved", func(t *state, q *proc) bool {
		return c.has(watch) && q.watched == c.unmoved() && q.watchTerm == t.now.term && q.watchDur == t.now.dur && acquire(t, q, message{moved: true})
	})
}

// lead fences the lane and reads how far it is.
func (c *config) lead(t *state, p int8) bool {
	q, st := &t.procs[p], &t.now
	if st.laneNumber > q.term || c.has(fence) && st.lane >= q.term {
		return q.end()
	}
	if st.laneNumber = q.term; c.has(fence) {
		st.lane = q.term
	}
	if c.has(majority) {
		t.safe = t.now
	}
	q.stage, q.at = leading, st.at
	t.led = max(t.led, q.term)
	return true
}

// work are the steps of the process that leads.
func (c *config) work(s *state, p int8, do doer) {
	q := &s.procs[p]
	if q.renewals < c.renewals {
		do("it sends a renewal", func(t *state, q *proc) bool {
			q.renewals++
			return t.send(c.messages, message{kind: renew, proc: p, term: q.term, n: q.renewals})
		})
	}
	if !q.waits && q.at < c.entries {
		do("it sends an entry", func(t *state, q *proc) bool {
			q.waits = true
			return t.send(c.messages, message{kind: write, proc: p, term: q.term, at: q.at})
		})
	}
	if q.waits {
		do("it waits no longer, and sends the entry again", func(_ *state, q *proc) bool {
			q.waits = false
			return true
		})
	}
	if q.waits && s.now.at > q.at && (s.now.lane == q.term || !c.has(fence)) {
		do("its entry is acknowledged by a majority", func(t *state, q *proc) bool {
			t.safe, q.waits = t.now, false
			q.at++
			t.acked = max(t.acked, q.at)
			return true
		})
	}
	if !c.ends {
		return
	}
	do("it gives the lease back", func(t *state, q *proc) bool {
		if t.now.has(p, q.term) {
			t.now.released = true
		}
		return q.end()
	})
}
