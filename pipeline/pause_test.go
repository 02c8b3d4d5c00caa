package pipeline_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/status"
	"github.com/oplogrep/replicator/syncsource"
)

// reaches waits until a request is in a state.
func (w *world) reaches(l *link, asked request.Record, state string) {
	w.t.Helper()
	must.Succeed(w.t, w.untilOf(l, "a request to be "+state, func() bool {
		now, err := w.store().Get(w.t.Context(), asked.ID)
		return err == nil && now.State == state
	}))
}

// TestPauseBarrier: a pause waits for a command that has begun on the target, and is not said to be
// complete before that; what the source does after it, commands as well, waits until the link
// is resumed.
func TestPauseBarrier(t *testing.T) {
	t.Parallel()
	w := playOn(t, 1, `
		source insert shop.a 1..100
		start copy
		await caught-up
		target failcommand primary {"mode": "alwaysOn", "data": {"failCommands": ["create"], "errorCode": 24}}
		source run shop {"create": "late"}
		source insert shop.a 101..200
	`)
	l := w.links["a"]
	must.Succeed(t, w.untilOf(l, "the command to be announced", func() bool {
		st, found, err := must.Get(w.metadata())(t).Load(t.Context())
		return err == nil && found && st.Announced.OpTime.After(st.Barrier.OpTime)
	}))
	asked := w.ask(request.Pause, "")
	w.reaches(l, asked, request.Working)
	w.play(`target failcommand primary {"mode": "off"}`)
	if got := w.answered(asked, l); got.State != request.Done {
		t.Errorf("%+v", got)
	}
	was := l.p.Snapshot()
	docs := must.Get(w.target.count(t.Context(), "shop.a"))(t)
	w.play(`
		source run shop {"createIndexes": "a", "indexes": [{"key": {"x": 1}, "name": "x_1"}]}
		source insert shop.a 201..210
		source run admin {"renameCollection": "shop.late", "to": "shop.later"}
		source run shop {"drop": "later"}
		source run shop {"create": "last"}
	`)
	w.isStill(l, was, "shop.a", docs)
	w.doneAs(l, request.Resume, "")
	w.play("await caught-up\nequal\ndrain")
}

// TestPauseBuild: a link is paused while the target builds an index of a collection that is kept
// back. Nothing is applied, also not after the build, until the link is resumed.
func TestPauseBuild(t *testing.T) {
	t.Parallel()
	b := newBuilding(t, nil)
	l := b.links["a"]
	b.play("source insert shop.a 51..60")
	asked := b.ask(request.Pause, "")
	must.Succeed(t, b.untilOf(l, "the link to be held", func() bool { return l.p.Snapshot().Control.Paused != nil }))
	b.play("source insert shop.b 51..60\ntarget failpoint hangAfterStartingIndexBuild off")
	if got := b.answered(asked, l); got.State != request.Done {
		t.Errorf("%+v", got)
	}
	was := l.p.Snapshot()
	of := must.Get(b.target.count(t.Context(), "shop.a"))(t)
	b.play("source insert shop.a 61..70")
	b.isStill(l, was, "shop.b", b.b)
	b.doneAs(l, request.LogLevel, `{"level": "default"}`) // some seconds later
	b.isStill(l, was, "shop.b", b.b)
	if n := must.Get(b.target.count(t.Context(), "shop.a"))(t); n != of {
		t.Errorf("%d documents of the collection that was kept back, it is paused at %d", n, of)
	}
	b.doneAs(l, request.Resume, "")
	b.play("await caught-up a\nequal a\ndrain a")
}

// TestPausePart: the part that copies a collection again stands still with its link, and goes on
// with it.
func TestPausePart(t *testing.T) {
	t.Parallel()
	w := playOn(t, 1, `
		source insert shop.a 1..400
		start copy ops=100 workers=1 flush=10 range=4000
		await told consistent
		await caught-up
		target delete shop.a 1..100
		resync shop.a
		await resync copying shop.a
	`)
	l := w.links["a"]
	must.Succeed(t, w.untilOf(l, "the part to copy", func() bool { // 300 documents were left, and are dropped
		n, err := w.target.count(t.Context(), "shop.a")
		return err == nil && n > 0 && n < 250
	}))
	w.doneAs(l, request.Pause, "")
	was := l.p.Snapshot()
	n := must.Get(w.target.count(t.Context(), "shop.a"))(t)
	w.play("source update shop.a 1..50")
	for range 3 { // each takes about a second
		w.doneAs(l, request.Throttle, `{"copyOpsPerSecond": null}`)
	}
	w.isStill(l, was, "shop.a", n)
	if n == 400 {
		t.Fatal("everything is copied: the pause came too late for this test")
	}
	w.doneAs(l, request.Resume, "")
	w.awaitRequest(l, "shop.a")
	w.play("await caught-up\nequal\ndrain")
}

