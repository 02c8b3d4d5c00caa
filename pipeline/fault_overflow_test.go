package pipeline_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/memory"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/standby"
)

// overflowing is a link that follows a source with a small oplog, with a folder for the
// spool.
type overflowing struct {
	*world
	cfg   pipeline.Config
	spool string
	docs  int
}

// large limits how many of these tests run at once: each has some hundred MiB in its sets.
var large = make(chan struct{}, 2)

// newOverflowing starts the link with an oplog of so many MiB at the source.
func newOverflowing(t *testing.T, oplogMiB int64) *overflowing {
	t.Helper()
	return newLeasedOverflowing(t, oplogMiB, 0)
}

// newLeasedOverflowing is newOverflowing with a lease that ends.
func newLeasedOverflowing(t *testing.T, oplogMiB int64, ttl time.Duration) *overflowing {
	t.Helper()
	large <- struct{}{}
	t.Cleanup(func() { <-large }) // the last one: after what newWorld has started
	alone := mongosim.NoMoods("the time at which the source loses its oplog decides")
	w := newWorld(t, mongosim.Options{OplogBytes: oplogMiB << 20, Moods: alone}, mongosim.Options{Moods: alone})
	o := &overflowing{world: w, spool: t.TempDir()}
	o.cfg = pipeline.Config{Writers: 2, Memory: memory.MinLink, Await: 100 * time.Millisecond}
	if ttl > 0 {
		o.cfg.Lease = standby.Options{TTL: ttl, Every: ttl / 5}
	}
	o.cfg.Copy.SpoolDir = o.spool
	must.Succeed(t, o.start("a"))
	must.Succeed(t, w.caughtUp(w.links["a"]))
	must.Succeed(t, w.source.write(t.Context(), "db", bson.D{{Key: "create", Value: "c"}}))
	must.Succeed(t, w.caughtUp(w.links["a"]))
	return o
}

// start starts the link under another name of the test's.
func (o *overflowing) start(name string) error {
	err := o.world.start(name, o.cfg, scope.Config{})
	if err == nil {
		o.links[name].copies = false
	}
	return err
}

// write writes so many MiB to the source. A majority has each of them, so no member is left
// behind by an oplog that is this small.
func (o *overflowing) write(mib int) {
	o.t.Helper()
	filler := make([]byte, 1<<20)
	for range mib {
		o.docs++
		docs := bson.A{bson.D{{Key: "_id", Value: o.docs}, {Key: "x", Value: filler}}}
		must.Succeed(o.t, o.source.write(o.t.Context(), "db", bson.D{
			{Key: "insert", Value: "c"},
			{Key: "documents", Value: docs},
			{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}},
		}))
	}
}

// followed writes so many MiB to the source, at the pace at which a link reads them.
func (o *overflowing) followed(name string, mib int) {
	o.t.Helper()
	l := o.links[name]
	for ; mib > 0; mib -= 5 {
		o.write(min(mib, 5))
		last := o.newest()
		if err := o.untilOf(l, "the link to read", func() bool {
			s := l.p.Snapshot()
			return !s.Fetched.Before(last) || s.Spool != nil && !s.Spool.Last.Before(last) ||
				s.Copy != nil && s.Copy.Spool != nil && !s.Copy.Spool.Last.Before(last)
		}); err != nil {
			o.t.Fatal(err, l.p.Snapshot().Reason)
		}
	}
}

// hang makes the next command that creates a collection wait on the target, and has the
// source create one.
func (o *overflowing) hang() {
	o.t.Helper()
	o.failing("alwaysOn", bson.D{{Key: "failCommands", Value: bson.A{"create"}}, {Key: "errorCode", Value: int32(24)}})
	must.Succeed(o.t, o.source.write(o.t.Context(), "db", bson.D{{Key: "create", Value: fmt.Sprint("late", o.docs)}}))
}

// goOn ends that.
func (o *overflowing) goOn() {
	o.t.Helper()
	o.failing("off", bson.D{})
}

// stored waits until the newest entry of the source is in the spool of a link.
func (o *overflowing) stored(name string) {
	o.t.Helper()
	want, l := o.newest(), o.links[name]
	if err := o.untilOf(l, "the oplog to be spooled", func() bool {
		s := l.p.Snapshot().Spool
		return s != nil && !s.Last.Before(want)
	}); err != nil {
		o.t.Fatal(err, l.p.Snapshot().Reason)
	}
}

