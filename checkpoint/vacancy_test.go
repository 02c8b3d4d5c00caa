package checkpoint

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
)

// runAndRemove creates a link, acquires it, and removes it.
func runAndRemove(ctx context.Context, t *testing.T, s *Store) {
	t.Helper()
	must.Succeed(t, s.Create(ctx, first(2)))
	must.Get(s.Acquire(ctx, 0))(t)
	must.Succeed(t, s.Remove(ctx))
}

// TestCreateIn: a link is created only if no process has had one of its name since the vacancy was read, with Remove or by hand,
// also if that removal was interrupted.
func TestCreateIn(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g := &target{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}
	s := link(t, g)
	before := must.Get(s.Vacancy(ctx))(t)
	runAndRemove(ctx, t, s)
	must.Fail(t, s.CreateIn(ctx, before, first(1)), ErrRemoved)
	if _, found, err := s.Load(ctx); found || err != nil {
		t.Fatalf("it was created, or %v", err)
	}
	v := must.Get(s.Vacancy(ctx))(t)
	must.Succeed(t, s.CreateIn(ctx, v, first(1)))
	must.Fail(t, s.CreateIn(ctx, v, first(1)), ErrExists)
	must.Fail(t, s.CreateIn(ctx, before, first(1)), ErrExists) // somebody has made it again

	// Nothing was done for a link that nobody had.
	must.Succeed(t, s.Remove(ctx))
	must.Succeed(t, s.CreateIn(ctx, v, first(1)))

	must.Get(s.Acquire(ctx, 0))(t)
	must.Fail(t, s.CreateIn(ctx, v, first(1)), ErrExists) // the terms are its own
	must.Get(g.Call(ctx, metadata.Delete("replicator", metadata.Links, metadata.ByID("a"))))(t)
	must.Fail(t, s.CreateIn(ctx, v, first(1)), ErrRemoved)
	must.Fail(t, link(t, &target{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}).CreateIn(ctx, NoVacancy(), first(1)), ErrRemoved)
}

// TestCreateInLate: the transaction that creates the link has begun before another process creates, acquires and removes one.
func TestCreateInLate(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"find", "insert"} {
		t.Run("before the first "+command, func(t *testing.T) {
			t.Parallel()
			ctx := within(t)
			g := &target{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}
			other := link(t, &target{Set: g.Set})
			must.Succeed(t, other.Prepare(ctx))
			s := link(t, g)
			v := must.Get(s.Vacancy(ctx))(t)
			var once sync.Once
			g.Intercept(func(cmd mongo.Command) (error, bool) {
				if simcaller.Name(cmd) == command {
					once.Do(func() { runAndRemove(ctx, t, other) })
				}
				return nil, false
			})
			must.Fail(t, s.CreateIn(ctx, v, first(1)), ErrRemoved)
			if _, found, err := other.Load(ctx); found || err != nil {
				t.Errorf("it was created, or %v", err)
			}
		})
	}
}

// TestCreateInDropped: a link is not created in a metadata database that was dropped since its vacancy was read, at any time: another
// process may have had it, and the terms have begun again. A database that did not exist says nothing.
func TestCreateInDropped(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"", "create", "findAndModify", "find", "insert"} {
		t.Run("before the first "+command, func(t *testing.T) {
			t.Parallel()
			ctx := within(t)
			g := &target{Set: mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1})}
			plain := &target{Set: g.Set}
			other := link(t, plain)
			none := must.Get(other.Vacancy(ctx))(t)
			must.Succeed(t, other.Prepare(ctx))
			s := link(t, g)
			v := must.Get(s.Vacancy(ctx))(t)
			drop := func() {
				runAndRemove(ctx, t, other)
				must.Get(plain.Call(ctx, metadata.Majority(mongo.Command{
					DB: "replicator", Body: metadata.Document(func(dst []byte) []byte { return bsoncore.AppendInt32Element(dst, "dropDatabase", 1) }),
				})))(t)
			}
			var once sync.Once
			g.Intercept(func(cmd mongo.Command) (error, bool) {
				if simcaller.Name(cmd) == command {
					once.Do(drop)
				}
				return nil, false
			})
			if command == "" {
				drop()
			}
			must.Fail(t, s.CreateIn(ctx, v, first(1)), ErrRemoved)
			if _, found, err := other.Load(ctx); found || err != nil {
				t.Errorf("it was created, or %v", err)
			}
			must.Fail(t, s.CreateIn(ctx, v, first(1)), ErrRemoved)
			must.Succeed(t, s.CreateIn(ctx, none, first(1)))
			must.Fail(t, s.CreateIn(ctx, v, first(1)), ErrExists)
		})
	}
}

