package resync

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/jobs"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/mongostore"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// lookAgain looks once, as Watch does.
func (p *process) lookAgain(link *checkpoint.Link, want bool) {
	p.w.t.Helper()
	if got, err := p.look(p.ctx, link, map[oplog.Namespace]string{}); got != want || err != nil {
		p.w.t.Fatalf("the attempt is to end: %t, want %t: %v", got, want, err)
	}
}

// waitsFor fails the test unless the request for shop.a waits, with texts that say for whom.
func (p *process) waitsFor(state string, texts ...string) {
	p.w.t.Helper()
	r := p.w.request("shop.a")
	for _, text := range texts {
		if r.State != state || !strings.Contains(r.Why, text) || !strings.Contains(p.Postponed(), text) {
			p.w.t.Errorf("the request is %+v, the status says %q, want %q", r, p.Postponed(), text)
		}
	}
	if p.running["shop.a"] != nil {
		p.w.t.Error("it is copied")
	}
}

// lockedIs fails the test unless exactly these locks are locked.
func (g *target) lockedIs(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, r := range must.Get(mongostore.New(g, "replicator").List(t.Context(), ""))(t) {
		if r.IsLocked() {
			got = append(got, r.Name)
		}
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("locked: %q, want %q", got, want)
	}
}

// release releases a lock by hand.
func (g *target) release(t *testing.T, name string) {
	t.Helper()
	s := mongostore.New(g, "replicator")
	for _, r := range must.Get(s.List(t.Context(), ""))(t) {
		if r.Name == name {
			must.Succeed(t, s.Release(t.Context(), name, r.ID))
		}
	}
}

// TestTwoLinks: two links into one target are to copy the same collection again. The second
// one waits, says for whom, and starts by itself. Another collection of the database does
// not wait.
func TestTwoLinks(t *testing.T) {
	t.Parallel()
	to := startTarget(t)
	a, b := newWorld(t, to, "a"), newWorld(t, to, "b")
	must.Succeed(t, a.asks().Resync(t.Context(), "shop.a"))
	p, q := a.start(), b.start()
	must.Succeed(t, p.attempt(at(110)))
	to.lockedIs(t, "namespace/shop.a")

	must.Succeed(t, b.asks().Resync(t.Context(), "shop.a"))
	must.Succeed(t, b.asks().Resync(t.Context(), "shop.b"))
	link, err := q.begin()
	must.Succeed(t, err)
	q.waitsFor(request.Asked, "namespace/shop.a is locked by ", "resync of link a, term 1", "copy shop.a again, as requested at")
	if r := b.request("shop.b"); r.State != request.Copying || b.state().LeftOut[0].NS != "shop.b" || len(b.state().LeftOut) != 1 {
		t.Errorf("the other one is %+v, left out: %+v", r, b.state().LeftOut)
	}
	q.lookAgain(link, false)
	q.waitsFor(request.Asked, "resync of link a")

	must.Succeed(t, a.resyncOnce(p, 120, 120))
	a.isDone(p)
	q.lookAgain(link, true)
	to.lockedIs(t, "namespace/shop.a", "namespace/shop.b")
	if q.Postponed() != "" {
		t.Errorf("it still says %q", q.Postponed())
	}
	must.Succeed(t, b.asks().Resync(t.Context(), "shop.a"))
	must.Succeed(t, q.attempt(at(110)))
	to.lockedIs(t, "namespace/shop.a", "namespace/shop.b")
	if out := q.LeftOut(); len(out) != 2 {
		t.Errorf("left out: %v", out)
	}
}

