package pipeline_test

import (
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// TestDrainedOutlastsOplog: between the end of an attempt that has read all of the spool, and
// the next one, which reads the source, the source deletes what that one needs. It is still on
// disk.
func TestDrainedOutlastsOplog(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves a hundred megabytes or more")
	o := newOverflowing(t, 72)
	o.hang()
	o.write(60)
	o.stored("a")
	held := func() { must.Succeed(t, o.await([]string{"held"})) }
	o.hold("lease acquired")
	o.goOn()
	held() // before it reads the spool
	o.hold("lease acquired")
	held() // before it reads the source
	at := o.newest()
	o.followed("a", 100)
	o.lost(at)
	o.stored("a")
	o.release()
	if err := o.untilOf(o.links["a"], "the spool to be used again", func() bool { return o.told("the source no longer has the entries that are still on disk") }); err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, o.caughtUp(o.links["a"]))
	o.write(1)
	must.Succeed(t, o.caughtUp(o.links["a"]))
	if report, err := o.equal(o.links["a"]); err != nil || report != "equal" {
		t.Error(report, err)
	}
}

// TestOverflowToldToEnd: a link that is told to end while much is on disk ends after the entries in
// memory, also if an attempt of this process has failed.
func TestOverflowToldToEnd(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves a hundred megabytes or more")
	o := newOverflowing(t, 512)
	l := o.links["a"]
	l.stop(failure.ErrStopped)
	o.awaitEnd(l)
	o.cfg.FlushDocs = 1
	must.Succeed(t, o.start("b"))
	l = o.links["b"]
	o.write(1) // so that it reads
	must.Succeed(t, o.caughtUp(l))
	must.Succeed(t, o.target.Member(0).Kill())
	o.write(100)
	o.stored("b")
	before := l.p.Snapshot()
	must.Succeed(t, o.untilOf(l, "an attempt to fail while the oplog is spooled", func() bool {
		s := l.p.Snapshot()
		return s.LastErrorAt.After(before.LastErrorAt) && s.Spool != nil
	}))
	must.Succeed(t, o.target.Member(0).Start())
	o.failing("alwaysOn", bson.D{
		{Key: "failCommands", Value: bson.A{"commitTransaction"}},
		{Key: "blockConnection", Value: true},
		{Key: "blockTimeMS", Value: int32(150)},
	})
	must.Succeed(t, o.untilOf(l, "the spool to be read", func() bool { return l.p.Snapshot().Log.Ops > before.Log.Ops+3 }))
	// While it reads the spool, an attempt fails.
	must.Succeed(t, o.target.Member(0).Kill())
	must.Succeed(t, o.target.Member(0).Start())
	ops := l.p.Snapshot().Log.Ops
	must.Succeed(t, o.untilOf(l, "the spool to be read again", func() bool { return l.p.Snapshot().Log.Ops > ops+3 }))
	attempts := l.p.Snapshot().Attempts
	l.drain(nil)
	o.awaitEnd(l)
	if !errors.Is(l.err, failure.ErrStopped) {
		t.Errorf("all of the spool was applied first: it ended with %v", l.err)
	}
	if n := l.p.Snapshot().Attempts; n != attempts {
		t.Errorf("it began %d more attempts", n-attempts)
	}
}

// TestSpoolEndsBeforeOplog: a link was down for longer than its source's oplog lasts, and its
// spool ends before that begins. It ends, and says that everything must be copied again.
func TestSpoolEndsBeforeOplog(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves a hundred megabytes or more")
	o := newOverflowing(t, 72)
	o.hang()
	o.write(60)
	o.stored("a")
	o.links["a"].stop(failure.ErrStopped)
	o.awaitEnd(o.links["a"])
	at := o.newest()
	o.write(110)
	o.lost(at)
	o.goOn()
	must.Succeed(t, o.start("b"))
	b := o.links["b"]
	select {
	case <-b.done:
		if code := failure.Classify(b.err).Code; code != failure.ExitResync {
			t.Errorf("it ended with %v, code %d", b.err, code)
		}
	case <-time.After(patience):
		s := b.p.Snapshot()
		t.Fatalf("after %s: state %s, %q, %d attempts, applied %s, last error %s", patience, s.State, s.Reason, s.Attempts, s.Log.Applied, s.LastError)
	}
}
