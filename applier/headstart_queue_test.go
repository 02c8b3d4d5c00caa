package applier

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
)

// full makes the target build indexes of other clients, for as long as builds hang, and
// allow no other build meanwhile.
func (r *rig) full(t *testing.T) {
	t.Helper()
	r.target.run(t, "admin", bson.D{{Key: "setParameter", Value: 1}, {Key: "maxNumActiveUserIndexBuilds", Value: 2}})
	for _, coll := range []string{"others", "more"} {
		r.target.run(t, "db", bson.D{{Key: "insert", Value: coll}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}}}}})
		r.buildAside(t, coll, "o")
	}
}

// buildAside builds indexes on single fields as another client, or a former primary, does. It
// returns once the build is in progress.
func (r *rig) buildAside(t *testing.T, coll string, keys ...string) {
	t.Helper()
	specs := bson.A{}
	for _, key := range keys {
		specs = append(specs, bson.D{{Key: "key", Value: bson.D{{Key: key, Value: 1}}}, {Key: "name", Value: key}})
	}
	body := must.Get(bson.Marshal(bson.D{{Key: "createIndexes", Value: coll}, {Key: "indexes", Value: specs}}))(t)
	before := r.target.built(t)
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	wg.Go(func() { _, _ = r.target.send(t.Context(), mongo.Command{DB: "db", Body: body}) })
	for r.target.built(t) == before {
		must.Succeed(t, mongo.Pause(t.Context(), time.Millisecond))
	}
}

// sends returns a channel with the names of the first indexes of each createIndexes that is
// sent to the target.
func (r *rig) sends() <-chan string {
	sent := make(chan string, 100)
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == "createIndexes" {
			sent <- cmd.Body.Lookup("indexes", "0", "name").StringValue()
		}
		return nil, false
	})
	return sent
}

// A target that builds as many indexes as it may makes a head start wait, and does not show
// it. Its abort waits for no other build, and leaves no index, also if an earlier attempt had
// sent it.
func TestAbortWhileQueued(t *testing.T) {
	for name, restart := range map[string]func(c *Config){
		"same attempt":    nil,
		"after a restart": func(*Config) {},
		"after a restart, before its turn": func(c *Config) {
			c.IndexBuilds, c.IndexSlots = 1, &IndexSlots{}
			must.Succeed(t, c.IndexSlots.acquire(t.Context(), 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, l := hanging(t)
			r.full(t)
			sent := r.sends()
			a := r.live(t, nil)
			l.alone(buildOp("startIndexBuild", 1, "x"))
			a.send(l, start)
			<-sent
			a.reaches(l.optime())
			if restart != nil {
				// Time to reach the target: without it the test shows less.
				must.Succeed(t, mongo.Pause(t.Context(), 50*time.Millisecond))
				a.crash()
				a = r.live(t, restart)
				l.inserts(1)
			}
			l.alone(buildOp("abortIndexBuild", 1, "x"))
			l.inserts(10)
			a.send(l, optimeOf(0))
			a.reaches(l.optime())
			r.target.hang(t, false)
			a.drain()
			r.quiet(t)
			r.target.hasIndexes(t)
		})
	}
}

// quiet waits until the target builds nothing, and has nothing to build: another build gets
// its turn after all that wait.
func (r *rig) quiet(t *testing.T) {
	t.Helper()
	r.target.run(t, "db", bson.D{
		{Key: "createIndexes", Value: "others"},
		{Key: "indexes", Value: bson.A{bson.D{{Key: "key", Value: bson.D{{Key: "last", Value: 1}}}, {Key: "name", Value: "last"}}}},
	})
}

// drops returns a channel with the names of the indexes of each dropIndexes that is sent to the
// target.
func (r *rig) drops() <-chan string {
	sent := make(chan string, 100)
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == "dropIndexes" {
			sent <- cmd.Body.Lookup("index").String()
		}
		return nil, false
	})
	return sent
}

// An aborted build of which one index is ready and another is in progress, by a command of
// a former primary, is dropped at once: the build first, which is in the way of the other.
func TestAbortMixed(t *testing.T) {
	t.Parallel()
	r, l := builtAside(t, "y")
	r.abortsWith(t, l, `["y"]`, `["x"]`)
}

// An aborted build that a former primary has begun, so that no session of the link can end it, is
// dropped at once, with one command that names all of its indexes.
func TestAbortOfFormerPrimary(t *testing.T) {
	t.Parallel()
	r, l := builtAside(t, "x", "y")
	r.abortsWith(t, l, `["x","y"]`)
}

// builtAside returns a target with a begun build of x and y, of which the named indexes are in progress by a command of a
// former primary, and the others are ready.
func builtAside(t *testing.T, inProgress ...string) (*rig, *sourceLog) {
	t.Helper()
	r, l := hanging(t)
	r.target.hang(t, false)
	a := r.live(t, nil)
	l.alone(buildOp("startIndexBuild", 1, "x", "y"))
	a.send(l, start)
	a.awaitListed("x", "y")
	a.crash()
	r.target.run(t, "db", bson.D{{Key: "dropIndexes", Value: "a"}, {Key: "index", Value: inProgress}})
	r.target.hang(t, true)
	r.buildAside(t, "a", inProgress...)
	return r, l
}

