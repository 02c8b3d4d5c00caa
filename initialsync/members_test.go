package initialsync_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/syncsource"
)

type callerFunc func(ctx context.Context, cmd mongo.Command) (bson.Raw, error)

func (f callerFunc) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	return f(ctx, cmd)
}

type dialFunc func(host string) mongo.Caller

func (f dialFunc) Member(host string) mongo.Caller { return f(host) }

// answers decides what a host answers: an error, another host's answer, or (nil, nil) its
// own.
type answers func(host string, cmd mongo.Command) (mongo.Caller, error)

// choice is a set of three members and a copy of which a part was read from one of them.
type choice struct {
	*testing.T
	set     *mongosim.Set
	conn    *driver.Set
	was     string
	link    *checkpoint.Link
	members *initialsync.Members
	watcher *syncsource.Watcher
	// targetDown: the target's primary has stepped down.
	targetDown atomic.Bool
	answers    atomic.Pointer[answers]
	moved      []initialsync.CopyMoved
}

const (
	choosing = "choosing"
	// fresh: the copy has taken no time yet, however slow the machine is.
	fresh = -time.Hour
)

var (
	naturalSpec = bson.D{{Key: "order", Value: "natural"}}
	naturalAt   = bson.D{{Key: "order", Value: "natural"}, {Key: "record", Value: int64(40)}}
	byIDSpec    = bson.D{{Key: "order", Value: "_id"}}
	byIDAt      = bson.D{{Key: "order", Value: "_id"}, {Key: "piece", Value: int32(0)}, {Key: "last", Value: int32(40)}}
)

// newChoice begins a copy some time ago; a collection was read up to a place.
func newChoice(t *testing.T, wait, ago time.Duration, spec, at bson.D) *choice {
	t.Helper()
	c := &choice{T: t}
	c.set = mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 1, ElectionTimeout: time.Hour, TTLInterval: -1, Moods: mongosim.NoMoods("each answer counts")})
	c.conn = client.Open(t, driver.Config{URI: c.set.URI(), AppName: mongosim.Stage})
	source, target := &server{c.conn, c.set}, start(t, 2, "")
	primary := target.Caller
	l := newLink(t, source, target, scope.Config{})
	c.was, l.copy.Started = l.copy.Host, time.Now().Add(-ago)
	id := must.Get(replset.Identify(t.Context(), source))(t)
	store := must.Get(checkpoint.New(checkpoint.Config{Target: target, Link: choosing}))(t)
	must.Succeed(t, store.Create(t.Context(), checkpoint.State{
		Writers: writers, Fingerprint: "f", Applied: l.copy.Begin, AppliedWall: 1, FetchFrom: l.copy.FetchFrom, Copy: &l.copy, Source: checkpoint.Source(id),
	}))
	target.Caller = callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
		if c.targetDown.Load() {
			return nil, servererr.New(servererr.NotWritablePrimary, "an election")
		}
		return primary.Call(ctx, cmd)
	})
	st, _, err := store.Load(t.Context())
	must.Succeed(t, err)
	c.link = must.Get(store.Acquire(t.Context(), st.Term))(t)
	p := progress.Of(c.link)
	coll := progress.Collection{
		UUID: oplog.UUID{1}, NS: "d.c", State: progress.Planned, Docs: 50,
		Options: must.Marshal(t, bson.D{}), IDIndex: must.Marshal(t, bson.D{}),
	}
	must.Succeed(t, p.AddCollections(t.Context(), []progress.Collection{coll}))
	coll.State = progress.Created
	part := progress.Range{UUID: coll.UUID, Spec: must.Marshal(t, spec), Docs: 40, Bytes: 4000}
	if at != nil {
		part.At = must.Marshal(t, at)
	}
	must.Succeed(t, p.Lane(0).SaveCollection(t.Context(), &coll, []progress.Range{part}))
	c.watch(wait)
	// No other member continues a copy before the configuration is read.
	for changed := c.watcher.Changed(); c.watcher.View().ConfigUnread; changed = c.watcher.Changed() {
		<-changed
	}
	return c
}