// TestPauseMerge: a pause that comes when the part of a resync is about to be merged, or is being
// merged, becomes complete; nothing is applied until the link is resumed, and then the merge ends.
func TestPauseMerge(t *testing.T) {
	t.Parallel()
	w := playOn(t, 1, `
		source insert shop.a 1..100
		source insert shop.b 1..20
	`)
	merges := make(chan struct{})
	var once sync.Once
	var ends atomic.Int64
	w.observe = func(e event.Event) {
		// The first one leaves the collection out, the second one is for the merge. An attempt that ends
		// for another reason serves the merge as well: then the pause comes after it.
		_, merged := e.(resync.Ended)
		if merged || e.Message() == "the attempt ends in order, for a collection that is to be copied again, or has been" && ends.Add(1) == 2 {
			once.Do(func() { close(merges) })
		}
	}
	w.play("start copy\nawait told consistent\nawait caught-up\ntarget delete shop.a 1..50\nresync shop.a")
	l := w.links["a"]
	select {
	case <-merges:
	case <-l.done:
		t.Fatal(l.err)
	}
	w.doneAs(l, request.Pause, "")
	was := l.p.Snapshot()
	w.play("source insert shop.b 21..40\nsource insert shop.a 101..110")
	// An attempt that has begun to end for the merge reads nothing until it is resumed.
	w.stands(l, was, "shop.b", 20)
	w.doneAs(l, request.Resume, "")
	w.awaitRequest(l, "shop.a")
	w.play("await caught-up\nequal\ndrain")
}

// TestPauseFailover: the target elects another primary while the link is paused. It stays paused,
// in whatever attempt, and can be resumed.
func TestPauseFailover(t *testing.T) {
	t.Parallel()
	w := playOn(t, 3, `
		source insert shop.a 1..100
		start copy lease=5s
		await told consistent
		await caught-up
	`)
	l := w.links["a"]
	w.doneAs(l, request.Pause, "")
	was := l.p.Snapshot()
	w.play("source insert shop.a 101..200\ntarget stepdown")
	must.Succeed(t, w.untilOf(l, "the target to have a primary that is read", func() bool {
		now, err := w.store().List(t.Context())
		c := l.p.Snapshot().Control
		return err == nil && len(now) == 1 && c != nil && c.Known && c.UnreadSince.IsZero()
	}))
	w.play("source insert shop.a 201..300")
	if got := w.doneAs(l, request.Pause, ""); !strings.HasPrefix(got, "it was paused already, since ") {
		t.Error(got)
	}
	w.isStill(l, was, "shop.a", 100)
	w.doneAs(l, request.Resume, "")
	w.play("await caught-up\nequal\ndrain")
}

// TestPauseWithoutSpool: a link without a spool is paused for longer than the source's oplog
// lasts. That is said before it is too late, and then; after the link is resumed it ends with an
// error that says what to do.
func TestPauseWithoutSpool(t *testing.T) {
	t.Parallel()
	o := newOverflowing(t, 24)
	o.play("drain a")
	o.cfg.Copy.SpoolDir = ""
	must.Succeed(t, o.start("b"))
	l := o.links["b"]
	must.Succeed(t, o.caughtUp(l))
	tracker := must.Get(status.New(status.Config{
		Link: "mirror", TargetPrimary: o.target.conn.Primary, Source: o.source.conn, Target: o.target.conn,
	}))(t)
	tracker.Follow(l.p.Snapshot)
	ctx, end := context.WithCancelCause(t.Context())
	var along sync.WaitGroup
	along.Go(func() { _ = tracker.Run(ctx) })
	defer along.Wait()
	defer end(nil)
	says := func(what string) (s status.Snapshot) {
		t.Helper()
		must.Succeed(t, o.untilOf(l, "the verdict "+what, func() bool {
			s = tracker.Snapshot()
			return s.Verdict.Name == what
		}))
		return s
	}
	o.doneAs(l, request.Pause, "")
	first := o.newest()
	// The oplog is written at a pace at which it does not last an hour.
	o.write(16)
	if s := says("paused-short"); s.Control.Paused.MayLastSeconds == nil || !strings.Contains(s.Verdict.Next, "replicator resume") {
		t.Errorf("%+v, %+v", s.Verdict, s.Control.Paused)
	}
	o.write(80) // more than the memory has room for
	o.lost(first)
	if s := says("oplog-gone"); s.Verdict.Level != status.Broken || !strings.Contains(strings.Join(s.Verdict.Also, " "), "Paused for ") {
		t.Errorf("%+v", s.Verdict)
	}
	o.doneAs(l, request.Resume, "")
	must.Succeed(t, o.untilOf(l, "the link to end", func() bool { return l.p.Snapshot().State == monitor.Stale }))
	<-l.done
	if _, stale := errors.AsType[*syncsource.TooStaleError](l.err); !stale || failure.Classify(l.err).Action != failure.Resync || l.p.Snapshot().State != monitor.Stale {
		t.Errorf("%s: %v", l.p.Snapshot().State, l.err)
	}
}