// abortsWith lets the next attempt abort the build of x and y, which must take exactly these
// dropIndexes.
func (r *rig) abortsWith(t *testing.T, l *sourceLog, want ...string) {
	t.Helper()
	dropped := r.drops()
	a := r.live(t, nil)
	l.alone(buildOp("abortIndexBuild", 1, "x", "y"))
	l.inserts(10)
	a.send(l, start)
	a.reaches(l.optime())
	r.target.hasIndexes(t)
	r.target.hang(t, false)
	a.drain()
	var got []string
	for len(dropped) > 0 {
		got = append(got, <-dropped)
	}
	if !slices.Equal(got, want) {
		t.Errorf("dropIndexes of %v, want %v", got, want)
	}
}

// A target that does not take killSessions has no head start: a build that it makes wait
// could not be aborted.
func TestNoHeadStartWithoutInterrupt(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	var sent []string
	asked := make(chan struct{})
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		switch simcaller.Name(cmd) {
		case "killSessions":
			defer close(asked)
			return servererr.New(servererr.CommandNotFound, "no such command: killSessions"), false
		case "createIndexes":
			sent = append(sent, cmd.Body.Lookup("indexes", "0", "name").StringValue())
		}
		return nil, false
	})
	a := r.live(t, nil)
	l.alone(buildOp("startIndexBuild", 1, "x"))
	a.send(l, start)
	<-asked
	r.target.hang(t, false)
	after := l.optime()
	l.alone(buildOp("commitIndexBuild", 1, "x"))
	a.send(l, after)
	a.reaches(l.optime())
	a.drain()
	if !slices.Equal(sent, []string{"x"}) {
		t.Errorf("createIndexes for %v", sent)
	}
}

// TestAbortWithoutInterrupt: the abort of a build whose head start has not ended yet does not end
// the link because the target does not take killSessions.
func TestAbortWithoutInterrupt(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	var asked atomic.Int32
	begun, aborted := make(chan struct{}), make(chan struct{})
	abort := sync.OnceFunc(func() { close(aborted) })
	defer abort()
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) != "killSessions" {
			return nil, false
		}
		switch asked.Add(1) {
		case 1: // of the head start
			close(begun)
		case 2: // of the abort
			abort()
		}
		<-aborted
		return servererr.New(servererr.CommandNotFound, "no such command: killSessions"), false
	})
	a := r.live(t, nil)
	l.alone(buildOp("startIndexBuild", 1, "x"))
	a.send(l, start)
	<-begun
	after := l.optime()
	l.alone(buildOp("abortIndexBuild", 1, "x"))
	a.send(l, after)
	a.reaches(l.optime())
	a.drain()
	r.target.hasIndexes(t)
}

// Appliers that share their slots leave room on the target for a build under a barrier.
func TestHeadStartsLeaveRoom(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	r.target.run(t, "admin", bson.D{{Key: "setParameter", Value: 1}, {Key: "maxNumActiveUserIndexBuilds", Value: 2}})
	r.target.run(t, "db", bson.D{{Key: "insert", Value: "b"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: "old"}}}}})
	var slots IndexSlots
	set := func(c *Config) { c.IndexBuilds, c.IndexSlots = 5, &slots }
	other := rigOn(t, r.target, "other", 1).live(t, set)
	l.alone(buildOp("startIndexBuild", 1, "x"))
	other.send(l, start)
	other.awaitListed("x?")
	sent := r.sends()
	a := r.live(t, set)
	after := l.optime()
	l.alone(buildOp("startIndexBuild", 2, "y"))
	l.inserts(10)
	a.send(l, after)
	a.reaches(l.optime())
	// The target has room for one more, which is that of the commit.
	after = l.optime()
	l.alone(buildOp("commitIndexBuild", 2, "y"))
	a.send(l, after)
	a.awaitListed("x?", "y?")
	r.target.hang(t, false)
	a.reaches(l.optime())
	a.drain()
	other.drain()
	if n := len(sent); n != 1 {
		t.Errorf("createIndexes was sent %d times, want once, by the commit: %s %s", n, <-sent, <-sent)
	}
}

func TestIndexSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s IndexSlots
		must.Succeed(t, s.acquire(t.Context(), 2))
		must.Succeed(t, s.acquire(t.Context(), 2))
		ctx, stop := context.WithCancelCause(t.Context())
		stop(errEnded)
		if err := s.acquire(ctx, 2); !errors.Is(err, errEnded) {
			t.Error(err)
		}
		got := make(chan error, 2)
		for range 2 {
			go func() { got <- s.acquire(t.Context(), 2) }()
		}
		for want := range 2 {
			if synctest.Wait(); len(got) != want {
				t.Errorf("%d slots, want %d", len(got), want)
			}
			s.release()
		}
		synctest.Wait()
		if len(got) != 2 {
			t.Errorf("%d slots", len(got))
		}
	})
}
