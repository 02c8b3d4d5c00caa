package syncsource

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// wired is a Watcher and a Resolver for an embedded set.
type wired struct {
	t   *testing.T
	ctx context.Context
	set *mongosim.Set
	mdb *driver.Set
	w   *Watcher
	r   *Resolver

	mu     sync.Mutex
	events []string
}

func startWired(t *testing.T, opts mongosim.Options, rules Rules, user string) *wired {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	x := &wired{t: t, ctx: ctx, set: mongosim.StartTest(t, opts)}
	must.Succeed(t, x.set.AwaitReady(ctx))
	uri := x.set.URI()
	if user != "" {
		uri = x.set.URIFor(user)
	}
	options, err := driver.Parse(driver.Config{URI: uri, AppName: mongosim.Stage})
	if err != nil {
		t.Fatal(err)
	}
	if x.mdb, err = driver.Open(ctx, options); err != nil {
		t.Fatal(err)
	}
	observe := func(e event.Event) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.events = append(x.events, eventText(e))
	}
	x.w, err = NewWatcher(WatcherConfig{
		Seeds: []string{x.set.Member(0).Host()}, HeartbeatInterval: 40 * time.Millisecond,
		HeartbeatTimeout: 3 * time.Second, configInterval: time.Second, Observer: observe,
	}, x.mdb)
	if err != nil {
		t.Fatal(err)
	}
	if x.r, err = NewResolver(ResolverConfig{Rules: rules, Observer: observe}, x.w, x.mdb); err != nil {
		t.Fatal(err)
	}
	over := errors.New("the test is over")
	running, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	group.Go(func() { _ = x.w.Run(running) })
	t.Cleanup(func() {
		stop(over)
		group.Wait()
		x.mdb.Close()
	})
	must.Succeed(t, x.w.Ready(ctx))
	return x
}

// write inserts a document on the primary, over the wire.
func (x *wired) write() {
	x.t.Helper()
	body, err := bson.Marshal(bson.D{
		{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "a", Value: 1}}}},
	})
	if err != nil {
		x.t.Fatal(err)
	}
	if _, err := x.mdb.Call(x.ctx, mongo.Command{DB: "db", Body: body}); err != nil {
		x.t.Fatal(err)
	}
}

// oldest returns the oldest entry of a member.
func (x *wired) oldest(id int) oplog.OpTime {
	x.t.Helper()
	oldest, err := replset.OldestEntry(x.ctx, x.mdb.Member(x.set.Member(id).Host()))
	if err != nil {
		x.t.Fatal(err)
	}
	return oldest.OpTime
}

// await waits for a view that satisfies ok.
func (x *wired) await(what string, ok func(v *View) bool) {
	x.t.Helper()
	for {
		changed := x.w.Changed()
		v := x.w.View()
		if ok(&v) {
			return
		}
		select {
		case <-changed:
		case <-x.ctx.Done():
			x.t.Fatalf("%s: %q, configuration %q", what, describe(v), v.ConfigFault)
		}
	}
}

// resolve calls Resolve until the choice satisfies ok.
func (x *wired) resolve(what string, last oplog.OpTime, ok func(s Source) bool) Source {
	x.t.Helper()
	for {
		changed := x.w.Changed()
		source, err := x.r.Resolve(x.ctx, last)
		if err == nil && ok(source) {
			return source
		}
		select {
		case <-changed:
		case <-x.ctx.Done():
			x.t.Fatalf("%s: %q, %v", what, source.Host, err)
		}
	}
}

