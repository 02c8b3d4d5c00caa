package repl

import (
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/oplog"
)

// metrics is the part of status about the newest election, as its candidate or as
// a voter.
type metrics struct {
	term            int64
	date, start     time.Time
	committed, seen oplog.OpTime
	priority        float64
	// Of a candidate.
	reason      reason
	votesNeeded int
	timeout     time.Duration
	prior       int
	catchupOps  int64
	available   time.Time
	// Of a voter.
	voted        bool
	candidate    int
	voteReason   string
	applied      oplog.OpTime
	appliedStart time.Time
}

func index(i int) string { return strconv.Itoa(i) }

// Status is the reply of replSetGetStatus without ok and the common fields. It
// fails with NotYetInitialized.
func (n *Node) Status() (bson.Raw, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conf == nil {
		return nil, notYetInitialized()
	}
	v := n.view()
	interval := n.conf.heartbeatInterval
	if n.cfg.HeartbeatInterval > 0 {
		interval = n.cfg.HeartbeatInterval
	}
	return document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "set", n.cfg.SetName)
		dst = appendWall(dst, "date", n.cfg.Now())
		dst = bsoncore.AppendInt32Element(dst, "myState", int32(v.State))
		dst = bsoncore.AppendInt64Element(dst, "term", n.term)
		dst = bsoncore.AppendStringElement(dst, "syncSourceHost", n.source)
		dst = bsoncore.AppendInt32Element(dst, "syncSourceId", int32(n.memberID(n.source)))
		if n.tooOld {
			dst = bsoncore.AppendBooleanElement(dst, "tooStale", true)
		}
		dst = bsoncore.AppendInt64Element(dst, "heartbeatIntervalMillis", interval.Milliseconds())
		dst = bsoncore.AppendInt32Element(dst, "majorityVoteCount", int32(n.conf.majority()))
		dst = bsoncore.AppendInt32Element(dst, "writeMajorityCount", int32(n.conf.writeMajority()))
		dst = bsoncore.AppendInt32Element(dst, "votingMembersCount", int32(n.conf.voters()))
		dst = bsoncore.AppendInt32Element(dst, "writableVotingMembersCount", int32(n.conf.dataVoters()))
		dst = n.appendOpTimes(dst)
		dst = bsoncore.AppendTimestampElement(dst, "lastStableRecoveryTimestamp", n.committed.at.TS.T, n.committed.at.TS.I)
		dst = n.appendElections(dst)
		i, dst := bsoncore.AppendArrayElementStart(dst, "members")
		for j := range n.members {
			k, sub := bsoncore.AppendDocumentElementStart(dst, index(j))
			if j == n.self {
				sub = n.appendSelf(sub, v.State)
			} else {
				sub = n.appendOther(sub, j)
			}
			dst = endDocument(sub, k)
		}
		return endDocument(dst, i)
	}), nil
}

func (n *Node) appendOpTimes(dst []byte) []byte {
	i, dst := bsoncore.AppendDocumentElementStart(dst, "optimes")
	dst = appendOpTime(dst, "lastCommittedOpTime", n.committed.at)
	dst = appendWall(dst, "lastCommittedWallTime", n.committed.wall)
	dst = appendOpTime(dst, "readConcernMajorityOpTime", n.committed.at)
	dst = appendOpTime(dst, "appliedOpTime", n.applied.at)
	dst = appendOpTime(dst, "durableOpTime", n.durable.at)
	dst = appendWall(dst, "lastAppliedWallTime", n.applied.wall)
	dst = appendWall(dst, "lastDurableWallTime", n.durable.wall)
	return endDocument(dst, i)
}

// memberID is the _id of the member with a host, -1 for none.
func (n *Node) memberID(host string) int {
	if i := n.conf.find(host); host != "" && i >= 0 {
		return n.conf.members[i].ID
	}
	return -1
}

func (n *Node) appendElections(dst []byte) []byte {
	if m := &n.candidacy; m.term > 0 && n.role == leader {
		i, sub := bsoncore.AppendDocumentElementStart(dst, "electionCandidateMetrics")
		sub = bsoncore.AppendStringElement(sub, "lastElectionReason", string(m.reason))
		sub = appendWall(sub, "lastElectionDate", m.date)
		sub = bsoncore.AppendInt64Element(sub, "electionTerm", m.term)
		sub = appendOpTime(sub, "lastCommittedOpTimeAtElection", m.committed)
		sub = appendOpTime(sub, "lastSeenOpTimeAtElection", m.seen)
		sub = bsoncore.AppendInt32Element(sub, "numVotesNeeded", int32(m.votesNeeded))
		sub = bsoncore.AppendDoubleElement(sub, "priorityAtElection", m.priority)
		sub = bsoncore.AppendInt64Element(sub, "electionTimeoutMillis", m.timeout.Milliseconds())
		if m.prior >= 0 {
			sub = bsoncore.AppendInt32Element(sub, "priorPrimaryMemberId", int32(m.prior))
		}
		sub = bsoncore.AppendInt64Element(sub, "numCatchUpOps", m.catchupOps)
		if !m.start.IsZero() {
			sub = appendWall(sub, "newTermStartDate", m.start)
		}
		if !m.available.IsZero() {
			sub = appendWall(sub, "wMajorityWriteAvailabilityDate", m.available)
		}
		dst = endDocument(sub, i)
	}
	if m := &n.participation; m.term > 0 {
		i, sub := bsoncore.AppendDocumentElementStart(dst, "electionParticipantMetrics")
		sub = bsoncore.AppendBooleanElement(sub, "votedForCandidate", m.voted)
		sub = bsoncore.AppendInt64Element(sub, "electionTerm", m.term)
		sub = appendWall(sub, "lastVoteDate", m.date)
		sub = bsoncore.AppendInt32Element(sub, "electionCandidateMemberId", int32(m.candidate))
		sub = bsoncore.AppendStringElement(sub, "voteReason", m.voteReason)
		sub = appendOpTime(sub, "lastAppliedOpTimeAtElection", m.applied)
		sub = appendOpTime(sub, "maxAppliedOpTimeInSet", m.seen)
		sub = bsoncore.AppendDoubleElement(sub, "priorityAtElection", m.priority)
		if !m.start.IsZero() {
			sub = appendWall(sub, "newTermStartDate", m.start)
			sub = appendWall(sub, "newTermAppliedDate", m.appliedStart)
		}
		dst = endDocument(sub, i)
	}
	return dst
}

