package repl

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

func TestInitiateRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		first := c.node(c.hosts[0])
		for _, tt := range []struct {
			name string
			doc  bson.Raw
			code servererr.Code
			want string
		}{
			{"version", configDoc(2, 2, nil, nil), servererr.InvalidReplicaSetConfig, "must have version 1"},
			{"no priority", configDoc(1, 1, map[int]bson.D{0: {{Key: "priority", Value: 0}}}, nil), servererr.InvalidReplicaSetConfig, "priority > 0"},
			{"hidden", configDoc(1, 2, map[int]bson.D{1: {{Key: "hidden", Value: true}}}, nil), servererr.InvalidReplicaSetConfig, "priority must be 0 when hidden=true"},
			{"eight voters", configDoc(1, 8, nil, nil), servererr.InvalidReplicaSetConfig, "contains 8 voting members"},
			{"unknown field", configDoc(1, 2, map[int]bson.D{1: {{Key: "colour", Value: 1}}}, nil), servererr.InvalidReplicaSetConfig, "colour"},
			{"unknown setting", configDoc(1, 1, nil, bson.D{{Key: "colour", Value: 1}}), servererr.InvalidReplicaSetConfig, "colour"},
			{"default write concern", configDoc(1, 1, nil, bson.D{{Key: "getLastErrorDefaults", Value: bson.D{{Key: "w", Value: 2}}}}), servererr.InvalidReplicaSetConfig, "getLastErrorDefaults is not supported"},
			{"nobody there", configDoc(1, 3, nil, nil), servererr.NodeNotFound, "c:1 failed with"},
			{"no tag", configDoc(1, 1, nil, bson.D{{Key: "getLastErrorModes", Value: bson.D{{Key: "m", Value: bson.D{{Key: "x", Value: 1}}}}}}), servererr.InvalidReplicaSetConfig, "No replica set tag with key x"},
		} {
			err := first.Initiate(c.ctx, tt.doc)
			wantCode(t, err, tt.code)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: error %v, want %q in it", tt.name, err, tt.want)
			}
		}
		if v := first.View(); v.State != oplog.MemberStartup || v.ConfigDoc != nil || v.Term != -1 {
			t.Errorf("after refusals: %+v", v)
		}
		c.initiate(nil, nil)
		wantCode(t, first.Initiate(c.ctx, nil), servererr.AlreadyInitialized)
	})
}

func TestInitiateAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, nil)
		if err := c.node(c.hosts[0]).Initiate(c.ctx, nil); err != nil {
			t.Fatal(err)
		}
		p := c.settled()
		v := p.View()
		got, err := bson.MarshalExtJSON(v.ConfigDoc, true, false)
		if err != nil {
			t.Fatal(err)
		}
		want := `{"_id":"rs","version":{"$numberInt":"1"},"term":{"$numberInt":"1"},"members":[{"_id":{"$numberInt":"0"},"host":"a:1",` +
			`"arbiterOnly":false,"buildIndexes":true,"hidden":false,"priority":{"$numberDouble":"1.0"},"tags":{},` +
			`"secondaryDelaySecs":{"$numberLong":"0"},"votes":{"$numberInt":"1"}}],"protocolVersion":{"$numberLong":"1"},` +
			`"writeConcernMajorityJournalDefault":true,"settings":{"chainingAllowed":true,"heartbeatIntervalMillis":{"$numberInt":"2000"},` +
			`"heartbeatTimeoutSecs":{"$numberInt":"10"},"electionTimeoutMillis":{"$numberInt":"10000"},"catchUpTimeoutMillis":{"$numberInt":"-1"},` +
			`"catchUpTakeoverDelayMillis":{"$numberInt":"30000"},"getLastErrorModes":{},"getLastErrorDefaults":{"w":{"$numberInt":"1"},` +
			`"wtimeout":{"$numberInt":"0"}},"replicaSetId":{"$oid":"` + v.ReplicaSetID.Hex() + `"}}}`
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("configuration (-want +got):\n%s", diff)
		}
	})
}

func TestReconfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, nil)
		c.hosts = c.hosts[:2]
		p := c.initiate(nil, nil)
		if p.host != c.hosts[0] {
			if err := p.StepDown(c.ctx, time.Minute, time.Minute, false); err != nil {
				t.Fatal(err)
			}
			p = c.settled()
		}
		extra := map[int]bson.D{2: {{Key: "votes", Value: 0}, {Key: "priority", Value: 0}}}
		for _, tt := range []struct {
			doc  bson.Raw
			code servererr.Code
			want string
		}{
			{configDoc(1, 2, nil, nil), servererr.NewReplicaSetConfigurationIncompatible, "must be greater than old"},
			{configDoc(2, 4, nil, nil), servererr.NewReplicaSetConfigurationIncompatible, "at most 1 voting member"},
			{configDoc(2, 2, map[int]bson.D{1: {{Key: "priority", Value: 0}, {Key: "buildIndexes", Value: false}}}, nil), servererr.NewReplicaSetConfigurationIncompatible, "buildIndexes"},
			{otherID(t, 7), servererr.NewReplicaSetConfigurationIncompatible, "_id field is 7"},
			{configDoc(2, 2, map[int]bson.D{1: {{Key: "_id", Value: 7}}}, nil), servererr.InvalidReplicaSetConfig, "duplicate field"},
			{bson.Raw{5, 0, 0, 0, 1}, servererr.InvalidReplicaSetConfig, "configuration"},
		} {
			err := p.Reconfig(c.ctx, tt.doc, false)
			wantCode(t, err, tt.code)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
		}
		wantCode(t, c.node(c.hosts[1]).Reconfig(c.ctx, configDoc(2, 2, nil, nil), false), servererr.NotWritablePrimary)
		if err := p.Reconfig(c.ctx, configDoc(2, 3, extra, nil), false); err != nil {
			t.Fatal(err)
		}
		c.hosts = append(c.hosts, hostName(2))
		added := c.node(hostName(2))
		c.until("the new member follows", func() bool { return added.View().State == oplog.MemberSecondary })
		at := p.mustWrite("x")
		if err := p.AwaitWriteConcern(c.ctx, at, WriteConcern{W: 3}); err != nil {
			t.Fatal(err)
		}
		// And out again.
		if err := p.Reconfig(c.ctx, configDoc(3, 2, nil, nil), false); err != nil {
			t.Fatal(err)
		}
		c.until("the member knows that it was removed", func() bool {
			_, err := added.Heartbeat(p.beatTo())
			return err != nil || added.View().State == oplog.MemberRemoved
		})
		if err := p.Reconfig(c.ctx, configDoc(4, 4, nil, nil), true); err != nil {
			t.Fatalf("force: %v", err)
		}
		if v := p.View(); v.ConfigTerm != -1 || v.ConfigVersion < 10000 {
			t.Errorf("a forced configuration is {version: %d, term: %d}", v.ConfigVersion, v.ConfigTerm)
		}
		c.hosts = append(c.hosts[:2], hostName(2), hostName(3))
		c.until("everybody follows", func() bool {
			at := p.View().Applied
			return !slices.ContainsFunc(c.hosts, func(h string) bool { return c.node(h).View().Applied != at })
		})
	})
}

// otherID is a configuration whose second member has another id than before.
func otherID(t *testing.T, id int) bson.Raw {
	return marshal(t, bson.D{
		{Key: "_id", Value: "rs"},
		{Key: "version", Value: 2},
		{Key: "members", Value: bson.A{
			bson.D{{Key: "_id", Value: 0}, {Key: "host", Value: hostName(0)}},
			bson.D{{Key: "_id", Value: id}, {Key: "host", Value: hostName(1)}},
		}},
	})
}

// beatTo is a heartbeat of this member.
func (tn *testNode) beatTo() bson.Raw {
	tn.Node.mu.Lock()
	defer tn.Node.mu.Unlock()
	return tn.heartbeatCommand(tn.conf)
}

// TestAnOutsiderWithATag is a tool that plays a hidden member: nothing answers
// at its address, but it reports positions, and a write concern waits for it.
func TestAnOutsiderWithATag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		p := c.initiate(nil, nil)
		doc := configDoc(2, 3, map[int]bson.D{2: {
			{Key: "votes", Value: 0},
			{Key: "priority", Value: 0},
			{Key: "hidden", Value: true},
			{Key: "buildIndexes", Value: false},
			{Key: "tags", Value: bson.D{{Key: "mirror", Value: "m1"}}},
		}}, bson.D{{Key: "getLastErrorModes", Value: bson.D{{Key: "mirror", Value: bson.D{{Key: "mirror", Value: 1}}}}}})
		if err := p.Reconfig(c.ctx, doc, false); err != nil {
			t.Fatal(err)
		}
		at := p.mustWrite("x")
		wc := WriteConcern{Mode: "mirror", Timeout: time.Second}
		wantCode(t, p.AwaitWriteConcern(c.ctx, at, wc), servererr.WriteConcernTimeout)
		done := make(chan error, 1)
		go func() { done <- p.AwaitWriteConcern(c.ctx, at, wc) }()
		synctest.Wait()
		if err := p.UpdatePosition(marshal(t, bson.D{
			{Key: "replSetUpdatePosition", Value: 1},
			{Key: "optimes", Value: bson.A{bson.D{
				{Key: "durableOpTime", Value: at},
				{Key: "durableWallTime", Value: time.Now()},
				{Key: "appliedOpTime", Value: at},
				{Key: "appliedWallTime", Value: time.Now()},
				{Key: "memberId", Value: int64(2)},
				{Key: "cfgver", Value: int64(2)},
			}}},
		})); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("with a report: %v", err)
		}
		time.Sleep(10 * time.Second)
		status, err := p.Status()
		if err != nil {
			t.Fatal(err)
		}
		if got := status.Lookup("members", "2", "stateStr").StringValue(); got != "(not reachable/healthy)" {
			t.Errorf("the outsider is shown as %q", got)
		}
	})
}

