package applier

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
)

// awaitDocuments waits until a collection of the target has so many documents.
func (l *live) awaitDocuments(ns oplog.Namespace, want int) {
	l.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		select {
		case err := <-l.done:
			l.t.Fatalf("the applier has ended: %v", err)
		default:
		}
		if got := len(l.r.target.documents(l.t, ns)); got == want {
			return
		} else if time.Now().After(end) {
			l.t.Fatalf("%s has %d documents, want %d", ns, got, want)
		}
	}
}

// awaitWait waits until handing out operations waits for something.
func (l *live) awaitWait(what string) {
	l.t.Helper()
	for end := time.Now().Add(time.Minute); l.Stats().WaitsFor != what; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			l.t.Fatalf("it waits for %q, not for %q", l.Stats().WaitsFor, what)
		}
	}
}

// watermark returns the last watermark.
func (l *live) watermark() oplog.OpTime {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.applied
}

// hasIndexes checks the indexes of db.a.
func (l *live) hasIndexes(want ...string) {
	l.t.Helper()
	l.r.target.hasIndexes(l.t, want...)
}

// While the target executes a commitIndexBuild, only that collection waits. The watermark
// stays before the commit, and a crash loses nothing and repeats nothing.
func TestBuildKeepsBack(t *testing.T) {
	for _, crashes := range []int{0, 1, 2} {
		for _, writers := range []int{1, 4} {
			t.Run(fmt.Sprintf("%d crashes, %d writers", crashes, writers), func(t *testing.T) {
				t.Parallel()
				r := prepared(t, writers, doc("old", 0))
				r.target.run(t, "db", bson.D{{Key: "create", Value: "b"}})
				r.target.hang(t, true)
				l := newLog(t)
				l.add(insertOp("db.a", doc("first", 0)))
				before := l.optime()
				l.alone(buildOp("commitIndexBuild", 1, "x+y"))
				l.inserts(100)
				for i := range 100 {
					l.add(setOp("db.a", i, 1))
					l.add(setOp("db.b", i, 1))
				}
				for i := 1; i < 100; i += 2 {
					l.add(deleteOp("db.a", i))
					l.add(deleteOp("db.b", i))
				}
				a := r.live(t, nil)
				a.send(l, start)
				for range crashes {
					a.awaitDocuments("db.b", 50)
					a.crash()
					a = r.live(t, nil)
					a.send(l, start)
				}
				a.awaitDocuments("db.b", 50)
				if n := len(r.target.documents(t, "db.a")); n != 2 {
					t.Errorf("db.a has %d documents before its index, want 2", n)
				}
				if at := a.watermark(); at.After(before) {
					t.Errorf("the watermark %s has passed the build, after %s", at, before)
				}
				a.hasIndexes("x+y?")
				r.target.hang(t, false)
				a.reaches(l.optime())
				a.drain()
				a.hasIndexes("x+y")
				if n := len(r.target.documents(t, "db.a")); n != 52 {
					t.Errorf("db.a has %d documents, want 52", n)
				}
				if st := a.link.State(); crashes == 0 && len(st.KeptBack) > 0 {
					t.Error(st.KeptBack)
				}
			})
		}
	}
}

// A collection is kept back after a restart too if its build ends at once then: what the
// lanes had applied before says nothing about it.
func TestBuildEndsAfterCrash(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	a := r.live(t, nil)
	l.alone(buildOp("commitIndexBuild", 1, "x+y"))
	l.inserts(100)
	a.send(l, start)
	a.awaitDocuments("db.b", 100)
	a.crash()
	r.target.hang(t, false)
	a = r.live(t, func(c *Config) { c.BuildWait = time.Minute })
	a.send(l, start)
	a.drain()
	if n := len(r.target.documents(t, "db.a")); n != 101 {
		t.Errorf("db.a has %d documents, want 101", n)
	}
}

// An error ends the run while the target builds.
func TestBuildInterrupted(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	a := r.live(t, nil)
	l.alone(buildOp("commitIndexBuild", 1, "x+y"))
	l.inserts(1)
	l.add(setOp("db.b", "missing", 1))
	a.send(l, start)
	if _, diverged := errors.AsType[*DivergenceError](<-a.done); !diverged {
		t.Error("it has not ended with a divergence")
	}
	r.target.hang(t, false)
}