// watch starts what chooses members.
func (c *choice) watch(wait time.Duration) {
	c.Helper()
	dial := dialFunc(func(host string) mongo.Caller {
		return callerFunc(func(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
			to := c.conn.Member(host)
			if f := c.answers.Load(); f != nil {
				switch other, err := (*f)(host, cmd); {
				case err != nil:
					return nil, err
				case other != nil:
					to = other
				}
			}
			return to.Call(ctx, cmd)
		})
	})
	c.watcher = must.Get(syncsource.NewWatcher(syncsource.WatcherConfig{Seeds: c.conn.Hosts(), HeartbeatInterval: 20 * time.Millisecond}, dial))(c)
	ctx, end := context.WithCancelCause(c.Context())
	watched := make(chan error, 1)
	go func() { watched <- c.watcher.Run(ctx) }()
	c.Cleanup(func() { end(nil); <-watched }) //nolint:errcheck // it was told to end
	must.Succeed(c, c.watcher.Ready(ctx))
	r := must.Get(syncsource.NewResolver(syncsource.ResolverConfig{Rules: syncsource.Rules{AcceptEqual: true}}, c.watcher, dial))(c)
	c.members = initialsync.NewMembers(initialsync.MembersConfig{Watcher: c.watcher, Resolver: r.Another(), Dialer: dial, Wait: wait, Observer: func(e event.Event) {
		if m, ok := e.(initialsync.CopyMoved); ok {
			c.moved = append(c.moved, m)
		}
	}})
}

func (c *choice) answer(f answers) { c.answers.Store(&f) }

// choose chooses until a member is chosen or the copy is void, at most for a while.
func (c *choice) choose(atMost time.Duration) error {
	c.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(atMost); ; <-tick.C {
		_, err := c.members.Choose(c.Context(), c.link)
		if err == nil || initialsync.Void(err) || !time.Now().Before(end) {
			return err
		}
		if !errors.Is(err, initialsync.ErrNoMember) {
			c.Errorf("it is not clear that this passes: %v", err)
		}
	}
}

// collection returns the collection as it is recorded, and its number of ranges.
func (c *choice) collection() (progress.Collection, int) {
	c.Helper()
	docs, ranges, err := progress.Of(c.link).Copies(c.Context())
	must.Succeed(c, err)
	return docs[0], len(ranges)
}

func lost(host string) error {
	return &mongo.LostError{Host: host, Err: errors.New("connection refused")}
}

// isRead reports whether a command reads documents as a majority has them.
func isRead(cmd mongo.Command) bool {
	level, err := cmd.Body.LookupErr("readConcern", "level")
	return err == nil && level.StringValue() == "majority"
}

var errNoMajorityReads = servererr.New(148, "Majority read concern requested, but it is not supported by the storage engine.")

// TestMemberWithoutMajorityReads: a member that answers everything but majority reads, as
// with enableMajorityReadConcern: false, does not continue a copy.
func TestMemberWithoutMajorityReads(t *testing.T) {
	t.Parallel()
	c := newChoice(t, time.Minute, fresh, naturalSpec, naturalAt)
	var back atomic.Bool
	c.answer(func(host string, cmd mongo.Command) (mongo.Caller, error) {
		switch {
		case host == c.was && !back.Load():
			return nil, lost(host)
		case host != c.was && isRead(cmd):
			return nil, errNoMajorityReads
		}
		return nil, nil
	})
	if err := c.choose(0); err == nil || !strings.Contains(err.Error(), "Majority read concern") {
		t.Errorf("nothing says why no member can continue: %v", err)
	}
	back.Store(true)
	err := c.choose(time.Minute)
	if coll, ranges := c.collection(); err != nil || c.link.Copy().Host != c.was || ranges != 1 || coll.State != progress.Created {
		t.Errorf("%v; the copy is read from %s (it was %s), and has %d ranges, %s", err, c.link.Copy().Host, c.was, ranges, coll.State)
	}
}

// TestMemberLosesMajorityReads: a member that still says that it is a secondary, and
// cannot be read any more, is left.
func TestMemberLosesMajorityReads(t *testing.T) {
	t.Parallel()
	c := newChoice(t, time.Minute, fresh, naturalSpec, naturalAt)
	only := ""
	for _, m := range c.set.Members() {
		if m.Host() != c.was {
			only = m.Host()
		}
	}
	c.answer(func(host string, cmd mongo.Command) (mongo.Caller, error) {
		if host != only && isRead(cmd) {
			return nil, errNoMajorityReads
		}
		return nil, nil
	})
	if err := c.choose(time.Minute); err != nil || c.link.Copy().Host != only {
		t.Errorf("%v; the copy is read from %s, and only %s can be read", err, c.link.Copy().Host, only)
	}
	if coll, ranges := c.collection(); coll.State != progress.Planned || !coll.Again || !coll.ByID || ranges != 0 {
		t.Errorf("%+v, %d ranges", coll, ranges)
	}
}

