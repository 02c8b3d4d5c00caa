package pipeline_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// TestToldToEndWhileTargetIsAway: the target is away for longer than the lease. The state says
// so, and a signal to end does not claim that everything is applied.
func TestToldToEndWhileTargetIsAway(t *testing.T) {
	t.Parallel()
	alone := mongosim.NoMoods("the target is away as long as the test says")
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1, Moods: alone}, mongosim.Options{Members: 1, Seed: 2, Moods: alone})
	w.play("start a lease=2s\nawait running a\nsource insert shop.a 1..50\nawait caught-up a")
	must.Succeed(t, w.target.Member(0).Kill())
	w.play("source insert shop.a 51..100")
	if err := w.within(patience, "the loss of the lease", func() bool { return w.heard("the lease is lost") }); err != nil {
		t.Fatal(err)
	}
	l := w.links["a"]
	if s := l.p.Snapshot(); s.State == monitor.Steady || s.State == monitor.CatchingUp {
		t.Errorf("the target is away, the lease is lost, and the state is %s, %q", s.State, s.Reason)
	}
	l.drain(nil)
	w.awaitEnd(l)
	if s := l.p.Snapshot(); !errors.Is(l.err, failure.ErrStopped) {
		t.Errorf("50 documents are not applied; it ended with: %v, state %s, %q", l.err, s.State, s.Reason)
	}
}

// TestSpoolsUntilAnotherLeads: a leader is cut off from the target for longer than the lease. It
// goes on spooling the oplog until it sees that another process leads, and forgets it then.
func TestSpoolsUntilAnotherLeads(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	f := w.freezable("source insert shop.a 1..50\nstart a copy lease=2s\nawait told consistent\nawait caught-up a\nawait running a")
	a := w.links["a"]
	must.Succeed(t, w.untilOf(a, "it to leave the spool", func() bool { return a.p.Snapshot().Spool == nil }))
	f.cut = true
	f.freeze()
	w.play("start b copy spool=other lease=2s\nsource update shop.a 1..50\nawait caught-up b")
	if err := w.within(patience, "the oplog to be spooled", func() bool { return a.p.Snapshot().Spool != nil }); err != nil {
		t.Fatalf("%v: %+v", err, a.p.Snapshot().Reason)
	}
	f.thaw()
	w.play("await standby a")
	for _, dir := range must.Get(filepath.Glob(filepath.Join(w.spool(""), "*")))(t) {
		must.Succeed(t, spool.Clear(dir)) // not while it is open
	}
	w.play(`
		source update shop.a 1..20
		await caught-up b
		drain b
		await running a
		source update shop.a 1..50
		await caught-up a
		equal a
		drain a
	`)
}

// stalling is a target whose reply to the named command takes so long that the lease ends:
// renewals are lost meanwhile, as in a failover.
type stalling struct {
	pipeline.Cluster
	name string
	took time.Duration

	mu      sync.Mutex
	stalled bool
}

// Call implements mongo.Caller.
func (s *stalling) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	first, err := cmd.Body.IndexErr(0)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	stalls := first.Key() == s.name
	if stalls {
		s.stalled, s.name = true, ""
	}
	_, inSession := cmd.Body.LookupErr("lsid")
	lost := s.stalled && first.Key() == "update" && inSession != nil
	s.mu.Unlock()
	switch {
	case stalls:
		reply, err := s.Cluster.Call(context.WithoutCancel(ctx), cmd)
		time.Sleep(s.took)
		s.mu.Lock()
		s.stalled = false
		s.mu.Unlock()
		return reply, err
	case lost:
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Cluster.Call(ctx, cmd)
}

// TestSlowCommandOutlastsLease: a command on the target takes longer than the lease, which
// cannot be renewed meanwhile. Nobody else is there, so the command was not late: nothing has
// to be copied again.
func TestSlowCommandOutlastsLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	s := &stalling{name: "dropIndexes", took: 4 * time.Second}
	w.asTarget = func(c pipeline.Cluster) pipeline.Cluster {
		s.Cluster = c
		return s
	}
	w.play(`
		source insert shop.a 1..50
		source run shop {"createIndexes": "a", "indexes": [{"key": {"x": 1}, "name": "x_1"}]}
		start a copy lease=2s
		await told consistent
		await caught-up a
		source run shop {"dropIndexes": "a", "index": "x_1"}
		source insert shop.a 51..60
		await caught-up a
		drain a
	`)
	for _, text := range []string{"a late command may have changed a collection", "a collection is copied again"} {
		if w.heard(text) {
			t.Errorf("no other process had the lease, and: %s", text)
		}
	}
}

// TestStandbyCannotLook: a process that stands by and cannot reach the target any more says so,
// and when it can again.
func TestStandbyCannotLook(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	w.play("start a lease=10s\nawait running a")
	f := w.freezable("start b lease=2s\nawait standby b")
	b := w.links["b"]
	f.cut = true
	f.freeze()
	must.Succeed(t, w.untilOf(b, "it to say so", func() bool {
		s := b.p.Snapshot()
		return s.State == monitor.Standby && !s.BlindSince.IsZero() && strings.Contains(s.Reason, "the lease cannot be read since") && s.LastError != ""
	}))
	f.thaw()
	must.Succeed(t, w.untilOf(b, "it to look again", func() bool { return b.p.Snapshot().BlindSince.IsZero() }))
	for _, text := range []string{"the lease cannot be read", "the lease can be read again"} {
		if !w.heard(text) {
			t.Errorf("the log does not say: %s", text)
		}
	}
}
