package pipeline_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// cutFromSource makes the source's members close the connections of the application "cut" with each of
// its commands, until mode is off.
func (w *world) cutFromSource(mode string) {
	w.t.Helper()
	cmd := bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: mode}, {Key: "data", Value: bson.D{
		{Key: "failCommands", Value: bson.A{"hello", "ping", "find", "getMore", "aggregate", "listCollections", "replSetGetStatus", "replSetGetRBID"}},
		{Key: "appName", Value: "cut"},
		{Key: "closeConnection", Value: true},
	}}}
	for i := range w.source.Members() {
		must.Get(w.source.on(w.t.Context(), i, "admin", cmd))(w.t)
	}
}

// TestLeaderCutOffFromSource: the leader can read from no member of the source any more. One that
// stands by and can takes the link over; the first one stands by, and the second one keeps the
// lease when the first one can read again.
func TestLeaderCutOffFromSource(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	w.connectSource = func() *driver.Set { return connect(t, w.source.Set, "cut") }
	w.play("start a lease=10s cutoff=3s\nawait running a\nsource insert shop.a 1..50\nawait caught-up a")
	w.connectSource = nil
	w.play("start b lease=10s cutoff=3s\nawait standby b")
	b := w.links["b"]
	w.cutFromSource("alwaysOn")
	w.play("source update shop.a 1..50\nawait caught-up b\nawait standby a\nequal b")
	for _, text := range []string{"nothing can be read from the source: the lease is offered", "taking the link over: the process that has its lease offers it"} {
		if !w.heard(text) {
			t.Errorf("the log does not say: %s", text)
		}
	}
	if s := b.p.Snapshot(); s.Lease.Takeovers != 1 {
		t.Errorf("b: %+v", s.Lease)
	}
	w.cutFromSource("off")
	w.play("source update shop.a 1..20\nawait caught-up b\nequal b\ndrain b\nawait running a\nsource update shop.a 1..20\nawait caught-up a\nequal a\ndrain a")
}

// TestCutOffAlone: nobody takes the lease that a leader offers. It goes on when it can read the
// source again, in the same term, and takes the offer back.
func TestCutOffAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	w.connectSource = func() *driver.Set { return connect(t, w.source.Set, "cut") }
	w.play("start a lease=10s cutoff=2s\nawait running a\nsource insert shop.a 1..50\nawait caught-up a\nstart b lease=10s cutoff=2s\nawait standby b")
	a, b := w.links["a"], w.links["b"]
	w.cutFromSource("alwaysOn")
	offered := func() bool { l := b.p.Snapshot().Leader; return l != nil && l.Offers }
	must.Succeed(t, w.untilOf(b, "an offer", offered))
	if s := b.p.Snapshot(); !strings.Contains(s.Reason, "leaves the lease to a process that can") {
		t.Errorf("b cannot read it either, and its reason is %q", s.Reason)
	}
	w.cutFromSource("off")
	must.Succeed(t, w.untilOf(b, "the end of the offer", func() bool { return !offered() }))
	w.play("source update shop.a 1..50\nawait caught-up a\nequal a")
	if s := b.p.Snapshot(); s.State != monitor.Standby || s.Lease.Takeovers != 0 || a.p.Snapshot().Lease.Left == 0 {
		t.Errorf("b: state %s, %+v; a: %+v", s.State, s.Lease, a.p.Snapshot().Lease)
	}
	w.play("drain a")
}

// unread is a target in which the documents of links cannot be read while it is away.
type unread struct {
	pipeline.Cluster
	mongo.Pipeliner
	away atomic.Bool
	met  atomic.Int64
}

// Call implements mongo.Caller.
func (u *unread) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if coll, _ := cmd.Body.Lookup("find").StringValueOK(); coll == metadata.Links && u.away.Load() {
		u.met.Add(1)
		return nil, &mongo.LostError{Host: "target", Err: errors.New("no answer")}
	}
	return u.Cluster.Call(ctx, cmd)
}

