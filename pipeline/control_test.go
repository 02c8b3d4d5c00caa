package pipeline_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/request"
)

// store returns the requests of the link.
func (w *world) store() *request.Store {
	w.t.Helper()
	return request.New(must.Get(w.metadata())(w.t))
}

// ask makes a request, and does not wait for its outcome.
func (w *world) ask(kind request.Kind, args string) request.Record {
	w.t.Helper()
	return must.Get(w.store().Ask(w.t.Context(), request.Ask{Kind: kind, By: "test", Why: "a test", Args: json.RawMessage(args)}))(w.t)
}

// answered waits until a request is closed, and returns its outcome.
func (w *world) answered(asked request.Record, l *link) request.Record {
	w.t.Helper()
	var now request.Record
	must.Succeed(w.t, w.untilOf(l, "an answer to "+string(asked.Kind), func() bool {
		got, err := w.store().Get(w.t.Context(), asked.ID)
		if err == nil {
			now = got
		}
		return err == nil && !now.Open()
	}))
	return now
}

// doneAs makes a request and waits until it is done.
func (w *world) doneAs(l *link, kind request.Kind, args string) string {
	w.t.Helper()
	got := w.answered(w.ask(kind, args), l)
	if got.State != request.Done {
		w.t.Fatalf("%s %s: %s: %s", kind, args, got.State, got.Outcome)
	}
	return got.Outcome
}

// isStill checks that a link has read the source's newest entry and applied nothing since an
// earlier snapshot.
func (w *world) isStill(l *link, was monitor.Snapshot, ns string, docs int64) {
	w.t.Helper()
	newest := w.newest()
	if err := w.untilOf(l, "the newest entry to be read", func() bool { return !l.p.Snapshot().Fetched.Before(newest) }); err != nil {
		w.fail("control", "while it is paused", err)
	}
	w.stands(l, was, ns, docs)
}

// stands checks that nothing was applied since was.
func (w *world) stands(l *link, was monitor.Snapshot, ns string, docs int64) {
	w.t.Helper()
	now := l.p.Snapshot()
	if n := must.Get(w.target.count(w.t.Context(), ns))(w.t); n != docs || now.Log.Applied.After(was.Log.Applied) || now.Progress.Ops > was.Progress.Ops {
		w.t.Errorf("%d documents of %s, applied up to %s, %d operations: it is paused at %s, %d operations", n, ns, now.Log.Applied, now.Progress.Ops, was.Log.Applied, was.Progress.Ops)
	}
}

// paused is a link that was paused after 100 documents, of which the source has 200 more.
func paused(t *testing.T, settings string) (*world, monitor.Snapshot) {
	t.Helper()
	w := playOn(t, 1, `
		source insert shop.a 1..100
		start `+settings+`
		await running
		source insert shop.a 101..200
		await caught-up
	`)
	outcome := w.doneAs(w.links["a"], request.Pause, "")
	was := w.links["a"].p.Snapshot()
	if !strings.HasPrefix(outcome, "paused; the oplog is applied up to ") || was.Control.Paused == nil || was.Control.Paused.Why != "a test" {
		t.Errorf("%q, %+v", outcome, was.Control)
	}
	w.play("source insert shop.a 201..400")
	w.isStill(w.links["a"], was, "shop.a", 200)
	return w, was
}

// TestPause: a paused link applies nothing, reads on, and keeps its lease; after it is resumed
// everything is applied, in order and once.
func TestPause(t *testing.T) {
	t.Parallel()
	w, was := paused(t, "copy lease=2s")
	l := w.links["a"]
	renewals := l.p.Snapshot().Lease.Renewals
	must.Succeed(t, w.untilOf(l, "renewals", func() bool { return l.p.Snapshot().Lease.Renewals > renewals+3 }))
	if got := w.doneAs(l, request.Pause, ""); !strings.HasPrefix(got, "it was paused already, since ") {
		t.Error(got)
	}
	w.isStill(l, was, "shop.a", 200)
	if got := w.doneAs(l, request.Resume, ""); !strings.HasPrefix(got, "resumed after ") {
		t.Error(got)
	}
	w.play("await caught-up\nequal")
	if got := w.doneAs(l, request.Resume, ""); got != "it was not paused" {
		t.Error(got)
	}
	if s := l.p.Snapshot(); s.Control.Paused != nil || s.Term != was.Term {
		t.Errorf("term %d, it was %d: %+v", s.Term, was.Term, s.Control)
	}
	w.play("drain")
	must.Succeed(t, l.err)
}

