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

// adding is a set whose last member is in its first sync, and has no vote until that is done: replSetGetConfig tells its configuration as
// it will be, hello the priority that it has meanwhile.
type adding struct {
	syncsource.Dialer
	host string
}

func (d adding) Member(host string) mongo.Caller { return addingMember{d.Dialer.Member(host), d.host} }

type addingMember struct {
	mongo.Caller
	host string
}

func (m addingMember) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := m.Caller.Call(ctx, cmd)
	if name := simcaller.Name(cmd); err != nil || name != "hello" && name != "isMaster" {
		return reply, err
	}
	var doc bson.D
	if err := bson.Unmarshal(reply, &doc); err != nil {
		return nil, err
	}
	for i := range doc {
		if hosts, ok := doc[i].Value.(bson.A); ok && doc[i].Key == "hosts" {
			doc[i].Value = slices.DeleteFunc(hosts, func(h any) bool { return h == m.host })
		}
	}
	return bson.Marshal(append(doc, bson.E{Key: "passives", Value: bson.A{m.host}}))
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
			dial = adding{conn, others[1].Host()}
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
