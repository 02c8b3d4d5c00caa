package resync

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// resyncOnce copies a collection again: the part reaches partAt and the link linkAt before
// they are merged. It returns the first error of the process.
func (w *world) resyncOnce(p *process, linkAt, partAt uint32) error {
	if err := p.attempt(at(linkAt)); err != nil {
		return err
	}
	if len(p.LeftOut()) > 0 {
		r := p.awaitRunner()
		if r.link == nil {
			return errors.New("the part could not begin")
		}
		to := at(partAt)
		if from := r.link.State().Applied; from.After(to) {
			to = from
		}
		if to.After(r.link.State().Applied) {
			if err := r.advance(p.ctx, to); err != nil {
				return err
			}
		}
		r.show(Status{Consistent: true, Steady: true, Applied: to})
	}
	for {
		until, err := p.Merge(p.ctx, w.t.Context())
		if err != nil || until.IsNull() {
			return err
		}
		if err := p.attempt(until); err != nil {
			return err
		}
	}
}

// isDone fails the test unless the link has the collection again, and the metadata of its
// part are removed.
func (w *world) isDone(p *process) {
	w.t.Helper()
	if r := w.request("shop.a"); r.State != request.Done {
		w.t.Errorf("the request is %+v", r)
	}
	end := at(w.state().Applied.TS.T + 10)
	w.ok(p.attempt(end))
	for _, ns := range collections {
		if !w.data[ns].Equal(end) {
			w.t.Errorf("%s is at %s, the link at %s", ns, w.data[ns], end)
		}
	}
	parts, err := w.store(w.link, "").Parts(w.t.Context())
	w.ok(err)
	if out := w.state().LeftOut; len(parts) != 0 || len(out) != 0 {
		w.t.Errorf("left: %v, out: %v", parts, out)
	}
}

// TestMerge: the link and the part advance to one entry, whichever was before the other.
func TestMerge(t *testing.T) {
	t.Parallel()
	to := startTarget(t)
	for i, tt := range []struct{ link, part uint32 }{{120, 120}, {120, 140}, {140, 120}} {
		w := newWorld(t, to, fmt.Sprintf("merge-%d", i))
		w.ok(w.asks().Resync(t.Context(), "shop.a"))
		p := w.start()
		w.ok(w.resyncOnce(p, tt.link, tt.part))
		w.isDone(p)
		if w.begun["shop.a"] != 1 {
			t.Errorf("it was copied %d times", w.begun["shop.a"])
		}
	}
}

// TestDamaged: a request that cannot be read is reported once, with its name, and keeps the link neither from the oplog nor
// from the other requests.
func TestDamaged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startTarget(t), "damaged")
	w.ok(w.asks().Resync(t.Context(), "shop.a"))
	w.ok(w.asks().Resync(t.Context(), "shop.b"))
	w.ok(metadata.Run(t.Context(), w.to, metadata.Update("replicator", metadata.Requests, metadata.Statement{
		Filter: metadata.ByID("damaged/shop.b"),
		Change: func(dst []byte) []byte {
			return metadata.AppendDoc(dst, "$set", func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "asked", "x") })
		},
	}), 1))
	p := w.start()
	w.ok(w.resyncOnce(p, 120, 140))
	w.isDone(p)
	if w.begun["shop.a"] != 1 || w.begun["shop.b"] != 0 {
		t.Errorf("copied: %v", w.begun)
	}
	told := 0
	for _, e := range w.events {
		if line, is := e.(event.Line); is && strings.Contains(line.Message(), "is damaged") {
			told++
			if text := event.Attr(line, keyError).String(); !strings.Contains(text, "request \"damaged/shop.b\": field asked") || !strings.Contains(text, "replicator.requests") {
				t.Error(text)
			}
		}
	}
	if told != 1 {
		t.Errorf("reported %d times", told)
	}
}

