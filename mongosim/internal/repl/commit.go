package repl

import (
	"context"
	"slices"
	"time"

	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// learnCommit learns a commit point from another member. The sync source's is on
// the history that this member follows, so it counts up to lastApplied; another
// member's counts only if it has the term of the newest entry here. Callers hold
// mu.
func (n *Node) learnCommit(m moment, fromSource bool) {
	if m.at.IsNull() || n.applied.at.IsNull() || n.role == leader || n.syncing {
		return
	}
	if fromSource {
		if m.later(n.applied) {
			m = n.applied
		}
	} else if m.at.Term != n.applied.at.Term {
		return
	}
	if m.later(n.hint) {
		n.hint = m
	}
}

// countCommit computes a primary's commit point: the newest entry of its own
// term that enough voters have. Callers hold mu.
func (n *Node) countCommit() {
	if n.role != leader || n.termStart.IsNull() {
		return
	}
	var have []moment
	for i, m := range n.members {
		switch {
		case n.conf.members[i].Votes == 0:
		case i == n.self && n.conf.journalMajority:
			have = append(have, n.durable)
		case i == n.self:
			have = append(have, n.applied)
		case n.conf.members[i].Arbiter:
			have = append(have, nullMoment)
		case n.conf.journalMajority:
			have = append(have, m.durable)
		default:
			have = append(have, m.applied)
		}
	}
	slices.SortFunc(have, func(a, b moment) int {
		// Null optimes have no term and compare by timestamp alone, so they are
		// checked first.
		return a.at.Compare(b.at)
	})
	need := n.conf.writeMajority()
	if need < 1 || len(have) < need {
		return
	}
	m := have[len(have)-need]
	// An entry of an earlier term is committed only by one of this term after it.
	if m.at.Term == n.term && !m.at.Before(n.termStart) && !m.later(n.applied) && m.later(n.hint) {
		n.hint = m
	}
}

// settle advances the commit point, and with it the store's stable timestamp, as
// far as the known optimes allow. It is called without mu, after a change of
// anything that the commit point depends on.
func (n *Node) settle() {
	n.mu.Lock()
	n.countCommit()
	to, history := n.hint, n.history
	if to.later(n.applied) {
		if to.at.Term != n.applied.at.Term {
			n.mu.Unlock()
			return
		}
		to = n.applied
	}
	if n.syncing || !to.later(n.committed) {
		n.mu.Unlock()
		return
	}
	n.mu.Unlock()
	// The stable timestamp first: a client that sees the commit point may read at it.
	_ = n.cfg.Store.Write(func(w *storage.Writer) error { // SetStable cannot fail
		n.mu.Lock()
		same := history == n.history
		n.mu.Unlock()
		if same {
			w.SetStable(to.at.TS)
		}
		return nil
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	if history == n.history && to.later(n.committed) {
		n.committed = to
		if n.role == leader && n.candidacy.available.IsZero() && !to.at.Before(n.termStart) {
			n.candidacy.available = n.cfg.Now()
		}
		n.commit.fire()
		n.progress.fire()
	}
}

// journalLoop makes applied entries durable, JournalDelay later.
func (n *Node) journalLoop(ctx context.Context) {
	for ctx.Err() == nil {
		n.mu.Lock()
		to, history, changed := n.applied, n.history, n.progress.wait()
		behind := to.later(n.durable)
		n.mu.Unlock()
		if !behind {
			sleep(ctx, 0, changed)
			continue
		}
		sleep(ctx, n.cfg.JournalDelay, nil)
		if ctx.Err() != nil {
			return
		}
		n.mu.Lock()
		if history == n.history && to.later(n.durable) {
			n.durable = to
			n.progress.fire()
		}
		n.mu.Unlock()
		n.settle()
	}
}

// noopLoop writes a no-op entry when a primary has written nothing for
// NoopInterval.
func (n *Node) noopLoop(ctx context.Context) {
	var seen moment
	for ctx.Err() == nil {
		sleep(ctx, n.cfg.NoopInterval, nil)
		n.mu.Lock()
		idle := n.role == leader && n.writable && n.applied.at == seen.at
		seen = n.applied
		n.mu.Unlock()
		if idle && ctx.Err() == nil {
			if m, err := n.writeNoop(noopPeriodic, n.WriteTerm); err == nil {
				n.Wrote(m.at, m.wall)
				seen = m
			}
		}
	}
}

// lease returns the time left until a majority of voters has been silent for too
// long: a primary steps down when it is 0 or less. Callers hold mu.
func (n *Node) lease(now time.Time) time.Duration {
	timeout := n.electionTimeout()
	var left []time.Duration
	for i, m := range n.members {
		if n.conf.members[i].Votes == 0 {
			continue
		}
		if i == n.self {
			left = append(left, timeout)
			continue
		}
		left = append(left, timeout-now.Sub(m.heard))
	}
	slices.Sort(left)
	slices.Reverse(left)
	return left[min(n.conf.majority(), len(left))-1]
}
