package guard_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// elected is a target that elects another primary before its newest entry is read, which does not know then that a majority has
// the writes after at. It knows shortly after.
type elected struct {
	*driver.Set
	primary client.Elected
	at      bson.Timestamp
}

// Call implements mongo.Caller.
func (e *elected) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if _, sorts := cmd.Body.Lookup("sort").DocumentOK(); cmd.DB == "local" && sorts {
		e.primary.ElectAt(e.at)
		time.AfterFunc(20*time.Millisecond, e.primary.Learn)
	}
	return e.primary.Call(ctx, cmd)
}

// standing is a target with a link, and the time after it was made.
func standing(t *testing.T) (set *driver.Set, link *checkpoint.Link, at bson.Timestamp) {
	t.Helper()
	sim := mongosim.StartTest(t, mongosim.Options{Members: 1, Seed: 1, TTLInterval: -1, Moods: mongosim.NoMoods("a test chooses what is elected")})
	set = client.Open(t, driver.Config{URI: sim.URI()})
	links := must.Get(checkpoint.New(checkpoint.Config{Target: set, Link: "dr"}))(t)
	first := oplog.NewOpTime(100, 1, 1)
	must.Succeed(t, links.Create(t.Context(), checkpoint.State{Writers: 1, Applied: first, FetchFrom: first}))
	link = must.Get(links.Acquire(t.Context(), 0))(t)
	return set, link, must.Get(mongo.OperationTime(t.Context(), set))(t)
}

// writes inserts a document as an application does.
func writes(t *testing.T, set mongo.Caller) {
	t.Helper()
	must.Get(set.Call(t.Context(), mongo.Command{DB: "shop", Body: must.Get(bson.Marshal(bson.D{
		{Key: "insert", Value: "a"}, {Key: "documents", Value: bson.A{bson.D{{Key: "x", Value: 1}}}},
	}))(t)}))(t)
}

// TestBeginAfterElection: a foreign write before a term ends the link, also if the target elects another primary at that moment.
func TestBeginAfterElection(t *testing.T) {
	t.Parallel()
	set, link, at := standing(t)
	cfg := guard.Config{Mode: guard.Stop, Target: set, DB: "replicator", Link: "dr", Scope: all{}}
	must.Succeed(t, guard.New(cfg).Begin(t.Context(), link))
	writes(t, set)
	cfg.Target = &elected{Set: set, primary: client.Elected{Caller: set}, at: at}
	err := guard.New(cfg).Begin(t.Context(), link)
	if _, foreign := errors.AsType[*guard.ForeignError](err); !foreign {
		t.Errorf("it begins: %v", err)
	}
}

// TestStartsAfterElection: a write before the link is watched is not foreign, also if the target has just elected another primary.
func TestStartsAfterElection(t *testing.T) {
	t.Parallel()
	set, link, at := standing(t)
	writes(t, set)
	cfg := guard.Config{
		Mode: guard.Stop, DB: "replicator", Link: "dr", Scope: all{},
		Target: &elected{Set: set, primary: client.Elected{Caller: set}, at: at},
	}
	if err := guard.New(cfg).Begin(t.Context(), link); err != nil {
		t.Error(err)
	}
}

// TestStopsForWhatIsGone: a foreign write ends a link, also if the link drops the collection right after it, in the same reply.
func TestStopsForWhatIsGone(t *testing.T) {
	t.Parallel()
	set, link, _ := standing(t)
	cfg := guard.Config{Mode: guard.Stop, Target: set, DB: "replicator", Link: "dr", Scope: all{}, Await: 10 * time.Millisecond}
	g := guard.New(cfg)
	must.Succeed(t, g.Begin(t.Context(), link))
	writes(t, set)
	gate := guard.Gate{Target: set, DB: "replicator", Link: "dr"}
	must.Get(gate.Call(t.Context(), mongo.Command{DB: "shop", Body: must.Get(bson.Marshal(bson.D{{Key: "drop", Value: "a"}}))(t)}))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := g.Run(ctx)
	if e, foreign := errors.AsType[*guard.ForeignError](err); !foreign || e.Newest.NS != "shop.a" {
		t.Errorf("it ends with %v", err)
	}
	must.Succeed(t, guard.New(cfg).Begin(t.Context(), link)) // nothing is to be dealt with
}

// TestStopsForWhatIsGoneAmidTemporaries: so does one that the link drops while something else makes a temporary collection, which is gone after that.
func TestStopsForWhatIsGoneAmidTemporaries(t *testing.T) {
	t.Parallel()
	set, link, _ := standing(t)
	cfg := guard.Config{Mode: guard.Stop, Target: set, DB: "replicator", Link: "dr", Scope: all{}, Await: 10 * time.Millisecond}
	g := guard.New(cfg)
	must.Succeed(t, g.Begin(t.Context(), link))
	run := func(by mongo.Caller, command, coll string) {
		must.Get(by.Call(t.Context(), mongo.Command{DB: "shop", Body: must.Marshal(t, bson.D{{Key: command, Value: coll}})}))(t)
	}
	const temp = "tmpaB3xZ.renameCollection"
	writes(t, set)
	run(set, "create", temp)
	run(&guard.Gate{Target: set, DB: "replicator", Link: "dr"}, "drop", "a")
	run(set, "drop", temp)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := g.Run(ctx)
	if e, foreign := errors.AsType[*guard.ForeignError](err); !foreign || e.NS != "shop.a" {
		t.Errorf("it ends with %v", err)
	}
	must.Succeed(t, guard.New(cfg).Begin(t.Context(), link)) // nothing is to be dealt with
}

// TestAlarmGoesOn: in mode Alarm a foreign write is found, and ends nothing.
func TestAlarmGoesOn(t *testing.T) {
	t.Parallel()
	set, link, _ := standing(t)
	g := guard.New(guard.Config{Mode: guard.Alarm, Target: set, DB: "replicator", Link: "dr", Scope: all{}, Await: 10 * time.Millisecond})
	must.Succeed(t, g.Begin(t.Context(), link))
	writes(t, set)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	time.AfterFunc(time.Millisecond, func() {
		for st := g.Status().State; !st.IsTouched() && mongo.Pause(ctx, time.Millisecond) == nil; st = g.Status().State {
		}
		_ = mongo.Pause(ctx, 20*time.Millisecond) // it would have ended
		cancel()
	})
	err := g.Run(ctx)
	if st := g.Status().State; err != nil || !st.IsTouched() {
		t.Errorf("it ends with %v; found are %v", err, st.Counts)
	}
}

// TestFoundLate: a process that another one has succeeded, and that finds a foreign write then, has lost the link: the other one decides about that
// write, which may have been cleared since.
func TestFoundLate(t *testing.T) {
	t.Parallel()
	set, link, _ := standing(t)
	cfg := guard.Config{Mode: guard.Stop, Target: set, DB: "replicator", Link: "dr", Scope: all{}, Await: 10 * time.Millisecond}
	old := guard.New(cfg)
	must.Succeed(t, old.Begin(t.Context(), link))
	next := must.Get(must.Get(checkpoint.New(checkpoint.Config{Target: set, Link: "dr"}))(t).Acquire(t.Context(), 0))(t)
	must.Succeed(t, guard.New(cfg).Begin(t.Context(), next))
	writes(t, set)
	if err := old.Run(t.Context()); !errors.Is(err, lease.ErrFenced) {
		t.Errorf("it ends with %v", err)
	}
}
