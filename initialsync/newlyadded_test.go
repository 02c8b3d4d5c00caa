package initialsync_test

import (
	"context"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// telling is a set whose members' replies to some commands are changed.
type telling struct {
	syncsource.Dialer
	names  []string
	change func(reply bson.D) bson.D
}

func (d telling) Member(host string) mongo.Caller { return tellingMember{d.Dialer.Member(host), d} }

type tellingMember struct {
	mongo.Caller
	set telling
}

func (m tellingMember) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := m.Caller.Call(ctx, cmd)
	if err != nil || !slices.Contains(m.set.names, simcaller.Name(cmd)) {
		return reply, err
	}
	var doc bson.D
	if err := bson.Unmarshal(reply, &doc); err != nil {
		return nil, err
	}
	return bson.Marshal(m.set.change(doc))
}

var hellos = []string{"hello", "isMaster"}

// adding is a set whose last member is in its first sync, and has no vote until that is done: replSetGetConfig tells its configuration as
// it will be, hello the priority that it has meanwhile.
func adding(d syncsource.Dialer, host string) telling {
	return telling{d, hellos, func(reply bson.D) bson.D {
		for i := range reply {
			if hosts, ok := reply[i].Value.(bson.A); ok && reply[i].Key == "hosts" {
				reply[i].Value = slices.DeleteFunc(hosts, func(h any) bool { return h == host })
			}
		}
		return append(reply, bson.E{Key: "passives", Value: bson.A{host}})
	}}
}

// TestStopWhileOneIsAdded: a member is added in place of one that does not answer any more, and makes its first sync. Until it has
// done that it has no vote, so that most of the voting members are two of three.
func TestStopWhileOneIsAdded(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		set, conn, _ := membersOf(t, mongosim.MemberOptions{}, mongosim.MemberOptions{}, mongosim.MemberOptions{}, mongosim.MemberOptions{})
		primary := set.Primary()
		var others []*mongosim.Member
		for _, m := range set.Members() {
			if m != primary {
				others = append(others, m)
			}
		}
		var dial syncsource.Dialer = conn
		if first {
			dial = adding(conn, others[1].Host())
		}
		w := watch(t, client.Open(t, driver.Config{URI: set.URI()}).Hosts(), dial)
		for changed := w.Changed(); w.View().ConfigUnread; changed = w.Changed() {
			<-changed
		}
		members := initialsync.NewMembers(initialsync.MembersConfig{Watcher: w, Dialer: conn})
		must.Succeed(t, others[0].Kill())
		must.Succeed(t, others[1].Kill())
		c := checkpoint.Copy{Host: primary.Host(), Moves: 1, Begin: oplog.NewOpTime(1, 1, 0)}
		if stop, err := members.Stop(t.Context(), &c, oplog.OpTime{}); (err == nil) != first {
			t.Errorf("one is added: %t: %s, %v", first, stop, err)
		}
	}
}

// counting is a set with one voting member less than its configuration says, as replSetGetStatus counts them. Version and term are added to
// those of the configuration.
func counting(d syncsource.Dialer, version, term int64) telling {
	return telling{d, []string{"replSetGetStatus"}, func(reply bson.D) bson.D {
		for i := range reply {
			switch reply[i].Key {
			case "writableVotingMembersCount":
				reply[i].Value = reply[i].Value.(int32) - 1
			case "members":
				for _, of := range reply[i].Value.(bson.A) {
					of := of.(bson.D)
					for j := range of {
						switch of[j].Key {
						case "configVersion":
							of[j].Value = int64(of[j].Value.(int32)) + version
						case "configTerm":
							of[j].Value = int64(of[j].Value.(int32)) + term
						}
					}
				}
			}
		}
		return reply
	}}
}