// The commit of another collection's build joins: the rest continues, and each collection
// has its own operations in order.
func TestBuildsJoin(t *testing.T) {
	for _, crash := range []bool{false, true} {
		r, l := hanging(t)
		r.target.run(t, "db", bson.D{{Key: "create", Value: "c"}})
		a := r.live(t, nil)
		l.alone(buildOp("commitIndexBuild", 1, "x+y"))
		l.inserts(10)
		for i := range 10 {
			l.add(setOp("db.b", i, 2))
		}
		l.alone(buildOn("b", "commitIndexBuild", 2, "x+y"))
		for i := range 10 {
			l.add(insertOp("db.c", doc(i, 0)))
			l.add(setOp("db.a", i, 1))
			l.add(setOp("db.b", i, 1))
		}
		a.send(l, start)
		a.awaitDocuments("db.c", 10)
		if crash {
			a.crash()
			a = r.live(t, nil)
			a.send(l, start)
		}
		a.awaitDocuments("db.b", 10)
		if at := a.watermark(); !at.IsNull() {
			t.Errorf("watermark %s", at)
		}
		r.target.hang(t, false)
		a.reaches(l.optime())
		a.drain()
		for _, ns := range []oplog.Namespace{"db.a", "db.b"} {
			changed := 0
			for _, d := range r.target.documents(t, ns) {
				if v, _ := d.Lookup("v").AsInt64OK(); v == 1 {
					changed++
				}
			}
			if names := indexNames(t, r.target, ns); changed != 10 || !slices.Contains(names, "x+y") {
				t.Errorf("%s: %d documents changed, indexes %v", ns, changed, names)
			}
		}
	}
}

// Once more is kept back than there is room for, everything waits for the build.
func TestBuildFillsBacklog(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	a := r.live(t, func(c *Config) { c.KeptBytes = 10 * ownOverhead })
	l.alone(buildOp("commitIndexBuild", 1, "x+y"))
	l.inserts(100)
	l.alone(commandOp("db", bson.D{{Key: "create", Value: "last"}}))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for _, b := range l.batches() {
			a.in <- b
		}
	}()
	a.awaitDocuments("db.b", 8)
	r.target.hang(t, false)
	<-sent
	a.reaches(l.optime())
	a.drain()
	if n := len(r.target.documents(t, "db.a")); n != 101 {
		t.Errorf("db.a has %d documents, want 101", n)
	}
}

// Of batches that only the backlog still needs, the memory is released, and those of which
// nothing is left take none. The watermark waits for all of it.
func TestTrackerKept(t *testing.T) {
	t.Parallel()
	released := int64(0)
	tr := newTracker(checkpoint.Progress{Applied: start, FetchFrom: start}, nil, func(n int64) { released += n })
	var kept []share
	for i := range 1000 {
		p := tr.open(&batch.Batch{Last: optimeOf(i), FetchFrom: optimeOf(i), Bytes: 10})
		if i%500 == 0 {
			tr.keep(p, 2)
			kept = append(kept, share{p: p, n: 2})
		}
		must.Succeed(t, tr.close(p))
	}
	if released != 10_000 || len(tr.queue) != 2 || tr.progress.Applied != start {
		t.Errorf("released %d bytes, %d batches, applied %s", released, len(tr.queue), tr.progress.Applied)
	}
	must.Succeed(t, tr.settle(kept[:1]))
	if p := tr.progress; p.Applied != optimeOf(499) || p.FetchFrom != optimeOf(499) || p.Ops != 2 {
		t.Errorf("progress %+v", p)
	}
	must.Succeed(t, tr.settle(kept[1:]))
	if p := tr.progress; p.Applied != optimeOf(999) || p.FetchFrom != optimeOf(999) || len(tr.queue) != 0 || released != 10_000 {
		t.Errorf("progress %+v, %d batches, released %d bytes", p, len(tr.queue), released)
	}
}

// A backlog is written once all lanes have applied the operations before it: the barrier's
// position says so.
func TestBacklogWaitsForLanes(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	a := r.live(t, nil)
	l.alone(buildOp("commitIndexBuild", 1, "x+y"))
	a.send(l, start)
	a.awaitListed("x+y?")
	reached, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var early atomic.Bool
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		switch coll, _ := cmd.Body.Lookup("insert").StringValueOK(); coll {
		case "b":
			once.Do(func() { close(reached) })
			<-release
		case "a":
			select {
			case <-release:
			default:
				early.Store(true)
			}
		}
		return nil, false
	})
	after := l.optime()
	l.add(insertOp("db.b", doc(0, 0)))
	l.add(insertOp("db.a", doc(0, 0)))
	a.send(l, after)
	<-reached
	r.target.hang(t, false)
	a.awaitListed("x+y")
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end) && !early.Load(); {
		a.hasIndexes("x+y")
	}
	close(release)
	a.reaches(l.optime())
	a.drain()
	if early.Load() {
		t.Error("it was written before the lanes were idle")
	}
}
