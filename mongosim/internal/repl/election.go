package repl

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// reason is why a member stands for election, in the words of
// electionCandidateMetrics.
type reason string

const (
	electionTimedOut reason = "electionTimeout"
	priorityTakeover reason = "priorityTakeover"
	catchupTakeover  reason = "catchUpTakeover"
	stepUpAsked      reason = "stepUpRequest"
)

type stepUpRequest struct{ done chan struct{} }

// resetElection restarts the election timer after a sign of a primary. Callers
// hold mu.
func (n *Node) resetElection() {
	n.electionAt = time.Time{}
	if n.conf == nil || n.self < 0 || n.role == leader || !electable(&n.conf.members[n.self]) {
		return
	}
	now := time.Now()
	if len(n.members) == 1 {
		// No other voter to wait for.
		n.electionAt = now
		if n.frozenUntil.After(now) {
			n.electionAt = n.frozenUntil
		}
	} else {
		timeout := n.electionTimeout()
		n.electionAt = now.Add(timeout + time.Duration(n.rng.Int64N(max(int64(timeout)*15/100, 1))))
	}
	n.timers.fire()
}

// planTakeover starts the timers of takeovers, or stops them. It is called at
// each heartbeat of a primary. Callers hold mu.
func (n *Node) planTakeover() {
	now := time.Now()
	if n.self < 0 || n.primary < 0 || n.role == leader || !electable(&n.conf.members[n.self]) {
		n.takeoverAt, n.catchupAt = time.Time{}, time.Time{}
		return
	}
	mine := n.conf.members[n.self].Priority
	if mine <= n.conf.members[n.primary].Priority {
		n.takeoverAt = time.Time{}
	} else if n.takeoverAt.IsZero() {
		rank := 1
		for i := range n.conf.members {
			if n.conf.members[i].Priority > mine {
				rank++
			}
		}
		timeout := n.electionTimeout()
		n.takeoverAt = now.Add(timeout*time.Duration(rank) + time.Duration(n.rng.Int64N(max(int64(timeout)*15/100, 1))))
		n.timers.fire()
	}
	switch {
	case n.conf.takeoverDelay < 0 || !n.primaryBehind():
		n.catchupAt = time.Time{}
	case n.catchupAt.IsZero():
		n.catchupAt = now.Add(n.scaled(n.conf.takeoverDelay))
		n.timers.fire()
	}
}

// primaryBehind reports whether the primary still has to catch up with this member.
// Callers hold mu.
func (n *Node) primaryBehind() bool {
	if n.primary < 0 || n.primary == n.self {
		return false
	}
	p := n.members[n.primary]
	return p.beatApplied.at.Term < n.term && n.applied.later(p.beatApplied)
}

// unelectable says why this member cannot stand for election now; "" if it can.
// Callers hold mu.
func (n *Node) unelectable(why reason) string {
	if n.conf == nil || n.self < 0 {
		return "not a member"
	}
	switch me := &n.conf.members[n.self]; {
	case me.Arbiter:
		return "member is an arbiter"
	case !electable(me):
		return "member has zero priority"
	case n.role == leader:
		return ""
	case n.follow != oplog.MemberSecondary || n.fatal != "":
		return "member is not currently a secondary"
	case n.syncing || n.applied.at.IsNull():
		return "node has no applied oplog entries"
	case n.frozenUntil.After(time.Now()):
		return "stepdown period is active"
	}
	up := 0
	for i, m := range n.members {
		if i == n.self || m.up {
			up += n.conf.members[i].Votes
		}
	}
	if up < n.conf.majority() {
		return "I cannot see a majority"
	}
	switch why {
	case electionTimedOut, stepUpAsked:
	case priorityTakeover:
		newest := n.applied.at.TS.T
		for _, m := range n.members {
			newest = max(newest, m.beatApplied.at.TS.T)
		}
		if newest > n.applied.at.TS.T+priorityTakeoverLagSeconds {
			return "member is not caught up enough to the most up-to-date member to call for priority takeover"
		}
	case catchupTakeover:
		if !n.primaryBehind() {
			return "member is either not the most up-to-date member or not ahead of the primary"
		}
	}
	return ""
}

// priorityTakeoverLagSeconds is the largest lag of a member that takes over by
// priority.
const priorityTakeoverLagSeconds = 10

// electionLoop stands for election when due, and makes a primary step down when
// it no longer reaches a majority.
func (n *Node) electionLoop(ctx context.Context) {
	var due time.Time // of the timer; zero: there was none
	for ctx.Err() == nil {
		n.mu.Lock()
		now := time.Now()
		n.excuse(due, now)
		wait, why := n.dueElection(now)
		wait = n.pulse(wait)
		changed := n.timers.wait()
		n.mu.Unlock()
		due = time.Time{}
		if why != "" {
			n.stand(ctx, why)
			continue
		}
		var fires <-chan time.Time
		timer := time.NewTimer(max(wait, time.Microsecond))
		if wait > 0 {
			fires, due = timer.C, now.Add(wait)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-fires:
		case ask := <-n.stepUps:
			n.stand(ctx, stepUpAsked)
			close(ask.done)
			due = time.Time{}
		}
		timer.Stop()
	}
}