func TestOverTheWire(t *testing.T) {
	t.Parallel()
	x := startWired(t, mongosim.Options{
		Seed: 1, ElectionTimeout: 10 * time.Second,
		MemberOptions: []mongosim.MemberOptions{{}, {}, {Tags: map[string]string{"dc": "x"}}, {NonVoting: true, NoPriority: true, Hidden: true}},
	}, Rules{MaxLag: time.Second, TagSets: []map[string]string{{"dc": "x"}, {}}, AcceptEqual: true}, "")
	host := func(id int) string { return x.set.Member(id).Host() }

	// The hidden member and the set's id are known.
	x.await("all members", func(v *View) bool {
		hidden, ok := v.find(host(3))
		_, primary := v.primary()
		return ok && hidden.Hidden && hidden.NonVoting && hidden.Up() && hidden.Pings > 0 && hidden.RBID > 0 && primary &&
			len(v.Members) == 4 && v.ReplicaSetID.Type == bson.TypeObjectID
	})

	// The tagged member is preferred, but its oplog begins after an entry that was
	// never written.
	x.write()
	must.Succeed(t, x.set.AwaitSynced(x.ctx))
	oldest := x.oldest(2)
	x.resolve("the tagged one", oldest, func(s Source) bool { return s.Host == host(2) })
	before := oplog.OpTime{TS: bson.Timestamp{T: oldest.TS.T - 1, I: 1}, Term: oldest.Term}
	_, err := x.r.Resolve(x.ctx, before)
	if stale, ok := errors.AsType[*TooStaleError](err); !ok || stale.Earliest.TS != oldest.TS {
		t.Fatalf("an entry before the oldest: %v", err)
	}
	x.r.mu.Lock()
	clear(x.r.denied)
	x.r.mu.Unlock()

	// A stopped member is left, and the reason is reported.
	x.resolve("the tagged one again", oldest, func(s Source) bool { return s.Host == host(2) })
	must.Succeed(t, x.set.Member(2).Stop(x.ctx))
	x.await("member 2 down", func(v *View) bool { m, ok := v.find(host(2)); return ok && m.Fault != "" })
	if verdict := x.r.OnError(oldest); !verdict.Change || !strings.Contains(verdict.Reason, "cannot be reached") {
		t.Errorf("the source is down: %+v", verdict)
	}
	x.resolve("another one", oldest, func(s Source) bool { return s.Host != host(2) && s.Host != host(3) })
	must.Succeed(t, x.set.Member(2).Start())

	x.lag(2, oldest)

	// Without chaining only the primary is read.
	x.reconfig(withoutChaining)
	x.await("no chaining", func(v *View) bool { return v.NoChaining && v.comparable() })
	primary := x.resolve("the primary", oldest, func(s Source) bool {
		v := x.w.View()
		m, ok := v.find(s.Host)
		return ok && m.State == oplog.MemberPrimary
	})
	if primary.Host != x.set.Primary().Host() {
		t.Errorf("read from %s, the primary is %s", primary.Host, x.set.Primary().Host())
	}
	must.Succeed(t, x.set.StepDown(x.ctx))
	x.await("another primary", func(v *View) bool { m, ok := v.primary(); return ok && m.Host != primary.Host })
	if verdict := x.r.OnReply(oldest, SourceState{Applied: oldest, HasSource: true}); !verdict.Change || !strings.Contains(verdict.Reason, "is not the primary") {
		t.Errorf("the source is primary no more: %+v", verdict)
	}
}

// lag partitions a member from the others, until it is refused because it lags.
func (x *wired) lag(id int, last oplog.OpTime) {
	x.t.Helper()
	host := x.set.Member(id).Host()
	x.set.Isolate(id)
	defer x.set.Rejoin(id)
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		x.write()
		v := x.w.View()
		choice := Choose(v, x.r.query(last))
		i := slices.IndexFunc(choice.Refused, func(r Refusal) bool { return r.Host == host })
		if i >= 0 && strings.Contains(choice.Refused[i].Reason, "s behind the primary, 1 s are allowed") && choice.Host != "" {
			tick.Stop()
			return
		}
		select {
		case <-tick.C:
		case <-x.ctx.Done():
			x.t.Fatalf("member %d does not lag: %q", id, describe(v))
		}
	}
}

// withoutChaining returns a configuration without chaining.
func withoutChaining(config bson.D) bson.D {
	for i := range config {
		if settings, ok := config[i].Value.(bson.D); ok && config[i].Key == "settings" {
			for j := range settings {
				if settings[j].Key == "chainingAllowed" {
					settings[j].Value = false
				}
			}
		}
	}
	return config
}

func (x *wired) reconfig(change func(config bson.D) bson.D) {
	x.t.Helper()
	reply, err := x.mdb.Call(x.ctx, mongo.Command{DB: "admin", Body: configCommand()})
	if err != nil {
		x.t.Fatal(err)
	}
	e, _ := rawbson.Lookup(reply, "config")
	var config bson.D
	doc, _ := e.Document()
	if err := bson.Unmarshal(doc, &config); err != nil {
		x.t.Fatal(err)
	}
	for i := range config {
		if config[i].Key == "version" {
			config[i].Value = config[i].Value.(int32) + 1
		}
	}
	body, err := bson.Marshal(bson.D{{Key: "replSetReconfig", Value: change(config)}})
	if err != nil {
		x.t.Fatal(err)
	}
	if _, err := x.mdb.Call(x.ctx, mongo.Command{DB: "admin", Body: body}); err != nil {
		x.t.Fatal(err)
	}
}

// TestOverTheWireWithoutRights: a user that may read local but not the
// configuration finds a source.
func TestOverTheWireWithoutRights(t *testing.T) {
	t.Parallel()
	x := startWired(t, mongosim.Options{
		Seed: 1, MemberOptions: []mongosim.MemberOptions{{}, {NoPriority: true}, {NoPriority: true, Hidden: true}},
		Users: []mongosim.User{{Name: "reader", Password: "pw", Roles: []mongosim.Role{{Name: "read", DB: "local"}}}},
	}, Rules{AcceptEqual: true}, "reader")
	x.await("the configuration's refusal", func(v *View) bool {
		return strings.Contains(v.ConfigFault, "Unauthorized") && len(v.Members) == 2 && v.Members[1].Pings > 0
	})
	oldest := x.oldest(0)
	x.resolve("a source", oldest, func(s Source) bool { return s.Host != "" })
}
