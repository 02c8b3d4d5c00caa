package pipeline_test

import (
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
)

// count returns how many events of a kind there were.
func count(w *world, is func(event.Event) bool) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if is(e.event) {
			n++
		}
	}
	return n
}

// TestInvalidViews: a source with an invalid definition in system.views is copied and
// followed. The view is left out and reported; the rest is equal, and so is everything
// once the view has been removed.
func TestInvalidViews(t *testing.T) {
	t.Parallel()
	opts := func(seed int64) mongosim.Options { return mongosim.Options{Members: 1, Seed: seed, Dialect: "5.0"} }
	r := &routed{world: newWorld(t, opts(1), opts(2))}
	define := func(id any, pipeline any) {
		t.Helper()
		r.onSource(bson.D{{Key: "insert", Value: "system.views"}, {Key: "documents", Value: bson.A{
			bson.D{{Key: "_id", Value: id}, {Key: "viewOn", Value: "c"}, {Key: "pipeline", Value: pipeline}},
		}}})
	}
	remove := func(ids ...any) {
		t.Helper()
		r.onSource(bson.D{{Key: "delete", Value: "system.views"}, {Key: "deletes", Value: bson.A{
			bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}}, {Key: "limit", Value: 0}},
		}}})
	}
	r.insert(10)
	r.onSource(bson.D{{Key: "create", Value: "series"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}}}})
	r.onSource(bson.D{{Key: "insert", Value: "series"}, {Key: "documents", Value: bson.A{bson.D{{Key: "t", Value: time.Now()}, {Key: "v", Value: 1}}}}})
	r.onSource(bson.D{{Key: "create", Value: "good"}, {Key: "viewOn", Value: "c"}, {Key: "pipeline", Value: bson.A{}}})
	define("db.bad", "no pipeline")
	define(7, bson.A{})

	var l *link
	lackingOf := func(what string, met func() bool) {
		t.Helper()
		must.Succeed(t, r.untilOf(l, what, met))
	}
	spool := t.TempDir()
	cfg := func() pipeline.Config {
		c := pipeline.Config{Writers: 2, CheckpointInterval: 50 * time.Millisecond}
		c.Copy.Wanted, c.Copy.SpoolDir = true, spool
		return c
	}
	l = r.run(cfg())
	told := map[string]bool{} // a copy that has been interrupted says it again
	count(r.world, func(e event.Event) bool {
		if e.Message() == "a view cannot be made on the target" {
			told[e.LogValue().String()] = true
		}
		return false
	})
	if len(told) != 2 {
		t.Errorf("%v are told to be left out, want two views", told)
	}
	define("db.worse", bson.A{1}) // in the oplog, too
	define("db.mended", bson.A{1})
	define(8, bson.A{})
	r.insert(10)
	must.Succeed(t, r.caughtUp(l))
	// Another process of the link, which copied nothing, reports the views that are left out.
	l.drain(nil)
	r.awaitEnd(l)
	l = r.run(cfg())
	lackingOf("what is left out", func() bool { return len(l.p.Snapshot().Lacking.Views) == 5 })
	// A part of a definition is changed by a delta.
	change := func(id string, pipeline any) {
		t.Helper()
		r.onSource(bson.D{{Key: "update", Value: "system.views"}, {Key: "updates", Value: bson.A{
			bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "pipeline", Value: pipeline}}}}}},
		}}})
	}
	change("db.bad", bson.A{7})
	change("db.mended", bson.A{bson.D{{Key: "$limit", Value: 5}}})
	r.insert(10)
	must.Succeed(t, r.caughtUp(l))
	lackingOf("one view less to be left out", func() bool {
		lacking := l.p.Snapshot().Lacking.Views
		return len(lacking) == 4 && !slices.ContainsFunc(lacking, func(v ddl.LeftView) bool { return v.Name() == "db.mended" })
	})
	if n := count(r.world, func(e event.Event) bool { return e.Message() == "view is invalid at the source and left out" }); n < 2 {
		t.Errorf("%d events of invalid views in the log, want 2", n)
	}
	remove("db.bad", 7, "db.worse", 8)
	r.onSource(bson.D{{Key: "create", Value: "later"}, {Key: "viewOn", Value: "good"}, {Key: "pipeline", Value: bson.A{}}})
	r.isEqual(l)
	lackingOf("nothing to be left out", func() bool { return len(l.p.Snapshot().Lacking.Views) == 0 })
}

// TestInvalidViewOfTarget: a link continues, and restarts, on a target with such a
// definition.
func TestInvalidViewOfTarget(t *testing.T) {
	t.Parallel()
	opts := func(seed int64) mongosim.Options { return mongosim.Options{Members: 1, Seed: seed, Dialect: "5.0"} }
	r := &routed{world: newWorld(t, opts(3), opts(4))}
	cfg := pipeline.Config{Writers: 2, CheckpointInterval: 50 * time.Millisecond}
	l := r.run(cfg)
	r.insert(10)
	r.onSource(bson.D{{Key: "create", Value: "series"}, {Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "t"}}}})
	r.onSource(bson.D{{Key: "create", Value: "good"}, {Key: "viewOn", Value: "c"}, {Key: "pipeline", Value: bson.A{}}})
	r.isEqual(l)
	r.onTarget("db", bson.D{{Key: "insert", Value: "system.views"}, {Key: "documents", Value: bson.A{
		bson.D{{Key: "_id", Value: "db.bad"}, {Key: "pipeline", Value: bson.A{}}},
	}}})
	l.drain(nil)
	r.awaitEnd(l)
	r.insert(10)
	l = r.run(cfg)
	r.onSource(uniqueOn("u")) // and looks at its collections again
	r.insert(10)
	must.Succeed(t, r.caughtUp(l))
	r.onTarget("db", bson.D{{Key: "delete", Value: "system.views"}, {Key: "deletes", Value: bson.A{
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: "db.bad"}}}, {Key: "limit", Value: 1}},
	}}})
	r.isEqual(l)
}

// TestStoredFunctions: functions in system.js, which cannot be written in transactions,
// are created, changed and removed by the oplog and by the copy.
func TestStoredFunctions(t *testing.T) {
	t.Parallel()
	opts := func(seed int64) mongosim.Options { return mongosim.Options{Members: 1, Seed: seed, Dialect: "5.0"} }
	r := &routed{world: newWorld(t, opts(5), opts(6))}
	l := r.run(pipeline.Config{Writers: 4, CheckpointInterval: 50 * time.Millisecond})
	for i := range 20 {
		r.onSource(bson.D{{Key: "insert", Value: "system.js"}, {Key: "documents", Value: bson.A{
			bson.D{{Key: "_id", Value: i}, {Key: "value", Value: "function() {}"}},
		}}})
	}
	r.onSource(bson.D{{Key: "update", Value: "system.js"}, {Key: "updates", Value: bson.A{
		bson.D{{Key: "q", Value: bson.D{}}, {Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "value", Value: "function() { return 1 }"}}}}}, {Key: "multi", Value: true}},
	}}})
	r.onSource(bson.D{{Key: "delete", Value: "system.js"}, {Key: "deletes", Value: bson.A{
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 5}}}}}, {Key: "limit", Value: 0}},
	}}})
	r.insert(10)
	r.isEqual(l)
}