// dueElection reports whether to stand for election now, and if not, how long to
// wait before the next check; 0 means until something changes. Callers hold mu.
func (n *Node) dueElection(now time.Time) (time.Duration, reason) {
	if n.conf == nil || n.self < 0 {
		return 0, ""
	}
	if n.role == leader {
		left := n.lease(now)
		if left <= 0 {
			n.stepDown("can't see a majority of the set")
			return time.Microsecond, ""
		}
		return left, ""
	}
	var wait time.Duration
	for _, timer := range []struct {
		at  *time.Time
		why reason
	}{{&n.catchupAt, catchupTakeover}, {&n.takeoverAt, priorityTakeover}, {&n.electionAt, electionTimedOut}} {
		if timer.at.IsZero() {
			continue
		}
		left := timer.at.Sub(now)
		if left > 0 {
			if wait == 0 || left < wait {
				wait = left
			}
			continue
		}
		*timer.at = time.Time{}
		why := n.unelectable(timer.why)
		if timer.why == electionTimedOut {
			n.rearm()
		}
		if why == "" {
			return 0, timer.why
		}
		n.log.Debug("not standing for election", keyReason, why)
		return time.Microsecond, ""
	}
	return wait, ""
}

// rearm sets the election timer for another try. Callers hold mu.
func (n *Node) rearm() {
	if len(n.members) == 1 && n.unelectable(electionTimedOut) != "" && !n.frozenUntil.After(time.Now()) {
		// The timer would fire at once. An event that makes this member electable,
		// an entry or another state, sets it again.
		return
	}
	n.resetElection()
}

// stand stands for election: a dry run, which binds no voter, then the vote.
func (n *Node) stand(ctx context.Context, why reason) {
	n.mu.Lock()
	if n.role == leader || n.unelectable(why) != "" {
		n.mu.Unlock()
		return
	}
	term, gen, prior := n.term, n.confGen, n.primary
	n.log.Info("standing for election", keyTerm, term+1, keyReason, string(why))
	n.mu.Unlock()

	if !n.poll(ctx, term, true) {
		return
	}
	n.mu.Lock()
	// The condition of a takeover is consumed by the dry run; the others are checked
	// again.
	if n.term != term || n.confGen != gen || n.role == leader || n.unelectable(electionTimedOut) != "" {
		n.mu.Unlock()
		return
	}
	term++
	n.term = term
	n.vote = vote{term: term, candidate: int64(n.self)}
	n.findPrimary()
	n.mu.Unlock()
	if err := n.saveVote(); err != nil {
		n.log.Error("vote not stored", keyError, err.Error())
		return
	}
	if !n.poll(ctx, term, false) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.term != term || n.confGen != gen || n.role == leader || n.unelectable(electionTimedOut) != "" {
		return
	}
	n.win(why, prior)
}

// win makes this member primary. It accepts writes when the data loop has caught
// up. Callers hold mu.
func (n *Node) win(why reason, prior int) {
	n.log.Info("elected", keyTerm, n.term, keyReason, string(why))
	now := time.Now()
	n.role = leader
	n.writable, n.attempting = false, false
	n.termStart = oplog.OpTime{}
	n.electionTime = nextTimestamp(n.cfg.Now(), n.applied.at.TS)
	n.electionAt, n.takeoverAt, n.catchupAt = time.Time{}, time.Time{}, time.Time{}
	n.denied = map[string]time.Time{}
	n.tooOld = false
	n.candidacy = metrics{
		reason: why, date: n.cfg.Now(), term: n.term,
		committed: n.committed.at, seen: n.newestSeen(), votesNeeded: n.conf.majority(),
		priority: n.conf.members[n.self].Priority, timeout: n.electionTimeout(), prior: -1,
	}
	if prior >= 0 {
		n.candidacy.prior = n.conf.members[prior].ID
	}
	for _, m := range n.members {
		// The lease starts with the election: the voters have just answered.
		m.heard = now
		m.soon()
	}
	n.findPrimary()
	n.endPull(errRoleChanged)
	n.bump()
}

// newestSeen is the newest optime that this member knows of. Callers hold mu.
func (n *Node) newestSeen() oplog.OpTime {
	newest := n.applied
	for i, m := range n.members {
		if i != n.self && m.up && m.beatApplied.later(newest) {
			newest = m.beatApplied
		}
	}
	return newest.at
}