// TestOperatorHasLock: an operator's command has a lock, of the collection or of the
// database. A request waits for both; a resync that had begun goes on with the next leader
// of the link, whoever has the database.
func TestOperatorHasLock(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"namespace/shop.a", "database/shop"} {
		to := startTarget(t)
		w := newWorld(t, to, "link")
		must.Succeed(t, w.asks().Resync(t.Context(), "shop.b"))
		p := w.start()
		must.Succeed(t, p.attempt(at(100)))

		operator := locks.NewElect(locks.ElectConfig{Store: mongostore.New(to, "replicator"), Who: "lease exec", TTL: time.Minute})
		begun, over := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			_ = operator.Lock(t.Context(), name, "rebuild by hand", func(ctx context.Context) { close(begun); <-ctx.Done() })
		}()
		<-begun
		must.Succeed(t, w.asks().Resync(t.Context(), "shop.a"))
		p.kill()
		p = w.start()
		link, err := p.begin()
		must.Succeed(t, err)
		p.waitsFor(request.Asked, name+" is locked by ", "for lease exec: rebuild by hand", " since ")
		if p.running["shop.b"] == nil {
			t.Errorf("%s: the one that had begun does not go on", name)
		}
		p.lookAgain(link, false)
		operator.Close()
		<-over
		p.lookAgain(link, true)
		_, err = p.begin()
		must.Succeed(t, err)
		if len(p.LeftOut()) != 2 {
			t.Errorf("%s: left out: %v", name, p.LeftOut())
		}
		to.lockedIs(t, "namespace/shop.a", "namespace/shop.b")
	}
}

// TestLockOutlivesLeader: a process ends in the middle of a resync, in order or not. Another
// link cannot have the lock meanwhile, the link's next leader has it at once; and when the
// request is done, nobody has it.
func TestLockOutlivesLeader(t *testing.T) {
	t.Parallel()
	for _, inOrder := range []bool{true, false} {
		to := startTarget(t)
		a, b := newWorld(t, to, "a"), newWorld(t, to, "b")
		must.Succeed(t, a.asks().Resync(t.Context(), "shop.a"))
		p := a.start()
		must.Succeed(t, p.attempt(at(110)))
		if inOrder {
			p.over()
		}
		p.kill()
		must.Succeed(t, b.asks().Resync(t.Context(), "shop.a"))
		q := b.start()
		must.Succeed(t, q.attempt(at(110)))
		q.waitsFor(request.Asked, "resync of link a, term 1")

		p = a.start()
		must.Succeed(t, a.resyncOnce(p, 120, 120))
		a.isDone(p)
		to.lockedIs(t)
		if a.begun["shop.a"] != 1 {
			t.Errorf("it was copied %d times", a.begun["shop.a"])
		}
	}
}

// TestDeposedLeader: a process that was deposed, and does not know it, cannot take the lock
// back from the next leader.
func TestDeposedLeader(t *testing.T) {
	t.Parallel()
	to := startTarget(t)
	w := newWorld(t, to, "link")
	must.Succeed(t, w.asks().Resync(t.Context(), "shop.a"))
	old, next := w.start(), w.start()
	must.Succeed(t, old.attempt(at(110)))
	must.Succeed(t, next.attempt(at(110)))
	id := next.locks.Held("namespace/shop.a").Record().ID
	old.locks.Release("namespace/shop.a") // by its own ID, which has no effect
	_, err := old.locks.Take(old.term, jobs.Want{Name: "namespace/shop.a"})
	must.Fail(t, err, locks.ErrBusy)
	old.locks.Keep(old.term, nil)
	must.Succeed(t, next.locks.Confirm(t.Context(), "namespace/shop.a"))
	if now := next.locks.Held("namespace/shop.a").Record().ID; now != id {
		t.Errorf("the lock is %s, was %s", now, id)
	}
}

