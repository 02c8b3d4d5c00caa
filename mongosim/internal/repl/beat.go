package repl

import (
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// beat is the answer to a heartbeat.
type beat struct {
	set                         string
	state                       oplog.MemberState
	version, configTerm, term   int64
	applied, durable, committed moment
	source                      string
	electable                   bool
	electionTime                bson.Timestamp
	config                      bson.Raw
}

// parseBeat reads the answer to a heartbeat, as strictly as the server does.
func parseBeat(reply bson.Raw) (beat, error) {
	if ok, _, message := okReply(reply); !ok {
		return beat{}, errors.New(message)
	}
	f := fields{doc: reply}
	b := beat{
		set: f.text("set"), state: oplog.MemberState(f.int64("state")),
		version: f.int64("v"), configTerm: f.maybeInt64("configTerm", oplog.UninitializedTerm),
		term:      f.maybeInt64("term", oplog.UninitializedTerm),
		applied:   moment{f.opTime("opTime"), f.wall("wallTime")},
		durable:   moment{f.opTime("durableOpTime"), f.wall("durableWallTime")},
		committed: nullMoment,
		source:    f.maybeText("syncingTo"), electable: f.bool("electable", false),
	}
	if b.state < oplog.MemberStartup || b.state > oplog.MemberRemoved {
		f.fault("state", "a state from 0 to 10")
	}
	if e, ok := rawbson.Lookup(reply, "electionTime"); ok {
		if ms, ok := e.DateTime(); ok {
			b.electionTime = bson.Timestamp{T: uint32(ms >> 32), I: uint32(ms)}
		} else if ts, ok := e.Timestamp(); ok {
			b.electionTime = ts
		}
	}
	if f.has("config") {
		b.config = f.document("config")
	}
	if f.has("$replData") {
		meta := fields{doc: f.document("$replData")}
		b.committed = moment{meta.opTime("lastOpCommitted"), meta.wall("lastCommittedWall")}
		b.term = max(b.term, meta.int64("term"))
		if meta.err != nil {
			b.committed = nullMoment
		}
	}
	return b, f.err
}

// Heartbeat answers replSetHeartbeat: of this package's peers, and of the real
// server's fields. The reply lacks ok and the fields that every reply has.
func (n *Node) Heartbeat(cmd bson.Raw) (bson.Raw, error) {
	f := fields{doc: cmd}
	set, version := f.text("replSetHeartbeat"), f.int64("configVersion")
	term, configTerm := f.int64("term"), f.maybeInt64("configTerm", oplog.UninitializedTerm)
	from, fromID := f.text("from"), f.maybeInt64("fromId", -1)
	if f.err != nil {
		return nil, badCommand("replSetHeartbeat", f.err)
	}
	if hbv := f.maybeInt64("hbv", 1); hbv != 1 || f.err != nil {
		return nil, badValue("Found invalid value for field hbv: %d", hbv)
	}
	if set != n.cfg.SetName {
		return nil, inconsistentNames(n.cfg.SetName, set)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, errShutdown()
	}
	if n.conf != nil && n.self < 0 {
		n.askFor(from, version, configTerm)
		return nil, invalidConfig("Our replica set configuration is invalid or does not include us")
	}
	if n.conf != nil && fromID == int64(n.conf.members[n.self].ID) {
		return nil, badValue("Received heartbeat from member with the same member ID as ourself: %d", fromID)
	}
	if n.conf != nil {
		n.setTerm(term)
		if i := n.conf.byID(int(fromID)); i >= 0 && i != n.self && n.conf.members[i].Host == from {
			n.members[i].lastBeatRecv = n.cfg.Now()
			if !n.members[i].up {
				n.members[i].soon() // it is back
			}
		}
	}
	n.askFor(from, version, configTerm)
	return document(func(dst []byte) []byte { return n.appendBeat(dst, version, configTerm) }), nil
}

func (n *Node) appendBeat(dst []byte, version, configTerm int64) []byte {
	state := n.memberState()
	if n.role == leader {
		dst = bsoncore.AppendDateTimeElement(dst, "electionTime", int64(n.electionTime.T)<<32|int64(n.electionTime.I))
	}
	if n.conf != nil && newerThan(n.conf.version, n.conf.term, version, configTerm) {
		dst = bsoncore.AppendDocumentElement(dst, "config", n.conf.doc)
	}
	dst = bsoncore.AppendInt32Element(dst, "state", int32(state))
	if n.conf != nil {
		dst = bsoncore.AppendInt32Element(dst, "v", int32(n.conf.version))
		dst = bsoncore.AppendInt32Element(dst, "configTerm", int32(n.conf.term))
	} else {
		dst = bsoncore.AppendInt32Element(dst, "v", -2)
		dst = bsoncore.AppendInt32Element(dst, "configTerm", int32(oplog.UninitializedTerm))
	}
	dst = bsoncore.AppendStringElement(dst, "set", n.cfg.SetName)
	if n.source != "" {
		dst = bsoncore.AppendStringElement(dst, "syncingTo", n.source)
	}
	if n.conf != nil {
		dst = bsoncore.AppendInt64Element(dst, "term", n.term)
	}
	if n.primary >= 0 {
		dst = bsoncore.AppendInt64Element(dst, "primaryId", int64(n.conf.members[n.primary].ID))
	}
	applied, durable := n.shown()
	dst = appendOpTime(dst, "durableOpTime", durable.at)
	dst = appendWall(dst, "durableWallTime", durable.wall)
	dst = appendOpTime(dst, "opTime", applied.at)
	dst = appendWall(dst, "wallTime", applied.wall)
	return bsoncore.AppendBooleanElement(dst, "electable", n.unelectable(electionTimedOut) == "")
}

// shown is the optime reported to others: null during an initial sync. Callers
// hold mu.
func (n *Node) shown() (applied, durable moment) {
	if n.syncing || n.applied.at.IsNull() {
		return nullMoment, nullMoment
	}
	return n.applied, n.durable
}
