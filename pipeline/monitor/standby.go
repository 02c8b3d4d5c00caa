package monitor

import (
	"fmt"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
)

// Leader is the process that has a link's lease, as another one sees it that stands by.
type Leader struct {
	Process string
	Term    int64
	// Since is when it got the lease, Until when that ends unless it is renewed, by the
	// target's clock; both are zero if it does not renew it (Renews).
	Since, Until time.Time
	Why          string
	Renews       bool
	// Offers means that it cannot read the source, and leaves the lease to a process that can.
	Offers bool
}

func (l *Leader) String() string {
	if !l.Renews {
		return fmt.Sprintf("%s leads in term %d, and does not say until when: it is of an older release", l.Process, l.Term)
	}
	text := fmt.Sprintf("%s leads in term %d since %s, until %s UTC unless it renews its lease", l.Process, l.Term,
		l.Since.UTC().Format(time.DateTime), l.Until.UTC().Format(time.TimeOnly))
	if l.Offers {
		text += "; it cannot read the source, and leaves the lease to a process that can"
	}
	return text
}

// Role is the role of a process with regard to the link's lease.
type Role string

// The roles of a process.
const (
	// RoleLeader: it has the lease.
	RoleLeader Role = "leader"
	// RoleStandby: another one has it.
	RoleStandby Role = "standby"
	// RoleCandidate: no process is known to have it.
	RoleCandidate Role = "candidate"
)

// Role returns the role of this process.
func (s *Snapshot) Role() Role {
	switch {
	case s.Leader != nil:
		return RoleStandby
	case s.Lease.Left > 0:
		return RoleLeader
	}
	return RoleCandidate
}

// StandBy records that another process leads. The state of the link from the time when this
// process led is not reported any more.
func (m *Monitor) StandBy(leader Leader) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.standBy(leader, false, leader.String())
}

// Vacant records that no process leads since a term has ended, and why this process stands by.
func (m *Monitor) Vacant(term int64, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.standBy(Leader{Term: term}, true, why)
}

// standBy sets the state. The caller holds mu.
func (m *Monitor) standBy(leader Leader, vacant bool, why string) {
	if m.state != Standby {
		m.counted = m.attempt.counts(m.counted)
		m.attempt, m.copy, m.progress, m.gaps = Attempt{}, nil, checkpoint.Progress{}, checkpoint.Gaps{}
		m.source, m.window = fetcher.Status{}, Window{}
		m.caughtUp, m.durable = time.Time{}, time.Time{}
	}
	m.leader, m.vacant, m.resting = leader, vacant, true
	m.set(Standby, why)
}

// IsStandby reports whether another process leads, as far as is known, or comes first.
func (m *Monitor) IsStandby() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state == Standby
}

// Looked records whether the lease could be read; err is the reason if it could not, and the
// last known state may then be long out of date. It reports whether this has changed.
func (m *Monitor) Looked(err error) (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed = (err == nil) != m.blind.IsZero()
	switch {
	case err == nil:
		m.blind, m.blindWhy = time.Time{}, ""
		return changed
	case changed:
		m.blind = time.Now()
	}
	m.blindWhy, m.err, m.errAt = err.Error(), err.Error(), time.Now()
	return changed
}