// TestLoadCommitted: a link whose creation a failover may roll back is not found yet, also by a process that waits for its lease.
func TestLoadCommitted(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g := &target{Set: mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 1, ElectionTimeout: time.Minute})}
	s, maker := link(t, g), link(t, g)
	must.Succeed(t, maker.Prepare(ctx))
	g.Set.Isolate(g.Set.Primary().ID())
	made := make(chan error)
	go func() { made <- maker.Create(ctx, first(1)) }()
	for {
		if _, err := s.readLink(ctx); err == nil {
			break
		}
		must.Succeed(t, mongo.Pause(ctx, 10*time.Millisecond))
	}
	if _, found, err := s.Load(ctx); found || err != nil {
		t.Errorf("found %t, %v", found, err)
	}
	if _, found, err := s.Look(ctx, lease.NewWatch("")); found || err != nil {
		t.Errorf("seen %t, %v", found, err)
	}
	g.Set.Rejoin(g.Set.Primary().ID())
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	if _, found, err := s.Load(ctx); !found || err != nil {
		t.Errorf("found %t, %v", found, err)
	}
}

// TestLoadWithoutMajority: a link is found on a target that has no majority reads.
func TestLoadWithoutMajority(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, s, _ := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	g.Intercept(func(cmd mongo.Command) (error, bool) {
		if level, _ := cmd.Body.Lookup("readConcern", "level").StringValueOK(); level == "majority" {
			return servererr.New(servererr.ReadConcernMajorityNotEnabled, "Majority read concern requested, but it is not supported by the storage engine."), false
		}
		return nil, false
	})
	if st, found, err := s.Load(ctx); !found || err != nil || len(st.Lanes) != 2 {
		t.Errorf("found %t, %+v, %v", found, st, err)
	}
	if _, found, err := s.Look(ctx, lease.NewWatch("")); !found || err != nil {
		t.Errorf("seen %t, %v", found, err)
	}
	if v, err := s.Vacancy(ctx); err != nil || v.made == "" {
		t.Errorf("the database is %q, %v", v.made, err)
	}
}

// TestVacancyCommitted: the identity of a metadata database that a failover may roll back is not compared: the database was not dropped if it has
// another one afterwards.
func TestVacancyCommitted(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g := &target{Set: mongosim.StartTest(t, mongosim.Options{Members: 3, Seed: 1, ElectionTimeout: time.Minute})}
	s, maker := link(t, g), link(t, g)
	for _, name := range []string{metadata.Links, metadata.Terms, metadata.Lanes} {
		must.Succeed(t, s.createCollection(ctx, name))
	}
	g.Set.Isolate(g.Set.Primary().ID())
	made := make(chan error)
	go func() { made <- maker.make(ctx) }()
	for {
		if text, err := s.made(ctx, g, newest); err == nil && text != "" {
			break
		}
		must.Succeed(t, mongo.Pause(ctx, 10*time.Millisecond))
	}
	v := must.Get(s.Vacancy(ctx))(t)
	g.Set.Rejoin(g.Set.Primary().ID())
	must.Succeed(t, <-made)
	// As a rollback, and another process that makes it again, leave it.
	must.Get(g.Call(ctx, metadata.Majority(metadata.Delete("replicator", metadata.Terms, metadata.ByID(madeID)))))(t)
	must.Succeed(t, maker.make(ctx))
	must.Succeed(t, s.CreateIn(ctx, v, first(1)))
	later := must.Get(s.Vacancy(ctx))(t)
	if v.made != "" || later.made == "" {
		t.Errorf("the database is %q, later %q", v.made, later.made)
	}
}