// TestMemberNameOfAnotherSet: the name of the member that is copied belongs to a member of
// another set now, whose rollback id is the same or not.
func TestMemberNameOfAnotherSet(t *testing.T) {
	t.Parallel()
	for name, restarted := range map[string]bool{"same rollback id": false, "another rollback id": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newChoice(t, time.Minute, fresh, naturalSpec, naturalAt)
			other := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 9, SetName: "other", TTLInterval: -1, Moods: mongosim.NoMoods("each answer counts")})
			if restarted {
				m := other.Primary()
				must.Succeed(t, m.Kill())
				must.Succeed(t, m.Start())
				must.Get(other.AwaitPrimary(t.Context()))(t)
			}
			foreign := client.Open(t, driver.Config{URI: other.URI(), AppName: mongosim.Stage}).Member(other.Primary().Host())
			c.answer(func(host string, _ mongo.Command) (mongo.Caller, error) {
				if host == c.was {
					return foreign, nil
				}
				return nil, nil
			})
			if err := c.choose(time.Minute); err != nil || c.link.Copy().Host == c.was {
				t.Errorf("two members of the set are healthy, and the copy is read from %s, of another set: %v", c.link.Copy().Host, err)
			}
		})
	}
}

// TestMemberAbsenceObserved: two failures that are far apart, with nothing asked between
// them, are not an absence; one that is observed makes the copy void.
func TestMemberAbsenceObserved(t *testing.T) {
	t.Parallel()
	c := newChoice(t, time.Second, fresh, naturalSpec, naturalAt)
	c.answer(func(host string, _ mongo.Command) (mongo.Caller, error) { return nil, lost(host) })
	_, first := c.members.Choose(t.Context(), c.link)
	<-time.After(1500 * time.Millisecond) // attempts end at the target meanwhile
	_, err := c.members.Choose(t.Context(), c.link)
	if initialsync.Void(first) || initialsync.Void(err) || !errors.Is(err, initialsync.ErrNoMember) {
		t.Errorf("after two tries: %v", err)
	}
	if err := c.choose(time.Minute); !initialsync.Void(err) || c.link.Copy().Moves != 0 {
		t.Errorf("after an absence: %v", err)
	}
}

// TestMemberFaultOfTarget: a target that fails while another member takes over makes no
// copy void, and nothing is lost by it.
func TestMemberFaultOfTarget(t *testing.T) {
	t.Parallel()
	c := newChoice(t, 500*time.Millisecond, fresh, naturalSpec, naturalAt)
	c.answer(func(host string, _ mongo.Command) (mongo.Caller, error) {
		if host == c.was {
			return nil, lost(host)
		}
		return nil, nil
	})
	c.targetDown.Store(true)
	for range 20 {
		if _, err := c.members.Choose(t.Context(), c.link); err == nil || initialsync.Void(err) || errors.Is(err, initialsync.ErrNoMember) {
			t.Fatalf("the target elects: %v", err)
		}
		<-time.After(50 * time.Millisecond)
	}
	c.targetDown.Store(false)
	if coll, ranges := c.collection(); coll.State != progress.Created || ranges != 1 {
		t.Errorf("%s, %d ranges", coll.State, ranges)
	}
	if err := c.choose(time.Minute); err != nil || c.link.Copy().Host == c.was || len(c.moved) != 1 || len(c.moved[0].Again) != 1 {
		t.Errorf("%v: %+v", err, c.moved)
	}
}