// TestStatusHasTheServersFields compares the names of fields, in order, with those
// of a server's reply.
func TestStatusHasTheServersFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		p := c.initiate(nil, nil)
		at := p.mustWrite("x")
		if err := p.AwaitWriteConcern(c.ctx, at, WriteConcern{W: 3}); err != nil {
			t.Fatal(err)
		}
		status, err := p.Status()
		if err != nil {
			t.Fatal(err)
		}
		names := func(doc bson.Raw) string {
			var all []string
			elems, err := doc.Elements()
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range elems {
				all = append(all, e.Key())
			}
			return strings.Join(all, " ")
		}
		self, other := "0", "1"
		if p.host != c.hosts[0] {
			self, other = p.host[:1], "0"
			self = map[string]string{"b": "1", "c": "2"}[self]
		}
		for _, tt := range []struct{ got, want string }{
			{names(status), "set date myState term syncSourceHost syncSourceId heartbeatIntervalMillis majorityVoteCount writeMajorityCount votingMembersCount writableVotingMembersCount optimes lastStableRecoveryTimestamp electionCandidateMetrics members"},
			{names(status.Lookup("optimes").Document()), "lastCommittedOpTime lastCommittedWallTime readConcernMajorityOpTime appliedOpTime durableOpTime lastAppliedWallTime lastDurableWallTime"},
			{names(status.Lookup("members", self).Document()), "_id name health state stateStr uptime optime optimeDate lastAppliedWallTime lastDurableWallTime syncSourceHost syncSourceId infoMessage electionTime electionDate configVersion configTerm self lastHeartbeatMessage"},
			{names(status.Lookup("members", other).Document()), "_id name health state stateStr uptime optime optimeDurable optimeDate optimeDurableDate lastAppliedWallTime lastDurableWallTime lastHeartbeat lastHeartbeatRecv pingMs lastHeartbeatMessage syncSourceHost syncSourceId infoMessage configVersion configTerm"},
		} {
			if diff := cmp.Diff(tt.want, tt.got); diff != "" {
				t.Errorf("fields (-server +ours):\n%s", diff)
			}
		}
		var s *testNode
		for _, h := range c.hosts {
			if h != p.host {
				s = c.node(h)
			}
		}
		// Both fields are left out while there is nothing to say, as by the server's
		// topology_coordinator.cpp; the source may be known before the primary is.
		c.until("the secondary has a source and knows the primary", func() bool {
			v := s.View()
			return v.Source != "" && v.Primary >= 0
		})
		beat, err := s.Heartbeat(p.beatTo())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff("state v configTerm set syncingTo term primaryId durableOpTime durableWallTime opTime wallTime electable", names(beat)); diff != "" {
			t.Errorf("heartbeat (-server +ours):\n%s", diff)
		}
	})
}

// TestModeGoes removes a write concern's mode while a client waits for it: that no
// member must have the write any more does not mean that one has it.
func TestModeGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, nil)
		modes := bson.D{{Key: "getLastErrorModes", Value: bson.D{{Key: "far", Value: bson.D{{Key: "place", Value: 2}}}}}}
		p := c.initiate(map[int]bson.D{0: {{Key: "tags", Value: bson.D{{Key: "place", Value: "here"}}}}}, modes)
		if p.host != c.hosts[0] {
			t.Fatalf("%s is primary", p.host)
		}
		tags := map[int]bson.D{
			0: {{Key: "tags", Value: bson.D{{Key: "place", Value: "here"}}}},
			1: {{Key: "tags", Value: bson.D{{Key: "place", Value: "there"}}}},
		}
		if err := p.Reconfig(c.ctx, configDoc(2, 2, tags, modes), false); err != nil {
			t.Fatal(err)
		}
		c.split(c.hosts[:1], c.hosts[1:])
		at := p.mustWrite("x")
		done := make(chan error, 1)
		go func() { done <- p.AwaitWriteConcern(c.ctx, at, WriteConcern{Mode: "far"}) }()
		synctest.Wait()
		if err := p.Reconfig(c.ctx, configDoc(3, 2, tags, nil), true); err != nil {
			t.Fatal(err)
		}
		wantCode(t, <-done, servererr.UnknownReplWriteConcern)
	})
}
