package syncsource

import (
	"cmp"
	"errors"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// View is the known state of a replica set at one time. It is immutable once
// returned; callers must not modify what it refers to.
type View struct {
	// SetName is the set's name, empty before any member has answered.
	SetName string
	// ReplicaSetID is settings.replicaSetId, with Type 0 if not known.
	ReplicaSetID bson.RawValue
	// ConfigVersion is the version of the set's configuration, ConfigTerm its term, oplog.UninitializedTerm for none.
	ConfigVersion, ConfigTerm int64
	// NoChaining is set if settings.chainingAllowed is false. It is unset if the
	// configuration cannot be read.
	NoChaining bool
	// ConfigFault says why the configuration could not be read; hidden members are
	// then known only if they are among the seeds.
	ConfigFault string
	// ConfigUnread is set until the newest configuration that members report was
	// read, or could not be for a reason that does not pass by itself: until then hidden
	// members may be missing, and NonVoting is unknown. Over a direct connection it is unset.
	ConfigUnread bool
	// VotesUnsure is set until a member has answered hello with the configuration of Members: until then one that was added, and has
	// not made its first sync, is not known as NonVoting.
	VotesUnsure bool
	// Members are in the order of the configuration.
	Members []Member
	// Answers counts the members' answers since this configuration became known.
	Answers int
	// Settled reports that a choice need not wait for more answers: each member has
	// answered twice or cannot be read from, or the time limit for the others has
	// passed.
	Settled bool
}

// Member is the known state of one member.
type Member struct {
	// Host is the name and port used to connect to it.
	Host string

	// ID is its _id in the configuration, -1 if not known.
	ID int
	// The following are from the configuration or, if that cannot be read, from the
	// member itself. NonVoting is known from the configuration only; a member that was added and has not made its
	// first sync has no vote either.
	Arbiter, Hidden, NonVoting, NoIndexes bool
	Priority                              float64
	// Delay is secondaryDelaySecs.
	Delay time.Duration
	Tags  map[string]string
	// Stranger marks a host that was asked but is not in the configuration.
	Stranger bool

	// Asked is false until the member has been asked for the first time.
	Asked bool
	// Fault says why it cannot be read from, as the rest of a sentence that starts
	// with its name: "cannot be reached: connection refused". Empty means that it is
	// up.
	Fault string
	// State is UNKNOWN for a member that reports only that it is neither primary nor
	// secondary.
	State oplog.MemberState
	// Term is the newest term that it knows, oplog.UninitializedTerm if it does not
	// report one.
	Term int64
	// Applied is its lastApplied, Committed the newest commit point that it knows.
	Applied, Committed oplog.OpTime
	// RBID is its rollback id, -1 if not reported.
	RBID int64
	// Source is its own sync source, empty if none.
	Source string
	// Ping is the moving average of its response time; it is not set while Pings is
	// 0.
	Ping  time.Duration
	Pings int
	// Clock is its clock, as far as it was measured.
	Clock Clock
}

// Up reports whether the member answered when it was last asked.
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

// members returns the number of members in the configuration, as far as known.
func (v *View) members() int {
	n := 0
	for i := range v.Members {
		if !v.Members[i].Stranger {
			n++
		}
	}
	return n
}

// comparable reports whether members have answered often enough for a choice: twice
// each on average, as in the server, or until Settled.
func (v *View) comparable() bool {
	n := v.members()
	return n > 0 && (v.Settled || v.Answers >= 2*n)
}

// primary returns the primary; of two, the one with the newer term, since the other
// one does not know yet that it was replaced.
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

// LoginRefused says which member refuses the login, and how, empty if none does, or another one could be
// read from. Failed are the reasons why members were denied last, also if their denials have ended.
func (v *View) LoginRefused(failed map[string]string) string {
	found := ""
	for i := range v.Members {
		m := &v.Members[i]
		why := m.Fault
		if m.Up() {
			why = failed[m.Host]
		}
		switch {
		case m.Arbiter || m.Stranger: // it has no users, or those of another set
		case strings.HasPrefix(why, refusesLogin):
			found = cmp.Or(found, m.Host+" "+why)
		case m.Up() && m.State.Readable():
			return ""
		}
	}
	return found
}

// DeniedBy is the reason to deny a member that could not be read from.
func DeniedBy(err error) string { return deniedBy("could not be read from", err) }

// deniedBy is the reason to deny a member: an attempt has failed, with an error.
func deniedBy(failed string, err error) string {
	if lost, ok := errors.AsType[*mongo.LostError](err); ok && lost.Refused {
		return refusesLogin + lost.Err.Error()
	}
	return failed + ": " + err.Error()
}