// TestOffersWithoutTarget: a leader that cannot read the source, and offers its lease, goes on to offer it where the target does not
// answer whether it could read on, and does not say that the source can be read again.
func TestOffersWithoutTarget(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	w.connectSource = func() *driver.Set { return connect(t, w.source.Set, "cut") }
	to := &unread{}
	w.asTarget = func(c pipeline.Cluster) pipeline.Cluster {
		to.Cluster, to.Pipeliner = c, c.(mongo.Pipeliner)
		return to
	}
	w.play("start a lease=10s cutoff=2s\nawait running a\nsource insert shop.a 1..50\nawait caught-up a")
	a := w.links["a"]
	w.cutFromSource("alwaysOn")
	must.Succeed(t, w.untilOf(a, "an offer", func() bool { return w.heard("nothing can be read from the source: the lease is offered") }))
	to.away.Store(true)
	met := to.met.Load()
	must.Succeed(t, w.untilOf(a, "looks at the lease", func() bool { return to.met.Load() >= met+3 }))
	if w.heard("the source can be read again") {
		t.Error("it says that the source can be read again")
	}
	to.away.Store(false)
	w.cutFromSource("off")
	must.Succeed(t, w.untilOf(a, "the end of the offer", func() bool { return w.heard("the source can be read again") }))
	w.play("source update shop.a 1..50\nawait caught-up a\nequal a\ndrain a")
}

// TestLedWithoutSpool: a process leads although only the spool of another one has the oplog that
// the link needs. It leaves the lease to that one, and stands by: the link goes on.
func TestLedWithoutSpool(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves a hundred megabytes or more")
	o := newLeasedOverflowing(t, 48, 2*time.Second)
	at := o.newest()
	must.Succeed(t, o.target.Member(0).Kill())
	must.Succeed(t, o.until("the oplog to be spooled", func() bool { return o.links["a"].p.Snapshot().Spool != nil }))
	o.followed("a", 75)
	o.lost(at)
	o.stored("a")
	o.links["a"].stop(failure.ErrStopped)
	o.awaitEnd(o.links["a"])
	must.Succeed(t, o.target.Member(0).Start())
	owner := o.cfg
	o.cfg.Copy.SpoolDir, o.cfg.Lease.SpoolWait, o.cfg.Lease.OfferFor = t.TempDir(), time.Millisecond, 5*time.Minute
	must.Succeed(t, o.start("b"))
	must.Succeed(t, o.until("an offer", func() bool { return o.heard("no member of the source has the oplog: for 5m0s the lease is offered") }))
	o.cfg = owner
	must.Succeed(t, o.start("c"))
	o.same("c")
	b := o.links["b"]
	must.Succeed(t, o.untilOf(b, "it to stand by", func() bool { return b.p.Snapshot().State == monitor.Standby }))
	o.links["c"].stop(failure.ErrStopped)
	o.awaitEnd(o.links["c"])
	o.awaitRunning("b")
}

// TestCopyLedWithoutSpool: the same in a copy, which is not void.
func TestCopyLedWithoutSpool(t *testing.T) {
	t.Parallel()
	alone := mongosim.NoMoods("the time at which the source loses its oplog decides")
	w := newWorld(t, mongosim.Options{OplogBytes: 48 << 20, Moods: alone}, mongosim.Options{Moods: alone})
	o := &overflowing{world: w}
	f := w.freezable("source insert shop.a 1..600\nstart a copy flush=20 workers=1 ops=20 lease=2s\nawait copied 40")
	at := o.newest()
	o.followed("a", 75)
	w.awaitSpooled(w.links["a"])
	o.lost(at)
	f.freeze()
	w.play("start b copy spool=other flush=20 workers=1 ops=20 lease=2s spoolwait=1ms offer=5m")
	must.Succeed(t, w.until("an offer", func() bool { return w.heard("no member of the source has the oplog: for 5m0s the lease is offered") }))
	f.thaw()
	a, b := w.links["a"], w.links["b"]
	must.Succeed(t, w.until("its owner to take it", func() bool { return w.heard("taking the link over: the process that has its lease offers it") }))
	must.Succeed(t, w.untilOf(a, "its owner to go on", func() bool {
		s := a.p.Snapshot()
		return s.State == monitor.InitialSync && s.Copy != nil
	}))
	must.Succeed(t, w.untilOf(b, "it to stand by", func() bool { return b.p.Snapshot().State == monitor.Standby }))
	if c := a.p.Snapshot().Copy; c == nil || c.Number != 1 {
		t.Errorf("the copy is %+v", c)
	}
}
