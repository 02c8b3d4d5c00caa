package repl

import (
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// member is the state of another member as known from heartbeats and position
// reports. It is guarded by Node.mu.
type member struct {
	// kick asks for a heartbeat now.
	kick chan struct{}

	// contacted is true after the first answer or failure; up while heartbeats are
	// answered.
	contacted, up bool
	upSince       time.Time // of Config.Now
	state         oplog.MemberState
	term          int64
	message       string
	// settled is the send time of the newest heartbeat that was answered or
	// failed.
	settled      time.Time
	lastBeat     time.Time // of Config.Now: for status
	lastBeatRecv time.Time
	// heard is when the member last sent anything; the lease depends on it.
	heard time.Time

	pingMillis int64
	pings      int

	// applied and durable only move forward; beatApplied and beatDurable are
	// those of the newest heartbeat.
	applied, durable         moment
	beatApplied, beatDurable moment

	source                    string
	electable                 bool
	electionTime              bson.Timestamp
	configVersion, configTerm int64
}

func newMember() *member {
	m := &member{
		kick: make(chan struct{}, 1), state: oplog.MemberUnknown,
		applied: nullMoment, durable: nullMoment,
	}
	m.forget()
	return m
}

// forget drops the state that is only valid for a member that answers.
func (m *member) forget() {
	m.beatApplied, m.beatDurable = nullMoment, nullMoment
	m.source, m.electable = "", false
	m.electionTime = bson.Timestamp{}
	m.configVersion, m.configTerm = -1, oplog.UninitializedTerm
	m.term = oplog.UninitializedTerm
}

// down records that the member does not answer.
func (m *member) down(why string) {
	m.contacted, m.up = true, false
	m.state = oplog.MemberDown
	m.message = why
	m.upSince = time.Time{}
	m.forget()
}

// ping adds a round trip to the average, weighted as by the server.
func (m *member) ping(rtt time.Duration) {
	ms := rtt.Milliseconds()
	if m.pings > 0 {
		ms = (4*m.pingMillis + ms) / 5
	}
	m.pingMillis = ms
	m.pings++
}

// advance moves the known optimes of the member forward.
func (m *member) advance(applied, durable moment) {
	if applied.later(m.applied) {
		m.applied = applied
	}
	if durable.later(m.durable) {
		m.durable = durable
	}
}

// soon asks for a heartbeat now.
func (m *member) soon() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// install makes c the configuration. Callers hold mu.
func (n *Node) install(c *config) {
	old := map[string]*member{}
	if n.conf != nil {
		for i, m := range n.members {
			old[strconv.Itoa(n.conf.members[i].ID)+" "+n.conf.members[i].Host] = m
		}
	}
	n.members = make([]*member, len(c.members))
	for i := range c.members {
		m := old[strconv.Itoa(c.members[i].ID)+" "+c.members[i].Host]
		if m == nil {
			// A primary gives a new member one election timeout to answer.
			m = newMember()
			m.heard = time.Now()
		}
		n.members[i] = m
	}
	first := n.conf == nil
	n.conf = c
	n.confGen++
	n.self = c.find(n.cfg.Host)
	n.primary = -1
	if first {
		n.term = max(n.term, oplog.InitialTerm)
		n.chooseFollow()
	}
	if n.source != "" && c.find(n.source) < 0 {
		n.endPull(errSourceChanged)
	}
	if n.role == leader && (n.self < 0 || !electable(&c.members[n.self])) {
		n.stepDown("not electable in the new configuration")
	}
	n.takeoverAt, n.catchupAt = time.Time{}, time.Time{}
	n.findPrimary()
	n.resetElection()
	n.bump()
	n.log.Info("configuration installed", keyConfig, versionAndTerm(c.version, c.term))
}

// chooseFollow is the state of a member that has just found its configuration.
// Callers hold mu.
func (n *Node) chooseFollow() {
	n.syncing = n.applied.at.IsNull()
	if n.syncing {
		n.follow = oplog.MemberStartup2
	} else {
		n.follow = oplog.MemberSecondary
	}
}

// electable reports whether the configuration lets a member be primary.
func electable(m *Member) bool { return m.Priority > 0 && m.Votes > 0 && !m.Arbiter }