// TestMergeKeptBack: while a collection of the link waits for an index build, its position
// does not advance, so that a part is merged afterwards. It is not copied again for that.
func TestMergeKeptBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startTarget(t), "kept")
	w.ok(w.asks().Resync(t.Context(), "shop.a"))
	p := w.start()
	keep := func(list ...checkpoint.KeptBack) {
		link, err := p.acquire(t.Context())
		w.ok(err)
		w.ok(link.KeepBack(t.Context(), list))
	}
	keep(checkpoint.KeptBack{NS: "shop.b", Since: checkpoint.Position{OpTime: at(110)}})
	for range 2 {
		w.ok(w.resyncOnce(p, 120, 140))
		if r := w.request("shop.a"); !r.Open() || len(w.state().LeftOut) == 0 || p.merging != nil {
			t.Fatalf("the request is %+v", r)
		}
		p.at.KeptBack = true // the position as it is known later
	}
	keep()
	p.at.KeptBack = false
	w.ok(w.resyncOnce(p, 150, 150))
	w.isDone(p)
	if w.begun["shop.a"] != 1 {
		t.Errorf("it was copied %d times", w.begun["shop.a"])
	}
}

// TestMergePaused: a part is not merged while the link is paused: neither of them may apply anything. It is merged later.
func TestMergePaused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startTarget(t), "paused")
	w.ok(w.asks().Resync(t.Context(), "shop.a"))
	p := w.start()
	p.at.Paused = true
	w.ok(w.resyncOnce(p, 120, 100))
	if r := w.request("shop.a"); r.State != request.Copying || len(w.state().LeftOut) == 0 || p.merging != nil {
		t.Fatalf("the request is %+v", r)
	}
	p.at.Paused = false
	w.ok(w.resyncOnce(p, 150, 150))
	w.isDone(p)
}

// TestMergePartKeptBack: a part that is to be merged finds an index build on its way to the
// link's position. The link goes on without it, and it is merged later.
func TestMergePartKeptBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startTarget(t), "part")
	w.ok(w.asks().Resync(t.Context(), "shop.a"))
	p := w.start()
	w.builds = true
	for range 2 {
		w.ok(w.resyncOnce(p, 140, 120))
		if r := w.request("shop.a"); !r.Open() || len(w.state().LeftOut) == 0 || p.merging != nil {
			t.Fatalf("the request is %+v", r)
		}
	}
	w.builds = false
	w.ok(w.resyncOnce(p, 150, 150))
	w.isDone(p)
	if w.begun["shop.a"] != 1 {
		t.Errorf("it was copied %d times", w.begun["shop.a"])
	}
}

// TestKilledAnywhere: a process loses the target at any of its commands, before or after
// the target has executed it, and ends. The next one completes the resync, and at all times
// exactly one link applies the oplog to a collection.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	to := startTarget(t)
	for _, sent := range []bool{false, true} {
		for _, from := range []struct{ link, part uint32 }{{120, 120}, {120, 140}, {140, 120}} {
			for n := 1; ; n++ {
				w := newWorld(t, to, fmt.Sprintf("killed-%t-%d-%d-%d", sent, from.link, from.part, n))
				w.ok(w.asks().Resync(t.Context(), "shop.a"))
				met := w.killAt(n, sent, from.link, from.part)
				last := w.start()
				for i := 0; w.request("shop.a").State != request.Done; i++ {
					if i > 5 {
						t.Fatalf("killed at %d: it does not end", n)
					}
					w.ok(w.resyncOnce(last, 150, 150))
				}
				w.isDone(last)
				last.kill()
				if t.Failed() {
					t.Fatalf("killed at command %d, sent %t", n, sent)
				}
				if !met {
					break
				}
			}
		}
	}
}

// killAt runs a process that loses the target at its nth command, and reports whether it
// reached that.
func (w *world) killAt(n int, sent bool, linkAt, partAt uint32) (met bool) {
	lost := &mongo.LostError{Host: "target", Err: errors.New("no answer")}
	var mu sync.Mutex
	w.to.Intercept(func(mongo.Command) (error, bool) {
		mu.Lock()
		defer mu.Unlock()
		switch n--; {
		case n > 0:
			return nil, false
		case n == 0:
			met = true
			return lost, sent
		}
		return lost, false // The process is dead.
	})
	defer w.to.Intercept(nil)
	p := w.start()
	_ = w.resyncOnce(p, linkAt, partAt)
	p.kill()
	return met
}

