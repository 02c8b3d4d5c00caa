package pipeline_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// tellsToEnd is a target that has a function called once, when a term is raised after it was armed.
type tellsToEnd struct {
	pipeline.Cluster
	armed atomic.Bool
	do    func()
}

// Call implements mongo.Caller.
func (s *tellsToEnd) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	first, err := cmd.Body.IndexErr(0)
	if err != nil {
		return nil, err
	}
	if _, sessionless := cmd.Body.LookupErr("lsid"); sessionless == nil && first.Key() == "update" && s.armed.CompareAndSwap(true, false) {
		s.do()
	}
	return s.Cluster.Call(ctx, cmd)
}

// TestDrainAfterLostLease: the lease is lost while the target is away, and entries that were read
// are not applied. A signal to end, sent while the lease is acquired again, does not end the run
// with nil before they are.
func TestDrainAfterLostLease(t *testing.T) {
	t.Parallel()
	alone := mongosim.NoMoods("the target is away as long as the test says")
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1, Moods: alone}, mongosim.Options{Members: 1, Seed: 2, Moods: alone})
	s := &tellsToEnd{}
	w.asTarget = func(c pipeline.Cluster) pipeline.Cluster {
		s.Cluster = c
		return s
	}
	w.play("start a lease=2s\nawait running a\nsource insert shop.a 1..50\nawait caught-up a")
	l := w.links["a"]
	must.Succeed(t, w.target.Member(0).Kill())
	w.play("source insert shop.a 51..100")
	if err := w.within(patience, "the loss of the lease", func() bool { return w.heard("the lease is lost") }); err != nil {
		t.Fatal(err)
	}
	s.do = func() { l.drain(nil) }
	s.armed.Store(true)
	must.Succeed(t, w.target.Member(0).Start())
	w.awaitEnd(l)
	report, err := w.equal(l)
	if l.err == nil && (err != nil || report != "equal") {
		t.Errorf("it ended with nil, %q, but: %s, %v", l.p.Snapshot().Reason, report, err)
	}
	if l.err != nil && !errors.Is(l.err, failure.ErrStopped) {
		t.Errorf("it ended with %v", l.err)
	}
}

// TestDrainLeavesBuild: a link is told to end during a build. The attempt that drains fails once
// (an election of the target), and the one that drains after it is left for a request to copy a
// collection again. The run does not report that it is drained: the backlog is not in the target.
func TestDrainLeavesBuild(t *testing.T) {
	t.Parallel()
	b := newBuilding(t, func(w *world) {
		if err := w.untilOf(w.links["a"], "the oplog to be read into memory", func() bool {
			s := w.links["a"].p.Snapshot()
			return s.Spool == nil && s.State == monitor.Steady
		}); err != nil {
			t.Fatal(err)
		}
	})
	b.play("source insert shop.a 51..60")
	b.writes()
	l := b.links["a"]
	n := l.p.Snapshot().Attempts
	l.drain(nil)
	must.Succeed(t, b.target.StepDown(t.Context()))
	must.Succeed(t, b.within(time.Minute, "the next attempt", func() bool { return l.p.Snapshot().Attempts > n }))
	b.play("resync shop.c")
	must.Succeed(t, b.within(30*time.Second, "the end, or an attempt that leaves shop.c out", func() bool {
		select {
		case <-l.done:
			return true
		default:
			return len(l.p.Snapshot().LeftOut) > 0
		}
	}))
	b.play("target failpoint hangAfterStartingIndexBuild off")
	b.awaitEnd(l)
	have, err := b.target.count(t.Context(), "shop.a")
	must.Succeed(t, err)
	if !errors.Is(l.err, failure.ErrStopped) {
		t.Errorf("it ended with %v, %q, and the target has %d of 60 documents", l.err, l.p.Snapshot().Reason, have)
	}
}
