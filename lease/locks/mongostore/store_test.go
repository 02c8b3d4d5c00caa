package mongostore

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/mongotest"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/lockstest"
	"github.com/oplogrep/replicator/mongosim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConformance: on the embedded set, one database for each test.
func TestConformance(t *testing.T) {
	t.Parallel()
	sim := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 1})
	set := client.Open(t, driver.Config{URI: sim.URI()})
	lockstest.Run(t, 4*time.Second, func(t *testing.T) locks.Store { return New(set, strings.ReplaceAll(t.Name(), "/", "_")) })
}

// TestServers: on real servers, where there are any.
func TestServers(t *testing.T) {
	t.Parallel()
	mongotest.Versions(t, mongotest.Options{}, func(t *testing.T, rs *mongotest.ReplicaSet) {
		set := client.Open(t, driver.Config{URI: rs.URI()})
		name := strings.NewReplacer("/", "_", ".", "_", ":", "_").Replace
		t.Run("all", func(t *testing.T) {
			lockstest.Run(t, 4*time.Second, func(t *testing.T) locks.Store { return New(set, name(t.Name())) })
		})
		c := lockstest.Contention{Keys: 1000, Contenders: 20, Workers: 4, Elect: locks.ElectConfig{Store: New(set, "contenders"), Every: time.Second}}
		c.Run(t)
	})
}

// TestLateRenewal: a set of its own, as its clock is set.
func TestLateRenewal(t *testing.T) {
	t.Parallel()
	sim := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 4})
	lockstest.LateRenewal(t, New(client.Open(t, driver.Config{URI: sim.URI()}), "replicator"), sim.Primary().SkewClock)
}

// TestClockWithoutHello: servers before 4.4.2 know hello as isMaster.
func TestClockWithoutHello(t *testing.T) {
	t.Parallel()
	sim := mongosim.StartTest(t, mongosim.Options{Dialect: "4.4", NoHello: true})
	now := must.Get(New(client.Open(t, driver.Config{URI: sim.URI()}), "replicator").Clock(t.Context()))(t)
	if now.Election == "" || now.Time.IsZero() {
		t.Errorf("%+v", now)
	}
}

// refusing refuses the first command with a duplicate key, and then has a record.
type refusing struct {
	has   bson.D
	calls int
}

func (r *refusing) Call(context.Context, mongo.Command) (bson.Raw, error) {
	if r.calls++; r.calls == 1 {
		return nil, servererr.New(servererr.DuplicateKey, "E11000 duplicate key error")
	}
	return bson.Marshal(bson.D{{Key: "ok", Value: 1}, {Key: "value", Value: r.has}})
}

// TestTwoCreate: another process creates the record between the server's look and its insert.
// The claim is told which process has the lock.
func TestTwoCreate(t *testing.T) {
	t.Parallel()
	id, now := bson.NewObjectID(), bson.NewDateTimeFromTime(time.Now())
	has := bson.D{
		{Key: "_id", Value: "a"},
		{Key: fieldState, Value: int32(locks.Locked)},
		{Key: fieldProcess, Value: "p"},
		{Key: fieldID, Value: id},
		{Key: fieldWho, Value: ""},
		{Key: fieldWhy, Value: ""},
		{Key: fieldTerm, Value: int64(1)},
		{Key: fieldRenewals, Value: int64(0)},
		{Key: fieldTTL, Value: int64(0)},
		{Key: fieldWhen, Value: now},
		{Key: fieldModified, Value: now},
	}
	got, err := New(&refusing{has: has}, "replicator").Acquire(t.Context(), locks.Claim{Name: "a", Process: "q", ID: bson.NewObjectID()})
	if err != nil || got.ID != id {
		t.Errorf("%v, %+v, want that of p", err, got)
	}
}

// TestElections: whichever primaries fail, no two processes have the lock at once, and
// each term is one acquisition's. The first that is seen to have a lock has it until it says
// so itself.
func TestElections(t *testing.T) {
	t.Parallel()
	sim := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 2})
	ctx, cancel := context.WithCancelCause(t.Context())
	var holders atomic.Int32
	var mu sync.Mutex // guards terms
	terms := map[int64]bool{}
	var all sync.WaitGroup
	for range 4 {
		m := locks.NewManager(locks.Config{Store: New(client.Open(t, driver.Config{URI: sim.URI()}), "replicator"), Retry: 20 * time.Millisecond})
		pinger, stop := context.WithCancelCause(t.Context())
		var pinging sync.WaitGroup
		pinging.Go(func() { m.Run(pinger) })
		all.Go(func() {
			for ctx.Err() == nil {
				l, err := m.Lock(ctx, "shop", "elections", locks.Wants{Wait: -1})
				if err != nil {
					break
				}
				mu.Lock()
				if terms[l.Record().Term] {
					t.Errorf("term %d again", l.Record().Term)
				}
				terms[l.Record().Term] = true
				mu.Unlock()
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d have it", n)
				}
				holders.Add(-1)
				l.Unlock(context.WithoutCancel(ctx))
			}
			stop(nil)
			pinging.Wait()
			must.Succeed(t, m.Close(context.WithoutCancel(ctx)))
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(terms)
	}
	for range 3 {
		before := count()
		must.Succeed(t, sim.StepDown(t.Context()))
		for count() < before+2 { // one may have been acquired before
			time.Sleep(10 * time.Millisecond)
		}
	}
	cancel(nil)
	all.Wait()
	// A store asks once: the records are read by a client that meets no moods.
	s := New(client.Open(t, driver.Config{URI: sim.URI(), AppName: "test"}), "replicator")
	list := must.Get(s.List(t.Context(), ""))(t)
	if len(list) != 1 || list[0].IsLocked() || len(terms) < 6 {
		t.Errorf("%d terms, left: %+v", len(terms), list)
	}
	if at := must.Get(s.Pinged(t.Context(), list[0].Process))(t); !at.IsZero() {
		t.Errorf("%s still has a ping", list[0].Process)
	}
}

// TestContenders: 20 contenders, whose locks are kept through elections of the store; with
// LOCKS_SECONDS for so long, on 1,000 locks.
func TestContenders(t *testing.T) {
	t.Parallel()
	sim := mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 3})
	set := client.Open(t, driver.Config{URI: sim.URI()})
	c := lockstest.Contention{
		Keys: 200, Contenders: 20, Workers: 2,
		Elect:   locks.ElectConfig{Store: New(set, "replicator"), TTL: 5 * time.Second, Every: time.Second},
		Halfway: func() { must.Succeed(t, sim.StepDown(t.Context())) },
	}
	if text := os.Getenv("LOCKS_SECONDS"); text != "" {
		c.Keys, c.For = 1000, time.Duration(must.Get(strconv.Atoi(text))(t))*time.Second
		defer elections(t, sim, c.For/4)()
	}
	began := time.Now()
	t.Logf("%d locks were taken in %s", c.Run(t), time.Since(began))
}

// elections makes the primary step down again and again, until the function that it returns is called.
func elections(t *testing.T, sim *mongosim.Set, every time.Duration) (stop func()) {
	ctx, cancel := context.WithCancelCause(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = sim.StepDown(ctx)
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel(nil)
		all.Wait()
	}
}
