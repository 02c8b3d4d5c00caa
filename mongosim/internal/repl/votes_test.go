package repl

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// quiet makes the first member of a set of three that has been initiated by hand: it
// does not run, and knows the others by the messages of a test.
func quiet(t *testing.T) *testNode {
	t.Helper()
	c := newCluster(t, 0, nil)
	tn := c.make(hostName(0), c.newStore())
	conf, err := parseConfig(configDoc(3, 3, nil, nil))
	if err != nil {
		t.Fatal(err)
	}
	first, err := tn.writeNoop(noopInitiate, func() (int64, error) { return 2, nil })
	if err != nil {
		t.Fatal(err)
	}
	tn.Node.mu.Lock()
	defer tn.Node.mu.Unlock()
	tn.applied, tn.durable = first, first
	tn.install(conf.with(3, 2, "5.0.7"))
	tn.term = 4
	return tn
}

func marshal(t *testing.T, d bson.D) bson.Raw {
	t.Helper()
	raw, err := bson.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestRefusedVotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := quiet(t)
		at := tn.View().Applied
		older := oplog.OpTime{TS: bson.Timestamp{T: at.TS.T - 1, I: 9}, Term: at.Term}
		newerOfOldTerm := oplog.OpTime{TS: bson.Timestamp{T: at.TS.T + 9, I: 1}, Term: at.Term - 1}
		for _, tt := range []struct {
			name    string
			set     string
			dry     bool
			term    int64
			version int64
			applied oplog.OpTime
			reason  string
		}{
			{"good dry run", "rs", true, 4, 3, at, ""},
			{"a dry run binds nobody", "rs", true, 4, 3, at, ""},
			{"lower term", "rs", false, 3, 3, at, "candidate's term (3) is lower than mine (4)"},
			{"other set", "other", false, 4, 3, at, "candidate's set name (other) differs from mine (rs)"},
			{"older configuration", "rs", false, 4, 2, at, "candidate's config with {version: 2, term: 2} is older than mine with {version: 3, term: 2}"},
			{"stale", "rs", false, 5, 3, older, "candidate's data is staler than mine. candidate's last applied OpTime: " + serverOpTime(older) + ", my last applied OpTime: " + serverOpTime(at)},
			{"stale by term", "rs", false, 5, 3, newerOfOldTerm, "candidate's data is staler than mine. candidate's last applied OpTime: " + serverOpTime(newerOfOldTerm) + ", my last applied OpTime: " + serverOpTime(at)},
			{"good", "rs", false, 6, 3, at, ""},
			{"twice", "rs", false, 6, 3, at, "already voted for another candidate (1) this term (6)"},
		} {
			reply, err := tn.RequestVotes(marshal(t, bson.D{
				{Key: "replSetRequestVotes", Value: 1},
				{Key: "setName", Value: tt.set},
				{Key: "dryRun", Value: tt.dry},
				{Key: "term", Value: tt.term},
				{Key: "candidateIndex", Value: int64(1)},
				{Key: "configVersion", Value: tt.version},
				{Key: "configTerm", Value: int64(2)},
				{Key: "lastAppliedOpTime", Value: tt.applied},
			}))
			if err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			if got := reply.Lookup("reason").StringValue(); got != tt.reason {
				t.Errorf("%s: reason %q, want %q", tt.name, got, tt.reason)
			}
			if got := reply.Lookup("voteGranted").Boolean(); got != (tt.reason == "") {
				t.Errorf("%s: granted %v", tt.name, got)
			}
		}
		_, err := tn.RequestVotes(marshal(t, bson.D{{Key: "replSetRequestVotes", Value: 1}}))
		wantCode(t, err, servererr.BadValue)
	})
}

func TestACandidateVotesForItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		p := c.initiate(nil, nil)
		v := p.View()
		reply, err := p.RequestVotes(marshal(t, bson.D{
			{Key: "replSetRequestVotes", Value: 1},
			{Key: "setName", Value: "rs"},
			{Key: "dryRun", Value: false},
			{Key: "term", Value: v.Term},
			{Key: "candidateIndex", Value: int64((v.Self + 1) % 3)},
			{Key: "configVersion", Value: v.ConfigVersion},
			{Key: "configTerm", Value: v.ConfigTerm},
			{Key: "lastAppliedOpTime", Value: oplog.OpTime{TS: bson.Timestamp{T: 1 << 31}, Term: v.Term}},
		}))
		if err != nil || reply.Lookup("voteGranted").Boolean() {
			t.Errorf("a primary voted in its own term: %s, %v", reply, err)
		}
	})
}

