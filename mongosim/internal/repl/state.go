package repl

import (
	"context"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// state is the state of a Node. It is guarded by Node.mu.
type state struct {
	// rng is for times. made counts identifiers by what they are for.
	rng  *rand.Rand
	made map[string]int

	// conf is nil before the set was initiated. It never changes: another
	// configuration is another value, and confGen counts them.
	conf    *config
	confGen int
	// initiating says that a replSetInitiate is under way.
	initiating bool
	// self and primary are indexes into conf.members, -1 for none.
	self, primary int
	members       []*member // parallel to conf.members

	term int64
	vote vote

	role role
	// follow is the state that a follower shows.
	follow oplog.MemberState
	// writable, attempting: a leader that has caught up; one whose step-down waits
	// for secondaries.
	writable, attempting bool
	// epoch counts the times that this member stopped being primary, history the
	// times that its data went back.
	epoch, history int
	// termStart is the optime of a leader's first entry; null before it is written.
	termStart oplog.OpTime
	// electionTime is the timestamp at which a leader was elected.
	electionTime bson.Timestamp
	// downPending makes the data loop report that this member stepped down.
	downPending bool
	// frozenUntil is the time until which this member does not stand for
	// election.
	frozenUntil time.Time

	// electionAt, takeoverAt and catchupAt are when to stand for election: for lack
	// of a primary, by priority, or because the primary lags.
	electionAt, takeoverAt, catchupAt time.Time

	applied, durable, committed moment
	// hint is a commit point that this member has learned and may not have reached.
	hint moment
	rbid int

	source  string
	denied  map[string]time.Time // no sources until then
	tooOld  bool                 // no source has the next entry for this member
	fatal   string               // why this member cannot continue; "" if it can
	syncing bool                 // an initial sync is needed
	closed  bool                 // Run has returned
	heirTo  string               // the member to ask to stand for election after a step-down

	stopPull context.CancelCauseFunc // ends the wait of the data loop

	topology int64
	// askHost is a member to ask for a newer configuration.
	askHost string

	topo, commit, progress, changed, timers signal

	candidacy, participation metrics
}

// moment is an optime and the wall time of its entry.
type moment struct {
	at   oplog.OpTime
	wall time.Time
}

// nullMoment is what a member without data reports.
var nullMoment = moment{at: oplog.OpTime{Term: oplog.UninitializedTerm}}

func (m moment) later(o moment) bool { return m.at.After(o.at) }

type role uint8

const (
	follower role = iota
	leader
)

// vote is the newest vote of this member, as it is stored.
type vote struct {
	term      int64
	candidate int64
}

// memberState is the state that this member shows. Callers hold mu.
func (n *Node) memberState() oplog.MemberState {
	switch {
	case n.conf == nil:
		return oplog.MemberStartup
	case n.self < 0:
		return oplog.MemberRemoved
	case n.role == leader:
		return oplog.MemberPrimary
	case n.conf.members[n.self].Arbiter:
		return oplog.MemberArbiter
	}
	return n.follow
}

// bump signals a change of hello's reply. Callers hold mu.
func (n *Node) bump() {
	n.topology++
	n.topo.fire()
	n.changed.fire()
	n.progress.fire()
	n.timers.fire()
}

// setFollow changes the state of a follower. Callers hold mu.
func (n *Node) setFollow(s oplog.MemberState) {
	if n.follow != s {
		n.follow = s
		n.bump()
	}
}

// setTerm learns of a term: a higher one ends this member's role in the present
// one. Callers hold mu.
func (n *Node) setTerm(term int64) {
	if term <= n.term {
		return
	}
	n.term = term
	if n.role == leader {
		n.stepDown("a higher term")
	}
	n.findPrimary()
}

// stepDown makes a leader a follower, at once: from here on WriteTerm refuses.
// The data loop does the rest. Callers hold mu.
func (n *Node) stepDown(reason string) {
	if n.role != leader {
		return
	}
	n.log.Info("stepped down", keyTerm, n.term, keyReason, reason)
	n.role = follower
	n.writable, n.attempting = false, false
	n.epoch++
	n.termStart = oplog.OpTime{}
	n.downPending = true
	n.follow = oplog.MemberSecondary
	n.endPull(errRoleChanged)
	n.findPrimary()
	n.resetElection()
	n.bump()
}

// endPull ends the wait of the data loop. Callers hold mu.
func (n *Node) endPull(cause error) {
	if n.stopPull != nil {
		n.stopPull(cause)
	}
}

// findPrimary determines which member is primary. Callers lock mu.
func (n *Node) findPrimary() {
	found := -1
	if n.role == leader {
		found = n.self
	} else {
		for i, m := range n.members {
			if i != n.self && m.up && m.state == oplog.MemberPrimary && m.term == n.term {
				found = i
				break
			}
		}
	}
	if found != n.primary {
		n.primary = found
		n.bump()
	}
}

// electionTimeout is how long a follower waits for signs of a primary.
// Callers hold mu.
func (n *Node) electionTimeout() time.Duration {
	if n.cfg.ElectionTimeout > 0 {
		return n.cfg.ElectionTimeout
	}
	if n.conf != nil {
		return n.conf.electionTimeout
	}
	return defaultElectionTimeout
}

// scaled scales one of the server's periods in proportion to ElectionTimeout.
func (n *Node) scaled(d time.Duration) time.Duration {
	if n.cfg.ElectionTimeout > 0 && n.cfg.ElectionTimeout < defaultElectionTimeout {
		d = time.Duration(float64(d) * float64(n.cfg.ElectionTimeout) / float64(defaultElectionTimeout))
	}
	return max(d, time.Millisecond)
}

// heartbeatTimeout is the silence after which a member counts as down. Callers
// hold mu.
func (n *Node) heartbeatTimeout() time.Duration {
	d := defaultHeartbeatTimeout
	if n.conf != nil {
		d = n.conf.heartbeatTimeout
	}
	return n.scaled(d)
}

// setApplied records lastApplied and lastDurable. Callers hold mu.
func (n *Node) setApplied(m moment) {
	n.applied = m
	if n.cfg.JournalDelay <= 0 {
		n.durable = m
	}
	n.progress.fire()
}

// Wrote is for opwrite.Config.OnWrite.
func (n *Node) Wrote(at oplog.OpTime, wall time.Time) {
	n.mu.Lock()
	// A write may be reported after the member stepped down and rolled back; then
	// the optime was read from the store already.
	if n.role != leader || at.Term != n.term || !at.After(n.applied.at) {
		n.mu.Unlock()
		return
	}
	n.setApplied(moment{at, wall})
	n.mu.Unlock()
	n.settle()
}

// WriteTerm is for opwrite.Config.Term: the term if this member is a primary that
// has caught up. That is so while Hooks.SteppedUp runs already, which may write;
// clients must wait for View.Writable.
func (n *Node) WriteTerm() (int64, error) {
	if n.cfg.Played != nil {
		return 0, errPlays
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.role != leader || n.termStart.IsNull() || n.attempting {
		return 0, notPrimary("not master")
	}
	return n.term, nil
}

// SawTerm learns a term that a request carried: a higher one makes a primary
// step down.
func (n *Node) SawTerm(term int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.setTerm(term)
}
