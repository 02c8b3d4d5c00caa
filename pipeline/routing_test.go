package pipeline_test

import (
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
)

// routed is a world of two sets of one member each, with some helpers.
type routed struct {
	*world
	// docs are how many were inserted into each collection.
	docs int
}

func newRouted(t *testing.T) *routed {
	t.Helper()
	return &routed{world: newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})}
}

func (r *routed) onTarget(db string, cmd bson.D) bson.Raw {
	r.foreign.Store(true)
	r.t.Helper()
	reply, err := r.target.on(r.t.Context(), 0, db, cmd)
	if err != nil {
		r.t.Fatal(err)
	}
	return reply
}

func (r *routed) onSource(cmd bson.D) {
	r.t.Helper()
	must.Succeed(r.t, r.source.write(r.t.Context(), "db", cmd))
}

// insert inserts documents into u and c.
func (r *routed) insert(docs int) {
	r.t.Helper()
	for _, c := range []string{"u", "c"} {
		var list bson.A
		for i := range docs {
			list = append(list, bson.D{{Key: "_id", Value: r.docs + i}, {Key: "v", Value: r.docs + i}})
		}
		r.onSource(bson.D{{Key: "insert", Value: c}, {Key: "documents", Value: list}})
	}
	r.docs += docs
}

func uniqueOn(collection string) bson.D {
	return bson.D{{Key: "createIndexes", Value: collection}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "v", Value: 1}}}, {Key: "name", Value: "v_1"}, {Key: "unique", Value: true}},
	}}}
}

// run starts the link and waits until it follows the source.
func (r *routed) run(cfg pipeline.Config) *link {
	r.t.Helper()
	must.Succeed(r.t, r.start("a", cfg, scope.Config{}))
	l := r.links["a"]
	must.Succeed(r.t, r.untilOf(l, "a link that is steady", func() bool { return l.p.Snapshot().State == monitor.Steady }))
	return l
}

func (r *routed) isEqual(l *link) {
	r.t.Helper()
	must.Succeed(r.t, r.caughtUp(l))
	if report, err := r.equal(l); report != "equal" || err != nil {
		r.t.Errorf("%.500s %v", report, err)
	}
}

// refuseCommit makes the target refuse a commit, as in a step-down, after the next n.
func (r *routed) refuseCommit(n int) {
	r.t.Helper()
	r.onTarget("admin", bson.D{
		{Key: "configureFailPoint", Value: "failCommand"},
		{Key: "mode", Value: bson.D{{Key: "skip", Value: n}, {Key: "times", Value: 1}}},
		{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"commitTransaction"}}, {Key: "errorCode", Value: 189}}},
	})
}

// TestIndexDroppedWhileRunning: a unique index of the target is dropped while the link
// runs, as advised, and the link restarts by itself, with lanes at different positions:
// no unapplied operation counts as applied.
func TestIndexDroppedWhileRunning(t *testing.T) {
	t.Parallel()
	r := newRouted(t)
	for _, c := range []string{"u", "c"} {
		r.onSource(bson.D{{Key: "create", Value: c}})
		r.onTarget("db", bson.D{{Key: "create", Value: c}})
	}
	r.onTarget("db", uniqueOn("u"))
	l := r.run(pipeline.Config{Writers: 8, CheckpointInterval: time.Second, FlushDocs: 20, CoalesceWindow: 20})
	r.insert(10)
	must.Succeed(t, r.caughtUp(l))
	r.onTarget("db", bson.D{{Key: "dropIndexes", Value: "u"}, {Key: "index", Value: "v_1"}})
	// The lane of u has most of its work left when the others are past c.
	r.refuseCommit(150)
	r.insert(3000)
	r.isEqual(l)
	if n := l.p.Snapshot().Attempts; n < 2 {
		t.Errorf("%d attempt", n)
	}
}