// TestFails: a collection that cannot be copied stays left out, and is not retried until
// it is requested again.
func TestFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startTarget(t), "fails")
	requests := w.asks()
	w.ok(requests.Resync(t.Context(), "shop.a"))
	w.fails["shop.a"] = errors.New("a document that is too large")
	p := w.start()
	w.ok(p.attempt(at(110)))
	<-p.ended
	p.ended <- struct{}{}
	if _, err := p.Merge(t.Context(), t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := w.request("shop.a"); r.State != request.Failed || r.Why != "a document that is too large" {
		t.Errorf("the request is %+v", r)
	}
	for range 2 {
		w.ok(p.attempt(at(120)))
		if len(p.LeftOut()) != 1 || len(p.running) != 0 {
			t.Errorf("out: %v, %d run", p.LeftOut(), len(p.running))
		}
		p.kill()
		p = w.start()
	}
	delete(w.fails, "shop.a")
	w.ok(requests.Resync(t.Context(), "shop.a"))
	w.ok(w.resyncOnce(p, 130, 130))
	w.isDone(p)
}

// TestRefused: a request that cannot be served says why.
func TestRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startTarget(t), "refused")
	for _, ns := range []oplog.Namespace{"shop.hidden", "shop.system.views", "shop.system.buckets.m"} {
		w.ok(w.asks().Resync(t.Context(), ns))
	}
	w.ok(w.start().attempt(at(110)))
	for ns, why := range map[oplog.Namespace]string{
		"shop.hidden": "the link does not mirror it", "shop.system.views": "the link does not mirror it",
		"shop.system.buckets.m": "it has the buckets of shop.m: request a resync of that collection",
	} {
		if r := w.request(ns); r.State != request.Failed || r.Why != why {
			t.Errorf("%s: %+v", ns, r)
		}
	}
}

// TestTakenOver: a process that has lost the lease does not give a collection back.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startTarget(t), "taken")
	w.ok(w.asks().Resync(t.Context(), "shop.a"))
	old := w.start()
	w.ok(old.attempt(at(120)))
	old.awaitRunner().catchUp(at(120))
	acquired := 0
	old.cfg.Acquire = func(ctx context.Context) (*checkpoint.Link, error) {
		link, err := old.acquire(ctx)
		if acquired++; acquired == 2 {
			// Another process acquires the lease before it is used.
			w.ok(w.start().attempt(at(120)))
		}
		return link, err
	}
	if _, err := old.Merge(t.Context(), t.Context()); !errors.Is(err, lease.ErrFenced) {
		t.Fatal(err)
	}
	if out := w.state().LeftOut; len(out) != 1 || w.request("shop.a").State != request.Joining {
		t.Errorf("out: %v, request %+v", out, w.request("shop.a"))
	}
}

// TestRestart: a collection was replaced while it was copied, and its copy starts over. A
// process that loses the lease at this moment does not remove the part that the next
// leader has started.
func TestRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startTarget(t), "restart")
	w.ok(w.asks().Resync(t.Context(), "shop.a"))
	w.fails["shop.a"] = fmt.Errorf("%w: renamed into place", ErrRestart)
	old := w.start()
	w.ok(old.attempt(at(120)))
	first := old.awaitRunner().part
	<-old.ended
	delete(w.fails, "shop.a")
	next := w.start()
	var once sync.Once
	w.to.Intercept(func(cmd mongo.Command) (error, bool) {
		if simcaller.Name(cmd) == "delete" {
			once.Do(func() {
				w.to.Intercept(nil)
				w.ok(next.attempt(at(130)))
				next.awaitRunner()
			})
		}
		return nil, false
	})
	if _, err := old.Merge(t.Context(), t.Context()); err != nil {
		t.Fatal(err)
	}
	r := next.awaitRunner()
	if _, found, err := r.store.Load(t.Context()); err != nil || !found || r.part.Link == first.Link {
		t.Fatalf("the part of the next process, %+v, is there: %t, %v", r.part, found, err)
	}
	if w.begun["shop.a"] != 2 {
		t.Errorf("it was copied %d times", w.begun["shop.a"])
	}
	w.ok(w.resyncOnce(next, 140, 130))
	w.isDone(next)
}

