package initialsync_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

// membersOf starts a set, and watches its members.
func membersOf(t *testing.T, each ...mongosim.MemberOptions) (*mongosim.Set, *driver.Set, *initialsync.Members) {
	t.Helper()
	set := mongosim.StartTest(t, mongosim.Options{MemberOptions: each, Seed: 1, ElectionTimeout: time.Hour, TTLInterval: -1, Moods: mongosim.NoMoods("each answer counts")})
	conn := client.Open(t, driver.Config{URI: set.URI()})
	w := watch(t, conn.Hosts(), conn)
	for {
		changed := w.Changed()
		if !w.View().ConfigUnread {
			return set, conn, initialsync.NewMembers(initialsync.MembersConfig{Watcher: w, Dialer: conn})
		}
		<-changed // the configuration is not read yet
	}
}

// watch watches a set.
func watch(t *testing.T, hosts []string, dial syncsource.Dialer) *syncsource.Watcher {
	t.Helper()
	w := must.Get(syncsource.NewWatcher(syncsource.WatcherConfig{Seeds: hosts, HeartbeatTimeout: 10 * time.Minute}, dial))(t)
	ctx, end := context.WithCancelCause(t.Context())
	watched := make(chan error, 1)
	go func() { watched <- w.Run(ctx) }()
	t.Cleanup(func() {
		end(nil)
		<-watched //nolint:errcheck // it was told to end
	})
	must.Succeed(t, w.Ready(ctx))
	return w
}

// reticent is a set whose members do not tell its configuration.
type reticent struct{ syncsource.Dialer }

func (d reticent) Member(host string) mongo.Caller { return reticentMember{d.Dialer.Member(host)} }

type reticentMember struct{ mongo.Caller }

func (m reticentMember) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if simcaller.Name(cmd) == "replSetGetConfig" {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return m.Caller.Call(ctx, cmd)
}

// TestStopBeforeTheConfiguration: as long as the set's configuration was not read, it is not known which members have
// votes, and hidden ones are not known at all.
func TestStopBeforeTheConfiguration(t *testing.T) {
	t.Parallel()
	set, conn, _ := membersOf(t, mongosim.MemberOptions{}, mongosim.MemberOptions{Hidden: true, NoPriority: true})
	w := watch(t, conn.Hosts(), reticent{conn})
	members := initialsync.NewMembers(initialsync.MembersConfig{Watcher: w, Dialer: conn})
	c := checkpoint.Copy{Host: set.Primary().Host(), Moves: 1, Begin: oplog.NewOpTime(1, 1, 0)}
	if stop, err := members.Stop(t.Context(), &c, oplog.OpTime{}); !errors.Is(err, initialsync.ErrNoMember) {
		t.Errorf("%s, %v, want %v", stop, err, initialsync.ErrNoMember)
	}
}