// lost checks that the source no longer has an entry.
func (o *overflowing) lost(entry oplog.OpTime) {
	o.t.Helper()
	oldest, err := replset.OldestEntry(o.t.Context(), o.source.conn)
	if err != nil || !oldest.OpTime.After(entry) {
		o.t.Fatalf("the source has the oplog from %s on, and should not have %s: %v", oldest.OpTime, entry, err)
	}
}

// leaves waits until a link has caught up and reads into memory again.
func (o *overflowing) leaves(name string) {
	o.t.Helper()
	l := o.links[name]
	must.Succeed(o.t, o.caughtUp(l))
	if err := o.untilOf(l, "the spool to be removed", func() bool {
		s := l.p.Snapshot()
		return s.Spool == nil && s.State == monitor.Steady
	}); err != nil {
		o.t.Fatal(err, l.p.Snapshot().Reason)
	}
}

// same checks that a link catches up, that the sets are equal, and that it leaves the disk.
func (o *overflowing) same(name string) {
	o.t.Helper()
	l := o.links[name]
	o.leaves(name)
	must.Succeed(o.t, o.untilOf(l, "no file to be on the disk", func() bool {
		files, err := filepath.Glob(filepath.Join(o.spool, "*", "*.spool"))
		return err == nil && len(files) == 0
	}))
	o.write(1)
	must.Succeed(o.t, o.caughtUp(l))
	if report, err := o.equal(l); err != nil || report != "equal" {
		o.t.Error(report, err)
	}
}

// TestBarrierOutlastsOplog: while a command waits on the target, the source deletes the
// part of its oplog that the link has not applied. The link has it on disk.
func TestBarrierOutlastsOplog(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves a hundred megabytes or more")
	o := newOverflowing(t, 72)
	o.hang()
	at := o.newest()
	o.write(60) // more than the buffer
	o.stored("a")
	o.followed("a", 100)
	o.lost(at)
	o.stored("a")
	o.goOn()
	o.same("a")
	if n := o.links["a"].p.Snapshot().LastError; n != "" {
		t.Errorf("an attempt failed: %s", n)
	}
}

// TestRestartOutlastsOplog: the same, but the process is killed while the command waits,
// and another one finds what the first one had spooled.
func TestRestartOutlastsOplog(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves a hundred megabytes or more")
	o := newOverflowing(t, 72)
	o.hang()
	at := o.newest()
	o.write(60)
	o.stored("a")
	o.followed("a", 100)
	o.lost(at)
	o.stored("a")
	o.links["a"].stop(failure.ErrStopped)
	o.awaitEnd(o.links["a"])
	o.write(1)
	must.Succeed(t, o.start("b"))
	o.stored("b")
	o.write(30)
	o.stored("b")
	o.goOn()
	o.same("b")
}

// TestAbsenceOutlastsOplog: the target is away for longer than the source's oplog lasts, so
// that no attempt begins to read it. The entries are read to disk within seconds nevertheless,
// although the lease has expired: reading needs none.
func TestAbsenceOutlastsOplog(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves a hundred megabytes or more")
	o := newLeasedOverflowing(t, 48, 2*time.Second)
	at := o.newest()
	must.Succeed(t, o.target.Member(0).Kill())
	o.write(5)
	if err := o.within(patience, "the oplog to be spooled", func() bool { return o.links["a"].p.Snapshot().Spool != nil }); err != nil {
		s := o.links["a"].p.Snapshot()
		t.Fatalf("%v: state %s, %q", err, s.State, s.Reason)
	}
	o.followed("a", 70)
	o.lost(at)
	o.stored("a")
	must.Succeed(t, o.target.Member(0).Start())
	o.same("a")
}