// TestPauseTakeover: a process that takes a paused link over applies nothing either, and acts on
// requests made while no process led.
func TestPauseTakeover(t *testing.T) {
	t.Parallel()
	w, was := paused(t, "copy lease=2s")
	w.play("stop")
	asked := w.ask(request.Resume, "")
	w.ask(request.Pause, "")
	w.play("start b copy spool=other lease=2s\nsource insert shop.a 401..410")
	b := w.links["b"]
	if got := w.answered(asked, b); got.State != request.Done {
		t.Errorf("%+v", got)
	}
	// It resumed and paused again in one go, or has applied something in between.
	must.Succeed(t, w.untilOf(b, "the link to be paused", func() bool {
		c := b.p.Snapshot().Control
		return c != nil && c.Paused != nil && c.Paused.Request != was.Control.Paused.Request
	}))
	w.doneAs(b, request.Resume, "")
	must.Succeed(t, w.caughtUp(b))
	w.play("equal b\ndrain b")
}

// TestPauseRestart: a process that is started on a paused link applies nothing before it is
// resumed.
func TestPauseRestart(t *testing.T) {
	t.Parallel()
	w, was := paused(t, "copy")
	w.play("stop\nstart copy")
	l := w.links["a"]
	must.Succeed(t, w.untilOf(l, "what is set to be read", func() bool { c := l.p.Snapshot().Control; return c != nil && c.Known }))
	was.Progress.Ops = 0 // a process counts its own
	w.isStill(l, was, "shop.a", 200)
	w.doneAs(l, request.Resume, "")
	w.play("await caught-up\nequal\ndrain")
}

// TestDrainPaused: a run that is to end while its link is paused ends at once, applies nothing
// more, and says so.
func TestDrainPaused(t *testing.T) {
	t.Parallel()
	w, _ := paused(t, "copy")
	l := w.links["a"]
	w.play("drain")
	if !errors.Is(l.err, failure.ErrStopped) || !strings.Contains(l.err.Error(), "the link is paused") {
		t.Errorf("it ended with: %v", l.err)
	}
	if n := must.Get(w.target.count(t.Context(), "shop.a"))(t); n != 200 {
		t.Errorf("%d documents", n)
	}
	w.play("start copy")
	w.doneAs(w.links["a"], request.Resume, "")
	w.play("await caught-up\nequal\ndrain")
}

// TestPauseCopy: a pause holds a copy as well, and the replay after it.
func TestPauseCopy(t *testing.T) {
	t.Parallel()
	w := playOn(t, 1, `
		source insert shop.a 1..400
		source insert shop.b 1..400
		start copy ops=100 workers=2 flush=10 range=4000
		await copied 50
	`)
	l := w.links["a"]
	w.doneAs(l, request.Pause, "")
	n := must.Get(w.target.count(t.Context(), "shop.a"))(t) + must.Get(w.target.count(t.Context(), "shop.b"))(t)
	if n == 800 {
		t.Fatal("everything is copied: the pause came too late for this test")
	}
	w.play("source update shop.a 1..50")
	w.doneAs(l, request.Throttle, `{"copyOpsPerSecond": null, "copyBytesPerSecond": null}`)
	if now := must.Get(w.target.count(t.Context(), "shop.a"))(t) + must.Get(w.target.count(t.Context(), "shop.b"))(t); now != n {
		t.Errorf("%d documents, while it is paused at %d", now, n)
	}
	w.doneAs(l, request.Resume, "")
	w.play("await told consistent\nawait caught-up\nequal\ndrain")
}

