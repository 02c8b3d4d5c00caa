package repl

import "time"

// pulses is how often per election timeout the election loop compares the time with
// the one for which it had set its timer.
const pulses = 10

// pulse returns how long the election loop sleeps, if it would sleep for wait: it must
// notice how long a standstill was, not only that its timer ran out during one. 0 means
// until something changes. Callers hold mu.
func (n *Node) pulse(wait time.Duration) time.Duration {
	if wait == 0 || n.conf == nil {
		return wait
	}
	return min(wait, max(n.electionTimeout()/pulses, time.Millisecond))
}

// excuse moves the deadlines of the election timer and of a primary's lease by the
// time for which this process did not run: the election loop, whose timer was set
// to due, runs only now. A server would not do that. But its members are
// in processes of their own; in one process all members stand still together, and
// each would take the others for silent afterwards. A member that is silent while this
// one runs is not excused, and no deadline is later than if it had been set now.
// Callers hold mu.
func (n *Node) excuse(due, now time.Time) {
	late := now.Sub(due)
	if due.IsZero() || late <= 0 || n.conf == nil {
		return
	}
	for _, m := range n.members {
		m.heard = earlier(m.heard.Add(late), now)
	}
	if latest := now.Add(n.electionTimeout()); !n.electionAt.IsZero() && n.electionAt.Before(latest) {
		n.electionAt = earlier(n.electionAt.Add(late), latest)
	}
}

// earlier returns the earlier of two times.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