// TestLeftByLeader: a leader ended after its last request was done, before it had unlocked. The next
// one unlocks that, not what another job of the link has.
func TestLeftByLeader(t *testing.T) {
	t.Parallel()
	to := startTarget(t)
	w := newWorld(t, to, "link")
	p := w.start()
	must.Succeed(t, p.attempt(at(110)))
	for _, want := range []jobs.Want{{Name: "namespace/shop.a"}, {Name: "database/shop"}} {
		_, err := p.locks.Take(p.term, want)
		must.Succeed(t, err)
	}
	for _, other := range []jobs.Config{{Job: "repair", Link: "link"}, {Job: "resync", Link: "link.2"}} {
		other.Locks.Store = mongostore.New(to, "replicator")
		l := jobs.New(other)
		l.Begin(t.Context())
		defer l.End(t.Context())
		_, err := l.Take(1, jobs.Want{Name: jobs.Link(other.Link + other.Job)})
		must.Succeed(t, err)
	}
	p.kill()
	must.Succeed(t, w.start().attempt(at(120)))
	to.lockedIs(t, "operation/link.2resync", "operation/linkrepair")
}

// TestReleasedByHand: an operator releases the lock of a resync. The copy stops, its request
// fails and says why; the link goes on, and the collection stays left out until it is requested again.
func TestReleasedByHand(t *testing.T) {
	t.Parallel()
	for _, merging := range []bool{false, true} {
		to := startTarget(t)
		w := newWorld(t, to, "link")
		if !merging {
			w.ping = 20 * time.Millisecond
		}
		must.Succeed(t, w.asks().Resync(t.Context(), "shop.a"))
		p := w.start()
		must.Succeed(t, p.attempt(at(110)))
		r := p.awaitRunner()
		if merging {
			r.catchUp(at(110))
		}
		to.release(t, "namespace/shop.a")
		if !merging {
			<-p.ended
		}
		_, err := p.Merge(p.ctx, t.Context())
		must.Succeed(t, err)
		if r := w.request("shop.a"); r.State != request.Failed || !strings.Contains(r.Why, "its lock was released by hand") {
			t.Errorf("merging %t: the request is %+v", merging, r)
		}
		must.Succeed(t, p.attempt(at(120)))
		if len(p.LeftOut()) != 1 || len(p.running) != 0 || !w.data["shop.b"].Equal(at(120)) {
			t.Errorf("merging %t: left out %v, %d run, shop.b at %s", merging, p.LeftOut(), len(p.running), w.data["shop.b"])
		}
		to.lockedIs(t)
		must.Succeed(t, w.asks().Resync(t.Context(), "shop.a"))
		must.Succeed(t, w.resyncOnce(p, 130, 130))
		to.lockedIs(t)
		w.isDone(p)
	}
}

// TestContinuesWithoutLock: a link was not led for so long that another one has got the lock
// of the collection that it was copying. It waits, with the collection left out, and
// continues the copy once the lock is free.
func TestContinuesWithoutLock(t *testing.T) {
	t.Parallel()
	to := startTarget(t)
	a, b := newWorld(t, to, "a"), newWorld(t, to, "b")
	must.Succeed(t, a.asks().Resync(t.Context(), "shop.a"))
	p := a.start()
	must.Succeed(t, p.attempt(at(110)))
	p.kill()
	to.release(t, "namespace/shop.a")
	must.Succeed(t, b.asks().Resync(t.Context(), "shop.a"))
	q := b.start()
	must.Succeed(t, q.attempt(at(110)))
	p = a.start()
	link, err := p.begin()
	must.Succeed(t, err)
	p.waitsFor(request.Copying, "resync of link b")
	p.lookAgain(link, false)
	p.waitsFor(request.Copying, "resync of link b")
	if len(p.LeftOut()) != 1 {
		t.Errorf("left out: %v", p.LeftOut())
	}
	must.Succeed(t, b.resyncOnce(q, 120, 120))
	b.isDone(q)
	p.lookAgain(link, true)
	must.Succeed(t, a.resyncOnce(p, 120, 120))
	a.isDone(p)
	if a.begun["shop.a"] != 1 {
		t.Errorf("it was copied %d times", a.begun["shop.a"])
	}
	to.lockedIs(t)
}