// TestOverflowFull: a spool that is full stops reading, not the link.
func TestOverflowFull(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves a hundred megabytes or more")
	o := newOverflowing(t, 512)
	o.links["a"].stop(failure.ErrStopped)
	o.awaitEnd(o.links["a"])
	o.cfg.Copy.SpoolBytes = 90 << 20
	must.Succeed(t, o.start("b"))
	o.hang()
	o.write(120)
	l := o.links["b"]
	var full monitor.Snapshot
	if err := o.untilOf(l, "a full spool", func() bool { full = l.p.Snapshot(); return full.Spool != nil && full.Spool.Full }); err != nil {
		t.Fatal(err, l.p.Snapshot().Reason)
	}
	if !strings.Contains(full.Reason, "the oplog is to be spooled to disk (") || !strings.Contains(full.Reason, "), and the spool is full: the limit of 90 MiB is reached") {
		t.Errorf("the spool is full, and the reason is: %s", full.Reason)
	}
	o.goOn()
	o.same("b")
}

// TestOverflowRefused: a link whose folder for the spool cannot be used, or has no room, says
// so, and goes on as without one. It does not end its attempt for that.
func TestOverflowRefused(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves a hundred megabytes or more")
	for name, refuse := range map[string]func(*overflowing){
		"a file":  func(o *overflowing) { must.Succeed(o.t, os.WriteFile(o.spool, nil, 0o600)) },
		"no room": func(o *overflowing) { o.cfg.Copy.SpoolFree = 1 << 60 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOverflowing(t, 512)
			o.links["a"].stop(failure.ErrStopped)
			o.awaitEnd(o.links["a"])
			must.Succeed(t, os.RemoveAll(o.spool))
			refuse(o)
			must.Succeed(t, o.start("b"))
			l := o.links["b"]
			o.hang()
			o.write(60)
			if err := o.untilOf(l, "a warning", func() bool { return o.told("the oplog should be spooled, but cannot be") }); err != nil {
				t.Fatal(err)
			}
			o.goOn()
			o.same("b")
			if s := l.p.Snapshot(); s.LastError != "" || s.Attempts != 1 {
				t.Errorf("%d attempts: %s", s.Attempts, s.LastError)
			}
		})
	}
}

// told reports whether a line of the log begins with a text.
func (w *world) told(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.events, func(e told) bool { return strings.HasPrefix(e.event.Message(), text) })
}

// TestBufferOutlastsOplog: when the oplog has to be spooled, the source no longer has the
// checkpoint's entry, as the oplog is smaller than the buffer. It is spooled from an entry that
// the source still has, before the one where reading ended, which may be within a transaction.
func TestBufferOutlastsOplog(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves a hundred megabytes or more")
	o := newOverflowing(t, 40) // the link reads some 15 of 45 before its buffer is full, and the source loses the first 5
	o.hang()
	at, l := o.newest(), o.links["a"]
	for hours := range 9 {
		o.source.Member(0).SkewClock(time.Duration(hours) * time.Hour)
		o.write(5)
	}
	o.lost(at)
	must.Succeed(t, o.untilOf(l, "a full buffer", func() bool { return l.p.Snapshot().Buffer.Waiting }))
	read := l.p.Snapshot().Fetched
	o.stored("a")
	if first := l.p.Snapshot().Spool.First; first.TS.T+3600 > read.TS.T {
		t.Errorf("it is spooled from %s on, reading ended at %s", first, read)
	}
	o.followed("a", 40)
	o.stored("a")
	o.goOn()
	o.same("a")
}

// TestOverflowKills: the process is killed at any point of all this, and its successors
// find on disk what the source does not have any more.
func TestOverflowKills(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves a hundred megabytes or more")
	seed := rand.Uint64()
	if n, err := strconv.ParseUint(os.Getenv("REPLICATOR_OVERFLOW_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	o := newOverflowing(t, 72)
	name := "a"
	for round := range 2 {
		o.hang()
		at := o.newest()
		o.followed(name, 50)
		o.stored(name)
		o.followed(name, 10+r.IntN(90))
		if r.IntN(2) == 0 {
			o.goOn() // killed while the buffer or the spool is applied, or after it
		}
		<-time.After(time.Duration(r.IntN(3000)) * time.Millisecond)
		t.Logf("round %d: from %s to %s, killed at %s", round, at, o.newest(), o.links[name].p.Snapshot().Log.Applied)
		o.links[name].stop(failure.ErrStopped)
		o.awaitEnd(o.links[name])
		name = string(rune('b' + round))
		must.Succeed(t, o.start(name))
		o.goOn()
		o.leaves(name)
	}
	o.same(name)
}