// TestWhoseCommitPointCounts: a heartbeat's commit point is of another history
// until its term is that of the newest entry here; a source's is limited to
// lastApplied.
func TestWhoseCommitPointCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := quiet(t)
		at := tn.View().Applied // of term 2
		learn := func(o oplog.OpTime, fromSource bool) oplog.OpTime {
			tn.Node.mu.Lock()
			tn.learnCommit(moment{at: o}, fromSource)
			tn.Node.mu.Unlock()
			tn.settle()
			return tn.View().Committed
		}
		earlier := oplog.OpTime{TS: bson.Timestamp{T: at.TS.T + 5}, Term: 1}
		if got := learn(earlier, false); !got.IsNull() {
			t.Errorf("a heartbeat of term 1 moved the commit point to %s", got)
		}
		if got := learn(oplog.OpTime{TS: bson.Timestamp{T: at.TS.T + 5}, Term: 3}, false); !got.IsNull() {
			t.Errorf("a heartbeat of term 3 moved the commit point to %s", got)
		}
		if got := learn(oplog.OpTime{TS: bson.Timestamp{T: at.TS.T + 5}, Term: 3}, true); got != at {
			t.Errorf("the source's commit point gives %s, want %s", got, at)
		}
	})
}

func TestPositionReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := quiet(t)
		report := func(id, term int64, at oplog.OpTime) error {
			return tn.UpdatePosition(marshal(t, bson.D{
				{Key: "replSetUpdatePosition", Value: 1},
				{Key: "optimes", Value: bson.A{bson.D{
					{Key: "durableOpTime", Value: at},
					{Key: "durableWallTime", Value: time.Now()},
					{Key: "appliedOpTime", Value: at},
					{Key: "appliedWallTime", Value: time.Now()},
					{Key: "memberId", Value: id},
					{Key: "cfgver", Value: int64(99)},
				}}},
				{Key: "$replData", Value: bson.D{{Key: "term", Value: term}}},
			}))
		}
		at := oplog.NewOpTime(100, 1, 2)
		if err := report(1, 4, at); err != nil {
			t.Fatal(err)
		}
		if err := report(1, 4, oplog.NewOpTime(50, 1, 2)); err != nil {
			t.Fatal(err)
		}
		if got := tn.members[1].durable.at; got != at {
			t.Errorf("durable %s, want %s: optimes only move forward", got, at)
		}
		err := report(77, 4, at)
		wantCode(t, err, servererr.NodeNotFound)
		if want := "Received replSetUpdatePosition for node which doesn't exist in our config, memberId: MemberId(77)"; !strings.HasPrefix(err.Error(), want) {
			t.Errorf("message %q, want %q", err, want)
		}
		if err := report(1, 8, at); err != nil || tn.View().Term != 8 {
			t.Errorf("term %d after a report of term 8, error %v", tn.View().Term, err)
		}
		wantCode(t, tn.UpdatePosition(marshal(t, bson.D{{Key: "replSetUpdatePosition", Value: 1}})), servererr.BadValue)
	})
}

// TestAReportOfAHigherTermIsNotCounted: a member that voted for another one no
// longer helps this primary to commit.
func TestAReportOfAHigherTermIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		p := c.initiate(nil, nil)
		others := []string{}
		for _, h := range c.hosts {
			if h != p.host {
				others = append(others, h)
			}
		}
		c.split([]string{p.host}, others)
		at := p.mustWrite("x")
		v := p.View()
		other := (v.Self + 1) % 3
		err := p.UpdatePosition(marshal(t, bson.D{
			{Key: "replSetUpdatePosition", Value: 1},
			{Key: "optimes", Value: bson.A{bson.D{
				{Key: "durableOpTime", Value: at},
				{Key: "durableWallTime", Value: time.Now()},
				{Key: "appliedOpTime", Value: at},
				{Key: "appliedWallTime", Value: time.Now()},
				{Key: "memberId", Value: int64(v.Members[other].ID)},
			}}},
			{Key: "$replData", Value: bson.D{{Key: "term", Value: v.Term + 1}}},
		}))
		if err != nil {
			t.Fatal(err)
		}
		if got := p.View(); got.Writable || !got.Committed.Before(at) {
			t.Errorf("writable %v, committed %s", got.Writable, got.Committed)
		}
	})
}
