package syncsource

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// View is what is known of a replica set at one time. It never changes once it has
// been handed out, and nobody may change what it holds.
type View struct {
	// SetName is the set's name, empty before any member has answered.
	SetName string
	// ReplicaSetID is settings.replicaSetId, with Type 0 where it is not known.
	ReplicaSetID bson.RawValue
	// ConfigTerm and ConfigVersion name the set's configuration.
	ConfigTerm, ConfigVersion int64
	// NoChaining is settings.chainingAllowed: false. It is false where the
	// configuration cannot be read.
	NoChaining bool
	// ConfigFault says why the configuration could not be read; then hidden
	// members are known only if they are among the seeds.
	ConfigFault string
	// Members are in the order of the configuration.
	Members []Member
	// Answers is how often members have answered since this configuration became
	// known.
	Answers int
	// Settled tells that there is no point in waiting for more answers before a
	// choice: each member has answered twice or cannot be read from, or those that
	// have not answered had their time.
	Settled bool
}

// Member is what is known of one member.
type Member struct {
	// Host is the name and port that it is asked under.
	Host string

	// ID is its _id in the configuration, -1 where that is not known.
	ID int
	// What follows is from the configuration or, where that cannot be read, from
	// the member itself. Votes are known from the configuration alone.
	Arbiter, Hidden, NonVoting, NoIndexes bool
	Priority                              float64
	// Delay is secondaryDelaySecs.
	Delay time.Duration
	Tags  map[string]string
	// Stranger is a host that was asked but is not in the configuration.
	Stranger bool

	// Asked is false until the member has been asked for the first time.
	Asked bool
	// Fault says why it cannot be read from, as something that follows its name:
	// "cannot be reached: connection refused". Empty means that it is up.
	Fault string
	// State is UNKNOWN for a member that says of itself only that it is neither
	// primary nor secondary.
	State oplog.MemberState
	// Term is the newest term that it knows, oplog.UninitializedTerm if it does
	// not say.
	Term int64
	// Applied is its newest entry, Committed the newest that it knows a majority
	// to have.
	Applied, Committed oplog.OpTime
	// RBID is its rollback id, -1 if it does not say.
	RBID int64
	// Source is whom it syncs from itself, empty if nobody.
	Source string
	// Ping is the moving average of how long it takes to answer; with Pings 0
	// there is none.
	Ping  time.Duration
	Pings int
	// Heard is when it last answered.
	Heard time.Time
}

// Up tells whether the member answered when it was last asked.
func (m *Member) Up() bool { return m.Asked && m.Fault == "" }

// find returns the member with this host.
func (v *View) find(host string) (*Member, bool) {
	for i := range v.Members {
		if v.Members[i].Host == host {
			return &v.Members[i], true
		}
	}
	return nil, false
}

// members is how many members the configuration has, as far as it is known.
func (v *View) members() int {
	n := 0
	for i := range v.Members {
		if !v.Members[i].Stranger {
			n++
		}
	}
	return n
}

// comparable tells whether members have answered often enough for a choice: twice
// each on the average, as the server has it, or as often as is to be expected.
func (v *View) comparable() bool {
	n := v.members()
	return n > 0 && (v.Settled || v.Answers >= 2*n)
}

// primary returns the primary, of two the one with the newer term: the other has
// not heard yet that it is none.
func (v *View) primary() (*Member, bool) {
	var primary *Member
	for i := range v.Members {
		m := &v.Members[i]
		if !m.Up() || m.Stranger || m.State != oplog.MemberPrimary {
			continue
		}
		if primary == nil || m.Term > primary.Term {
			primary = m
		}
	}
	return primary, primary != nil
}