// TestPauseOutlastsOplog: the oplog goes to disk during a pause, so that it can last longer than
// the source's oplog does.
func TestPauseOutlastsOplog(t *testing.T) {
	t.Parallel()
	race.Skip(t, "it moves a hundred megabytes or more")
	o := newOverflowing(t, 24)
	l := o.links["a"]
	o.doneAs(l, request.Pause, "")
	first := o.newest()
	o.followed("a", 40)
	must.Succeed(t, o.untilOf(l, "a spool", func() bool { return l.p.Snapshot().Spool != nil }))
	o.followed("a", 40)
	o.stored("a")
	o.lost(first)
	if s := l.p.Snapshot(); s.Control.Paused == nil || !strings.Contains(s.Reason, "spooled to disk: the link is paused, and ") {
		t.Errorf("%s, %+v", s.Reason, s.Control)
	}
	o.doneAs(l, request.Resume, "")
	o.same("a")
}

// TestThrottle: a throttle of applying is stored, survives an attempt, and slows applying down
// without changing its result.
func TestThrottle(t *testing.T) {
	t.Parallel()
	w := playOn(t, 3, `
		source insert shop.a 1..10
		start copy
		await running
		await caught-up
	`)
	l := w.links["a"]
	if got := w.answered(w.ask(request.Throttle, `{"adaptive": true}`), l); got.State != request.Refused {
		t.Errorf("%+v", got)
	}
	if got := w.doneAs(l, request.Throttle, `{"applyOpsPerSecond": 60, "applyBytesPerSecond": 1000000, "adaptive": true}`); !strings.Contains(got, "at most 60 operations") {
		t.Error(got)
	}
	w.play("source insert shop.a 11..300\nsource txn shop.b 1..50\nsource update shop.a 1..40\nsource delete shop.a 41..60")
	must.Succeed(t, w.untilOf(l, "the applier to wait", func() bool { return l.p.Snapshot().Applier.Throttled }))
	w.play("target stepdown")
	must.Succeed(t, w.untilOf(l, "the applier to wait in another attempt", func() bool { return l.p.Snapshot().Applier.Throttled }))
	if now := l.p.Snapshot().Control; now.Throttle.OpsPerSecond != 60 || !now.Throttle.Adaptive {
		t.Errorf("%+v", now.Throttle)
	}
	// Whoever asks is told that the target has no primary, and asks again.
	must.Succeed(t, w.untilOf(l, "the target to have a primary again", func() bool {
		_, err := w.store().List(t.Context())
		return err == nil
	}))
	if got := w.doneAs(l, request.Throttle, `{"applyOpsPerSecond": null, "applyBytesPerSecond": null}`); got != "applies without a limit" {
		t.Error(got)
	}
	w.play("await caught-up\nequal\ndrain")
}

// TestResyncAsked: a request to copy collections again is followed to its end, and paused with
// the link.
func TestResyncAsked(t *testing.T) {
	t.Parallel()
	w := playOn(t, 1, `
		source insert shop.a 1..300
		source insert shop.b 1..30
		start copy
		await told consistent
		await caught-up
		target delete shop.a 1..100
	`)
	l := w.links["a"]
	w.doneAs(l, request.Pause, "")
	asked := w.ask(request.Again, `{"namespaces": ["shop.a", "shop.b"]}`)
	must.Succeed(t, w.untilOf(l, "the request to be worked on", func() bool {
		now := must.Get(w.store().Get(t.Context(), asked.ID))(t)
		return now.State == request.Working
	}))
	w.doneAs(l, request.Resume, "")
	if got := w.answered(asked, l); got.State != request.Done || !strings.Contains(got.Outcome, "2 of 2") {
		t.Errorf("%+v", got)
	}
	w.play("await caught-up\nequal\ndrain")
}

// TestUnknownKind: a request of a newer release is refused, and does not end the link.
func TestUnknownKind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 1, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	w.play(`
		source insert shop.a 1..10
		start copy
		await running
		target run replicator {"insert": "control", "documents": [{"_id": "mirror/0", "kind": "teleport", "args": "{}", "state": "asked", "by": "x", "why": "", "at": {"$date": "2100-01-01T00:00:00Z"}, "outcome": ""}]}
	`)
	l := w.links["a"]
	w.doneAs(l, request.LogLevel, `{"level": "debug"}`) // it is read with the next request
	got := w.answered(request.Record{ID: "0"}, l)
	if got.State != request.Refused || !strings.Contains(got.Outcome, `no kind "teleport"`) {
		t.Errorf("%+v", got)
	}
	w.play("await caught-up\ndrain")
}