// TestSince: the copy of a collection that an entry has replaced begins at that entry or after it, also if another
// entry replaces the collection meanwhile.
func TestSince(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startTarget(t), "since")
	w.fails["shop.a"] = &ReplacedError{At: at(121), Err: errors.New("renamed into place")}
	p := w.start()
	if asked, err := p.Request(t.Context(), "shop.a", at(101), errors.New("renamed into place")); !asked || err != nil {
		t.Fatal(asked, err)
	}
	w.ok(p.attempt(at(120)))
	if got := p.awaitRunner().part.Since; got != at(101) {
		t.Errorf("it begins after %s", got)
	}
	<-p.ended
	delete(w.fails, "shop.a")
	if _, err := p.Merge(t.Context(), t.Context()); err != nil {
		t.Fatal(err)
	}
	w.ok(p.attempt(at(130)))
	if got := p.awaitRunner().part.Since; got != at(121) {
		t.Errorf("it begins again after %s", got)
	}
	w.ok(w.resyncOnce(p, 140, 130))
	w.isDone(p)
	if at, known := p.since["shop.a"]; known {
		t.Errorf("done, and %s is kept", at)
	}
	if _, err := p.Request(t.Context(), "shop.a", at(141), errors.New("renamed into place")); err != nil {
		t.Fatal(err)
	}
	p.Reset()
	if at, known := p.since["shop.a"]; known {
		t.Errorf("it does not lead any more, and %s is kept", at)
	}
}

// TestUnable: a request waits, with a reason, while a process that cannot copy runs the
// link. The next process that can copy serves it.
func TestUnable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startTarget(t), "unable")
	requests := w.asks()
	w.ok(requests.Resync(t.Context(), "shop.a"))
	w.unable = errors.New("no folder for the oplog is given")
	p := w.start()
	link, err := p.begin()
	w.ok(err)
	// A request that is made while the attempt runs gets a reason, too.
	w.ok(requests.Resync(t.Context(), "shop.b"))
	if changed, err := p.look(t.Context(), link, nil); changed || err != nil {
		t.Errorf("changed: %t, %v", changed, err)
	}
	for _, ns := range []oplog.Namespace{"shop.a", "shop.b"} {
		if r := w.request(ns); r.State != request.Asked || r.Why != w.unable.Error() {
			t.Errorf("%+v", r)
		}
	}
	if got, want := p.Postponed(), "shop.a, shop.b cannot be copied again now: no folder for the oplog is given"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
	p.kill()
	w.unable = nil
	p = w.start()
	w.ok(p.attempt(at(110)))
	if p.Postponed() != "" || len(p.LeftOut()) != 2 || w.request("shop.a") != (request.Resync{
		NS: "shop.a", Asked: w.request("shop.a").Asked, State: request.Copying,
	}) {
		t.Errorf("it says %q, leaves out %v: %+v", p.Postponed(), p.LeftOut(), w.request("shop.a"))
	}
}

// TestWatch: the reasons for which Watch ends an attempt.
func TestWatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, startTarget(t), "watch")
	requests := w.asks()
	p := w.start()
	link, err := p.begin()
	w.ok(err)
	texts := map[oplog.Namespace]string{}
	look := func(when string, want bool) {
		t.Helper()
		if got, err := p.look(t.Context(), link, texts); got != want || err != nil {
			t.Errorf("%s: %t, %v", when, got, err)
		}
	}
	look("at first", false)
	w.ok(requests.Resync(t.Context(), "shop.a"))
	p.at.Copying = true
	look("a request during the copy", false)
	p.at.Copying = false
	look("a request", true)
	link, err = p.begin()
	w.ok(err)
	r := p.awaitRunner()
	look("a part that copies", false)
	if got := w.request("shop.a"); got.State != request.Copying || got.Why != "following" {
		t.Errorf("the request is %+v", got)
	}
	r.catchUp(at(100))
	p.at.Spooled, p.at.Overflows = true, true
	look("a part that is ready, while what follows the attempt is spooled", false)
	w.ok(requests.Resync(t.Context(), "shop.b"))
	look("a request, while what follows the attempt is spooled", false)
	link, err = p.begin()
	w.ok(err)
	p.at.Overflows, p.at.Paused = false, true
	look("a part that is ready, while the link is paused", false)
	p.at.Paused, p.at.KeptBack = false, true
	look("a part that is ready, while the link waits for an index build", false)
	p.at.KeptBack = false
	r.show(Status{Text: "steady", Consistent: true, Steady: true, Applied: at(100), KeptBack: true})
	look("a part that waits for an index build itself", false)
	r.catchUp(at(100))
	look("a part that is ready", true)
	// A process that has lost the lease does not write the progress of parts.
	r.show(Status{Text: "something else"})
	w.ok(w.start().attempt(at(100)))
	if _, err := p.look(t.Context(), link, texts); !errors.Is(err, lease.ErrFenced) {
		t.Errorf("fenced: %v", err)
	}
}