// TestStopOfMost: a copy that was read from several members ends at an entry that is not
// before what any of them can have shown, although the member that it is read from lags.
func TestStopOfMost(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	set, conn, members := membersOf(t, mongosim.MemberOptions{}, mongosim.MemberOptions{}, mongosim.MemberOptions{})
	primary := set.Primary()
	lagging := set.Member((primary.ID() + 1) % 3)
	id := must.Get(origin.Identify(ctx, conn.Member(lagging.Host()), lagging.Host()))(t)
	set.Isolate(lagging.ID())
	body := must.Marshal(t, bson.D{
		{Key: "insert", Value: "c"},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}},
	})
	if _, err := conn.Call(ctx, mongo.Command{DB: "d", Body: body}); err != nil {
		t.Fatal(err)
	}
	c := checkpoint.Copy{
		Host: id.Host, RBID: id.RBID, SyncID: id.SyncID, SyncIDUnread: id.Unread, SyncMark: id.SyncMark,
		Begin: oplog.NewOpTime(1, 1, 0),
	}
	newest := primary.Oplog(bson.Timestamp{})
	ts, i := newest[len(newest)-1].Lookup("ts").Timestamp()
	last := oplog.NewOpTime(ts, i, 1)
	if stop, err := members.Stop(ctx, &c, oplog.OpTime{}); err != nil || !stop.Before(last) {
		t.Errorf("of the only member: %s, %v", stop, err)
	}
	changed := c
	changed.RBID++
	c.Moves = 1
	for name, c := range map[string]*checkpoint.Copy{"moved": &c, "restarted": &changed} {
		if stop, err := members.Stop(ctx, c, oplog.OpTime{}); err != nil || stop.TS.Compare(last.TS) < 0 {
			t.Errorf("%s: %s before %s, %v", name, stop, last, err)
		}
	}
	if stop, err := members.Stop(ctx, &c, oplog.NewOpTime(last.TS.T+9, 1, 9)); err != nil || stop.TS.T != last.TS.T+9 {
		t.Errorf("not what is in the spool: %s, %v", stop, err)
	}
	// One that lags, even before Begin, counts.
	third := otherThan(set, primary, lagging)
	must.Succeed(t, third.Kill())
	c.Begin = last
	if stop, err := members.Stop(ctx, &c, oplog.OpTime{}); err != nil || stop.TS.Compare(last.TS) < 0 {
		t.Errorf("with one that lags: %s before %s, %v", stop, last, err)
	}
	c.Begin = oplog.NewOpTime(1, 1, 0)
	for _, m := range set.Members() {
		if m != lagging && m != third {
			if err := m.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if stop, err := members.Stop(ctx, &c, oplog.OpTime{}); err == nil {
		t.Errorf("with one of three: %s", stop)
	}
}

// otherThan returns the third member of a set of three.
func otherThan(set *mongosim.Set, two ...*mongosim.Member) *mongosim.Member {
	for _, m := range set.Members() {
		if !slices.Contains(two, m) {
			return m
		}
	}
	return nil
}

// TestStopWithArbiter: an arbiter, which has no entries, does not count for the end of a copy that was read from several
// members.
func TestStopWithArbiter(t *testing.T) {
	t.Parallel()
	set, _, members := membersOf(t, mongosim.MemberOptions{}, mongosim.MemberOptions{Arbiter: true})
	primary := set.Primary()
	newest := primary.Oplog(bson.Timestamp{})
	ts, i := newest[len(newest)-1].Lookup("ts").Timestamp()
	c := checkpoint.Copy{Host: primary.Host(), Moves: 1, Begin: oplog.NewOpTime(1, 1, 0)}
	if stop, err := members.Stop(t.Context(), &c, oplog.OpTime{}); err != nil || oplog.CompareTimestamps(stop.TS, bson.Timestamp{T: ts, I: i}) < 0 {
		t.Errorf("%s, %v", stop, err)
	}
}

// noStop kills all voting members but the primary: they do not determine the end of a copy any more.
func noStop(t *testing.T, set *mongosim.Set, members *initialsync.Members, voting []*mongosim.Member) {
	t.Helper()
	primary := set.Primary()
	for _, m := range voting {
		if m != primary {
			must.Succeed(t, m.Kill())
		}
	}
	c := checkpoint.Copy{Host: primary.Host(), Moves: 1, Begin: oplog.NewOpTime(1, 1, 0)}
	for {
		stop, err := members.Stop(t.Context(), &c, oplog.OpTime{})
		switch {
		case err == nil:
			t.Fatalf("with one of %d: %s", len(voting), stop)
		case errors.Is(err, initialsync.ErrNoMember):
			return
		case t.Context().Err() != nil:
			t.Fatal(err)
		default: // The member interrupts reads while it steps down.
		}
	}
}

// TestStopWithoutVotes: members without votes, for which no write waits, do not count.
func TestStopWithoutVotes(t *testing.T) {
	t.Parallel()
	without := mongosim.MemberOptions{NonVoting: true, NoPriority: true}
	set, _, members := membersOf(t, mongosim.MemberOptions{}, mongosim.MemberOptions{}, mongosim.MemberOptions{}, without, without)
	noStop(t, set, members, set.Members()[:3])
}

// TestStopOfHalf: half of the voting members need not have what the other half has.
func TestStopOfHalf(t *testing.T) {
	t.Parallel()
	set, _, members := membersOf(t, mongosim.MemberOptions{}, mongosim.MemberOptions{})
	noStop(t, set, members, set.Members())
}