func (n *Node) appendSelf(dst []byte, state oplog.MemberState) []byte {
	me := &n.conf.members[n.self]
	dst = bsoncore.AppendInt32Element(dst, "_id", int32(me.ID))
	dst = bsoncore.AppendStringElement(dst, "name", me.Host)
	dst = bsoncore.AppendDoubleElement(dst, "health", 1)
	dst = bsoncore.AppendInt32Element(dst, "state", int32(state))
	dst = bsoncore.AppendStringElement(dst, "stateStr", state.String())
	dst = bsoncore.AppendInt32Element(dst, "uptime", int32(time.Since(n.born)/time.Second))
	if !me.Arbiter {
		dst = appendOpTime(dst, "optime", n.applied.at)
		dst = appendSeconds(dst, "optimeDate", n.applied.at.TS)
		dst = appendWall(dst, "lastAppliedWallTime", n.applied.wall)
		dst = appendWall(dst, "lastDurableWallTime", n.durable.wall)
	}
	dst = bsoncore.AppendStringElement(dst, "syncSourceHost", n.source)
	dst = bsoncore.AppendInt32Element(dst, "syncSourceId", int32(n.memberID(n.source)))
	dst = bsoncore.AppendStringElement(dst, "infoMessage", n.fatal)
	if n.role == leader {
		dst = bsoncore.AppendTimestampElement(dst, "electionTime", n.electionTime.T, n.electionTime.I)
		dst = appendSeconds(dst, "electionDate", n.electionTime)
	}
	dst = bsoncore.AppendInt32Element(dst, "configVersion", int32(n.conf.version))
	dst = bsoncore.AppendInt32Element(dst, "configTerm", int32(n.conf.term))
	dst = bsoncore.AppendBooleanElement(dst, "self", true)
	return bsoncore.AppendStringElement(dst, "lastHeartbeatMessage", "")
}

func (n *Node) appendOther(dst []byte, i int) []byte {
	it, m := &n.conf.members[i], n.members[i]
	health, state := 0.0, m.state.String()
	if m.up {
		health = 1
	} else if m.contacted {
		state = "(not reachable/healthy)"
	}
	uptime := 0
	if m.up {
		uptime = int(n.cfg.Now().Sub(m.upSince) / time.Second)
	}
	dst = bsoncore.AppendInt32Element(dst, "_id", int32(it.ID))
	dst = bsoncore.AppendStringElement(dst, "name", it.Host)
	dst = bsoncore.AppendDoubleElement(dst, "health", health)
	dst = bsoncore.AppendInt32Element(dst, "state", int32(m.state))
	dst = bsoncore.AppendStringElement(dst, "stateStr", state)
	dst = bsoncore.AppendInt32Element(dst, "uptime", int32(uptime))
	if !it.Arbiter {
		dst = appendOpTime(dst, "optime", m.beatApplied.at)
		dst = appendOpTime(dst, "optimeDurable", m.beatDurable.at)
		dst = appendSeconds(dst, "optimeDate", m.beatApplied.at.TS)
		dst = appendSeconds(dst, "optimeDurableDate", m.beatDurable.at.TS)
		dst = appendWall(dst, "lastAppliedWallTime", m.applied.wall)
		dst = appendWall(dst, "lastDurableWallTime", m.durable.wall)
	}
	dst = appendWall(dst, "lastHeartbeat", m.lastBeat)
	dst = appendWall(dst, "lastHeartbeatRecv", m.lastBeatRecv)
	dst = bsoncore.AppendInt64Element(dst, "pingMs", m.pingMillis)
	dst = bsoncore.AppendStringElement(dst, "lastHeartbeatMessage", m.message)
	dst = bsoncore.AppendStringElement(dst, "syncSourceHost", m.source)
	dst = bsoncore.AppendInt32Element(dst, "syncSourceId", int32(n.memberID(m.source)))
	dst = bsoncore.AppendStringElement(dst, "infoMessage", "")
	if m.state == oplog.MemberPrimary {
		dst = bsoncore.AppendTimestampElement(dst, "electionTime", m.electionTime.T, m.electionTime.I)
		dst = appendSeconds(dst, "electionDate", m.electionTime)
	}
	dst = bsoncore.AppendInt32Element(dst, "configVersion", int32(m.configVersion))
	return bsoncore.AppendInt32Element(dst, "configTerm", int32(m.configTerm))
}

// appendSeconds writes the seconds of a timestamp as a date.
func appendSeconds(dst []byte, name string, ts bson.Timestamp) []byte {
	return bsoncore.AppendDateTimeElement(dst, name, int64(ts.T)*1000)
}
