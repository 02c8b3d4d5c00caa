package pipeline_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// TestCopyIsLeftToItsSpool: the source no longer has the oplog that a copy needs, only the
// spool has it. A process without that spool, or with one that is of no use, does not throw
// the copy away while its owner is away for some seconds; and says what it waits for.
func TestCopyIsLeftToItsSpool(t *testing.T) {
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
	// A folder that another spool has left there is not a spool of this copy.
	for _, dir := range must.Get(filepath.Glob(filepath.Join(w.spool(""), "*")))(t) {
		other := filepath.Join(w.spool("other"), filepath.Base(dir))
		must.Succeed(t, os.MkdirAll(other, 0o700))
		must.Succeed(t, os.WriteFile(filepath.Join(other, "lock"), nil, 0o600))
	}
	w.play("start b copy spool=other flush=20 workers=1 ops=20 lease=2s\nawait standby b")
	b := w.links["b"]
	if err := w.within(patience, "it to be left to the spool's owner", func() bool { return w.heard("the lease is free, and is left to") }); err != nil {
		t.Fatalf("%v: state %s, %q", err, b.p.Snapshot().State, b.p.Snapshot().Reason)
	}
	<-time.After(4 * time.Second) // longer than it is left if the source has the oplog
	if s := b.p.Snapshot(); s.State != monitor.Standby || s.Copy != nil {
		t.Errorf("state %s, %q, copy %+v", s.State, s.Reason, s.Copy)
	}
	f.thaw()
	a := w.links["a"]
	must.Succeed(t, w.untilOf(a, "its owner to go on", func() bool { return a.p.Snapshot().State == monitor.InitialSync }))
	if c := a.p.Snapshot().Copy; c == nil || c.Number != 1 {
		t.Errorf("the copy is %+v", c)
	}
}

// TestOplogIsLeftToItsSpool: the same, for a consistent link whose oplog was spooled. Its owner
// does not wait, and once it has applied that, any process can lead.
func TestOplogIsLeftToItsSpool(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves a hundred megabytes or more")
	o := newLeasedOverflowing(t, 48, 2*time.Second)
	at := o.newest()
	must.Succeed(t, o.target.Member(0).Kill())
	if err := o.within(patience, "the oplog to be spooled", func() bool { return o.links["a"].p.Snapshot().Spool != nil }); err != nil {
		t.Fatal(err)
	}
	o.followed("a", 75)
	o.lost(at)
	o.stored("a")
	o.links["a"].stop(failure.ErrStopped)
	o.awaitEnd(o.links["a"])
	must.Succeed(t, o.target.Member(0).Start())
	owner := o.cfg
	o.cfg.Copy.SpoolDir, o.cfg.Lease.SpoolWait = t.TempDir(), 15*time.Second
	must.Succeed(t, o.start("b"))
	b := o.links["b"]
	if err := o.within(patience, "it to be left to the spool's owner", func() bool { return o.heard("the lease is free, and is left to") }); err != nil {
		t.Fatalf("%v: state %s, %q", err, b.p.Snapshot().State, b.p.Snapshot().Reason)
	}
	o.cfg = owner
	must.Succeed(t, o.start("c"))
	o.same("c")
	o.links["c"].stop(failure.ErrStopped)
	o.awaitEnd(o.links["c"])
	o.awaitRunning("b")
}

// TestSpoolWaitBeginsAnew: the target is away for longer than the oplog is left to the spool's
// owner. That has its time again once the target is back: it could not have led before.
func TestSpoolWaitBeginsAnew(t *testing.T) {
	t.Parallel()
	const wait = 8 * time.Second
	o := newLeasedOverflowing(t, 48, 2*time.Second)
	at := o.newest()
	o.links["a"].stop(failure.ErrStopped)
	o.awaitEnd(o.links["a"])
	o.write(75)
	o.lost(at)
	f := &freezer{cut: true}
	t.Cleanup(f.thaw)
	o.asTarget = func(c pipeline.Cluster) pipeline.Cluster {
		f.Cluster = c
		return f
	}
	o.cfg.Copy.SpoolDir, o.cfg.Lease.SpoolWait = t.TempDir(), wait
	must.Succeed(t, o.start("b"))
	b := o.links["b"]
	must.Succeed(t, o.within(patience, "it to be left to the spool's owner", func() bool { return o.heard("the lease is free, and is left to") }))
	f.freeze()
	must.Succeed(t, o.within(patience, "the target to be away", func() bool { return o.heard("the lease cannot be read") }))
	<-time.After(wait)
	f.thaw()
	must.Succeed(t, o.within(patience, "the target to be back", func() bool { return o.heard("the lease can be read again") }))
	if err := o.within(wait/2, "it to lead", func() bool { return b.p.Snapshot().State != monitor.Standby }); err == nil {
		t.Errorf("state %s, %q", b.p.Snapshot().State, b.p.Snapshot().Reason)
	}
}

// awaitRunning waits until a link leads and has caught up.
func (o *overflowing) awaitRunning(name string) {
	o.t.Helper()
	l := o.links[name]
	if err := o.untilOf(l, "it to lead", func() bool { return l.p.Snapshot().State == monitor.Steady }); err != nil {
		o.t.Error(err, l.p.Snapshot().State, l.p.Snapshot().Reason)
	}
}