// TestStopWhileOneWithoutPriorityIsAdded: nor has a member that is added with priority 0, whose priority does not change: the others
// count the votes. They may count those of another configuration than the one that is known, and one that is known not to be elected
// may be the one that is added.
func TestStopWhileOneWithoutPriorityIsAdded(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		version, term int64
		added, old    bool // has replSetGetStatus one less; is the one that answers without priority too
		found         bool
	}{
		"one is added":               {added: true, found: true},
		"none is added":              {},
		"of another configuration":   {added: true, version: 1},
		"of another term":            {added: true, term: -1},
		"which may be the other one": {added: true, old: true},
	} {
		set, conn, _ := membersOf(t, mongosim.MemberOptions{}, mongosim.MemberOptions{}, mongosim.MemberOptions{NoPriority: tt.old}, mongosim.MemberOptions{NoPriority: true})
		primary := set.Primary()
		var dial syncsource.Dialer = conn
		if tt.added {
			dial = counting(conn, tt.version, tt.term)
		}
		w := watch(t, client.Open(t, driver.Config{URI: set.URI()}).Hosts(), dial)
		for changed := w.Changed(); w.View().ConfigUnread; changed = w.Changed() {
			<-changed
		}
		members := initialsync.NewMembers(initialsync.MembersConfig{Watcher: w, Dialer: dial})
		kept := set.Members()[2]
		if kept == primary {
			kept = set.Members()[1]
		}
		for _, m := range set.Members() {
			if m != primary && m != kept {
				must.Succeed(t, m.Kill())
			}
		}
		c := checkpoint.Copy{Host: primary.Host(), Moves: 1, Begin: oplog.NewOpTime(1, 1, 0)}
		if stop, err := members.Stop(t.Context(), &c, oplog.OpTime{}); (err == nil) != tt.found {
			t.Errorf("%s: %s, %v", name, stop, err)
		}
	}
}

// behind is a set whose members answer hello with the configuration before the one that replSetGetConfig has.
func behind(d syncsource.Dialer) telling {
	earlier := func(doc bson.D) {
		for i := range doc {
			if doc[i].Key != "setVersion" && doc[i].Key != "configVersion" {
				continue
			}
			switch version := doc[i].Value.(type) {
			case int32:
				doc[i].Value = version - 1
			case int64:
				doc[i].Value = version - 1
			}
		}
	}
	return telling{d, hellos, func(reply bson.D) bson.D {
		earlier(reply)
		for i := range reply {
			if sub, ok := reply[i].Value.(bson.D); ok {
				earlier(sub)
			}
		}
		return reply
	}}
}

// TestStopWhileVotesAreUnsure: the configuration that has the member that is added was just read, and no member has answered with it yet, so
// that the one that answers beside the primary may be that one: of the three that have a vote, two do not answer.
func TestStopWhileVotesAreUnsure(t *testing.T) {
	t.Parallel()
	for _, unsure := range []bool{true, false} {
		set, conn, _ := membersOf(t, mongosim.MemberOptions{}, mongosim.MemberOptions{}, mongosim.MemberOptions{}, mongosim.MemberOptions{})
		primary := set.Primary()
		dial := counting(conn, 0, 0)
		if unsure {
			dial.Dialer = behind(conn)
		}
		w := watch(t, client.Open(t, driver.Config{URI: set.URI()}).Hosts(), dial)
		for changed := w.Changed(); w.View().ConfigUnread || w.View().VotesUnsure != unsure; changed = w.Changed() {
			<-changed
		}
		members := initialsync.NewMembers(initialsync.MembersConfig{Watcher: w, Dialer: dial})
		left := 2
		for _, m := range set.Members() {
			if m != primary && left > 0 {
				must.Succeed(t, m.Kill())
				left--
			}
		}
		c := checkpoint.Copy{Host: primary.Host(), Moves: 1, Begin: oplog.NewOpTime(1, 1, 0)}
		if stop, err := members.Stop(t.Context(), &c, oplog.OpTime{}); (err != nil) != unsure {
			t.Errorf("unsure: %t: %s, %v", unsure, stop, err)
		}
	}
}