// TestMemberPatience: a copy waits for its member as long as it took to read what would be
// lost with it; if that is nothing, or the member has left the set, not at all.
func TestMemberPatience(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spec, at bson.D
		removed  bool
		moves    bool
	}{
		"hours are at stake":         {spec: naturalSpec, at: naturalAt},
		"nothing, as it is by _id":   {spec: byIDSpec, at: byIDAt, moves: true},
		"nothing, as none was read":  {spec: naturalSpec, moves: true},
		"hours, and it left the set": {spec: naturalSpec, at: naturalAt, removed: true, moves: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newChoice(t, 24*time.Hour, 10*time.Hour, test.spec, test.at)
			if test.removed {
				c.remove()
			}
			c.answer(func(host string, _ mongo.Command) (mongo.Caller, error) {
				if host == c.was {
					return nil, lost(host)
				}
				return nil, nil
			})
			atMost := 500 * time.Millisecond
			if test.moves {
				atMost = 30 * time.Second
			}
			err := c.choose(atMost)
			if moved := c.link.Copy().Host != c.was; moved != test.moves || moved != (err == nil) {
				t.Errorf("moved %t: %v", moved, err)
			}
			if !test.moves && (err == nil || !strings.Contains(err.Error(), "for another 9h59m") && !strings.Contains(err.Error(), "for another 10h")) {
				t.Errorf("how long it waits: %v", err)
			}
			if _, ranges := c.collection(); (ranges == 1) != (test.at == nil || !test.removed) {
				t.Errorf("%d ranges", ranges)
			}
		})
	}
}

// remove removes the member that is copied from the set.
func (c *choice) remove() {
	c.Helper()
	for _, m := range c.set.Members() {
		if m.Host() != c.was {
			continue
		}
		if m == c.set.Primary() {
			c.stepDown()
		}
		must.Succeed(c, c.set.RemoveMember(c.Context(), m.ID()))
	}
	for changed := c.watcher.Changed(); ; changed = c.watcher.Changed() {
		there := false
		for _, m := range c.watcher.View().Members {
			there = there || m.Host == c.was && !m.Stranger
		}
		if !there {
			return
		}
		<-changed
	}
}

func (c *choice) stepDown() {
	c.Helper()
	was := c.set.Primary()
	for c.set.Primary() == was || c.set.Primary() == nil {
		_, err := c.conn.Member(was.Host()).Call(c.Context(), mongo.Command{DB: "admin", Body: must.Marshal(c, bson.D{{Key: "replSetStepDown", Value: 60}})})
		c.Logf("step down: %v", err)
		must.Get(c.set.AwaitPrimary(c.Context()))(c)
	}
}

// TestMemberTrouble: a member that answers, but on whose reads attempts fail without
// progress, is left after a while.
func TestMemberTrouble(t *testing.T) {
	t.Parallel()
	c := newChoice(t, time.Second, fresh, naturalSpec, naturalAt)
	stuck := func(host string, cmd mongo.Command) (mongo.Caller, error) {
		if name, _ := cmd.Body.IndexErr(0); host == c.was && name.Key() == "listCollections" && cmd.DB == "d" {
			return nil, servererr.New(servererr.MaxTimeMSExpired, "operation exceeded time limit")
		}
		return nil, nil
	}
	c.answer(stuck)
	list := mongo.Command{DB: "d", Body: must.Marshal(t, bson.D{{Key: "listCollections", Value: 1}})}
	attempt := func(progressed bool) (moved bool) {
		member, err := c.members.Choose(t.Context(), c.link)
		must.Succeed(t, err)
		_, err = member.Call(t.Context(), list)
		c.members.Ended(progressed, err)
		return c.link.Copy().Host != c.was
	}
	for range 15 { // longer than it would wait
		if attempt(true) {
			t.Fatal("it moves although the copy progresses")
		}
		<-time.After(50 * time.Millisecond)
	}
	end := time.Now().Add(time.Minute)
	for n := 0; !attempt(false); n++ {
		if time.Now().After(end) {
			t.Fatal("it never moves")
		}
		<-time.After(50 * time.Millisecond)
	}
	if len(c.moved) != 1 || !strings.Contains(c.moved[0].Why, "exceeded time limit") {
		t.Errorf("%+v", c.moved)
	}
}

// TestBeginElsewhere: a copy begins from a member that can be read, although the nearest
// ones answer only that they are secondaries. If none can, the error says why.
func TestBeginElsewhere(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		c := newChoice(t, time.Second, fresh, naturalSpec, nil)
		only := append(c.conn.Hosts(), "")[i] // whichever is the nearest
		c.answer(func(host string, cmd mongo.Command) (mongo.Caller, error) {
			if host != only && isRead(cmd) {
				return nil, errNoMajorityReads
			}
			return nil, nil
		})
		for range 3 {
			begun, _, err := c.members.Begin(t.Context())
			if begun.Host != only || (err == nil) != (only != "") || only == "" && !errors.Is(err, errNoMajorityReads) {
				t.Errorf("%s, %v; only %q can be read", begun.Host, err, only)
			}
		}
	}
}
