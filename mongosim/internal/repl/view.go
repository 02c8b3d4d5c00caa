package repl

import (
	"encoding/binary"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/oplog"
)

// Member is one member of the set's configuration.
type Member struct {
	ID           int
	Host         string
	Votes        int
	Priority     float64
	Hidden       bool
	Arbiter      bool
	BuildIndexes bool
	// DelaySecs is secondaryDelaySecs: entries younger are not applied.
	DelaySecs int64
	Tags      map[string]string
}

// View is the state known to the member at one moment. It is immutable.
type View struct {
	// State is RECOVERING, STARTUP2, … as oplog.MemberState; Term is -1 before any.
	State oplog.MemberState
	Term  int64
	// Writable is true for a primary that accepts writes (after its drain).
	Writable bool
	// Self and Primary are indexes into Members; -1 if unknown or none.
	Self, Primary int
	Members       []Member
	// ConfigVersion and ConfigTerm name the configuration; ConfigDoc is the
	// document, nil if the set has not been initiated.
	ConfigVersion, ConfigTerm int64
	ConfigDoc                 bson.Raw
	SetName                   string
	// ElectionID is that of the current primary if it is this member.
	ElectionID bson.ObjectID
	// TopologyCounter increases with each change that hello must report.
	TopologyCounter int64
	ProcessID       bson.ObjectID
	// Committed is never beyond Applied.
	Applied, Durable, Committed oplog.OpTime
	CommittedWall               time.Time
	RBID                        int
	// Source is the host that the oplog is pulled from, "" if none.
	Source string
	// ReplicaSetID is settings.replicaSetId.
	ReplicaSetID bson.ObjectID
}

// View returns the present View.
func (n *Node) View() View {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.view()
}

func (n *Node) view() View {
	v := View{
		State: n.memberState(), Term: n.term,
		Writable: n.role == leader && n.writable && !n.attempting,
		Self:     n.self, Primary: n.primary,
		SetName:         n.cfg.SetName,
		TopologyCounter: n.topology, ProcessID: n.process,
		Applied: n.applied.at, Durable: n.durable.at,
		Committed: n.committed.at, CommittedWall: n.committed.wall,
		RBID: n.rbid, Source: n.source,
	}
	if n.conf == nil {
		v.Term = oplog.UninitializedTerm
		return v
	}
	v.Members, v.ConfigDoc = n.conf.members, n.conf.doc
	v.ConfigVersion, v.ConfigTerm = n.conf.version, n.conf.term
	v.ReplicaSetID = n.conf.setID
	if n.role == leader {
		v.ElectionID = electionID(n.term)
	}
	return v
}

// electionID returns an id that orders primaries by term, as the server's hello
// shows it.
func electionID(term int64) bson.ObjectID {
	var id bson.ObjectID
	binary.BigEndian.PutUint32(id[:4], 0x7fffffff)
	binary.BigEndian.PutUint64(id[4:], uint64(term))
	return id
}

// Changed returns a channel that is closed at the next change of the
// TopologyCounter (not of optimes).
func (n *Node) Changed() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.topo.wait()
}

// CommittedChanged returns a channel that is closed when the commit point moves.
func (n *Node) CommittedChanged() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.commit.wait()
}

// sourceIndex is the index of the source in Members, -1 for none.
func (v View) sourceIndex() int {
	for i := range v.Members {
		if v.Source != "" && v.Members[i].Host == v.Source {
			return i
		}
	}
	return -1
}

// AppendReplData appends the element $replData, which a reply has if its request
// had one: {term, lastOpCommitted, lastCommittedWall, lastOpVisible,
// configVersion, configTerm, replicaSetId, syncSourceIndex, isPrimary}.
func (v View) AppendReplData(dst []byte) []byte {
	i, dst := bsoncore.AppendDocumentElementStart(dst, "$replData")
	dst = bsoncore.AppendInt64Element(dst, "term", v.Term)
	dst = appendOpTime(dst, "lastOpCommitted", v.Committed)
	dst = appendWall(dst, "lastCommittedWall", v.CommittedWall)
	dst = appendOpTime(dst, "lastOpVisible", v.Committed)
	dst = bsoncore.AppendInt64Element(dst, "configVersion", v.ConfigVersion)
	dst = bsoncore.AppendInt64Element(dst, "configTerm", v.ConfigTerm)
	dst = bsoncore.AppendObjectIDElement(dst, "replicaSetId", v.ReplicaSetID)
	dst = bsoncore.AppendInt32Element(dst, "syncSourceIndex", int32(v.sourceIndex()))
	dst = bsoncore.AppendBooleanElement(dst, "isPrimary", v.State == oplog.MemberPrimary)
	return endDocument(dst, i)
}

// AppendOplogQueryData appends the element $oplogQueryData, which a reply has if
// its request had one: {lastOpCommitted, lastCommittedWall, lastOpApplied, rbid,
// primaryIndex, syncSourceIndex, syncSourceHost}.
func (v View) AppendOplogQueryData(dst []byte) []byte {
	i, dst := bsoncore.AppendDocumentElementStart(dst, "$oplogQueryData")
	dst = appendOpTime(dst, "lastOpCommitted", v.Committed)
	dst = appendWall(dst, "lastCommittedWall", v.CommittedWall)
	dst = appendOpTime(dst, "lastOpApplied", v.Applied)
	dst = bsoncore.AppendInt32Element(dst, "rbid", int32(v.RBID))
	dst = bsoncore.AppendInt32Element(dst, "primaryIndex", int32(v.Primary))
	dst = bsoncore.AppendInt32Element(dst, "syncSourceIndex", int32(v.sourceIndex()))
	host := v.Source
	if host == "" {
		host = ":27017" // the server's form of no host
	}
	dst = bsoncore.AppendStringElement(dst, "syncSourceHost", host)
	return endDocument(dst, i)
}