// TestSerializedSwap: a unique index that the oplog creates makes its collection go
// through one lane at once: documents that pass values on to each other never conflict.
func TestSerializedSwap(t *testing.T) {
	t.Parallel()
	r := newRouted(t)
	l := r.run(pipeline.Config{
		Writers: 16, CheckpointInterval: 50 * time.Millisecond, FlushDocs: 2, CoalesceWindow: 2, UniqueIndexes: ddl.Serialized,
	})
	r.insert(40)
	r.onSource(uniqueOn("u"))
	for round := range 5 {
		var updates bson.A
		set := func(id, v int) {
			updates = append(updates, bson.D{
				{Key: "q", Value: bson.D{{Key: "_id", Value: id}}},
				{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: v}}}}},
			})
		}
		set(0, -1-round)
		for id := 1; id < r.docs; id++ {
			set(id, id-1)
		}
		for id := r.docs - 1; id >= 0; id-- {
			set(id, id)
		}
		r.onSource(bson.D{{Key: "update", Value: "u"}, {Key: "updates", Value: updates}})
	}
	r.isEqual(l)
}

// unrouted changes the link's document to one of a release that recorded no routing.
func (r *routed) unrouted() {
	r.t.Helper()
	r.onTarget("replicator", bson.D{{Key: "update", Value: "links"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{{Key: "_id", Value: "mirror"}}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "version", Value: int32(1)}}}, {Key: "$unset", Value: bson.D{{Key: "routing", Value: ""}}}}},
	}}}})
	r.onTarget("replicator", bson.D{{Key: "drop", Value: "routes"}})
}

// TestUnrouted: a link of a release that did not record its routing continues if it was
// stopped in order, and is refused if its lanes are at different positions.
func TestUnrouted(t *testing.T) {
	t.Parallel()
	r := newRouted(t)
	cfg := pipeline.Config{Writers: 4, CheckpointInterval: 50 * time.Millisecond}
	l := r.run(cfg)
	r.insert(100)
	must.Succeed(t, r.caughtUp(l))
	l.drain(nil)
	<-l.done
	if l.err != nil {
		t.Fatal(l.err)
	}
	r.unrouted()
	l = r.run(cfg)
	r.insert(100)
	r.isEqual(l)
	l.drain(nil)
	<-l.done
	link := func() bson.Raw {
		reply := r.onTarget("replicator", bson.D{{Key: "find", Value: "links"}})
		return reply.Lookup("cursor", "firstBatch", "0").Document()
	}
	if doc := link(); doc.Lookup("version").AsInt64() != 2 || doc.Lookup("routing").AsInt64() != applier.Routing {
		t.Errorf("the link's document was not brought to the present format: %s", doc)
	}

	// One lane is ahead.
	for name, change := range map[string]func(){
		"no routing": r.unrouted,
		"another routing": func() {
			r.onTarget("replicator", bson.D{{Key: "update", Value: "links"}, {Key: "updates", Value: bson.A{bson.D{
				{Key: "q", Value: bson.D{{Key: "_id", Value: "mirror"}}},
				{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "version", Value: int32(2)}, {Key: "routing", Value: int32(checkpoint.RoutingFew + 1)}}}}},
			}}}})
		},
	} {
		change()
		r.onTarget("replicator", bson.D{{Key: "update", Value: "lanes"}, {Key: "updates", Value: bson.A{bson.D{
			{Key: "q", Value: bson.D{{Key: "_id", Value: "mirror/2"}}},
			{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "ts", Value: bson.Timestamp{T: 1 << 31}}}}}},
		}}}})
		must.Succeed(t, r.start("a", cfg, scope.Config{}))
		l = r.links["a"]
		<-l.done
		e, ok := errors.AsType[*checkpoint.RoutingError](l.err)
		if !ok {
			t.Fatalf("%s, and lanes that are apart: %v", name, l.err)
		}
		if v := failure.Classify(l.err); v.Code != failure.ExitCheck || v.Hint == "" {
			t.Errorf("%s: it ends with %d, hint %q", name, v.Code, v.Hint)
		}
		t.Log(e)
	}
}
