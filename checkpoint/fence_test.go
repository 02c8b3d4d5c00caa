package checkpoint

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
)

// TestBeginFences: all writes of an older term are rejected, on the primary that executed
// Acquire and on the next one.
func TestBeginFences(t *testing.T) {
	t.Parallel()
	for _, stepDown := range []bool{false, true} {
		name := "same primary"
		if stepDown {
			name = "next primary"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := within(t)
			g, _, old := begun(t, mongosim.Options{Members: 3, Seed: 1}, 4)
			flush(ctx, t, old.Lane(0), at(101, 0), "kept")

			opened := openAll(ctx, t, old)
			started := time.Now()
			h := must.Get(link(t, g).Acquire(ctx, 0))(t)
			if took := time.Since(started); took > 30*time.Second {
				t.Errorf("Begin waited %v for transactions of the older term", took)
			}
			if h.Term() != old.Term()+1 {
				t.Errorf("term %d after %d", h.Term(), old.Term())
			}
			if stepDown {
				must.Succeed(t, g.Set.StepDown(ctx))
			}
			st := h.State()
			if st.Lanes[0] != at(101, 0) || st.Lanes[1] != at(100, AllOps) || st.Barrier != at(100, AllOps) {
				t.Errorf("lanes %v, barrier %v", st.Lanes, st.Barrier)
			}

			wantFenced(ctx, t, old, opened)
			for _, id := range []string{"open", "open-barrier", "late", "retryable", "retryable-barrier"} {
				if has(ctx, t, g, id) {
					t.Errorf("%q of the older term is in the target", id)
				}
			}

			// The new term continues.
			flush(ctx, t, h.Lane(0), at(102, 0), "new")
			flush(ctx, t, h.Barrier(), at(103, 0), "new-barrier")
			must.Succeed(t, h.Advance(ctx, progress(103), positions(h), Source{}))
			if !has(ctx, t, g, "kept") || !has(ctx, t, g, "new") {
				t.Error("the new term's data are missing")
			}
		})
	}
}

// opened are open transactions of a link: on a lane, on the barrier and on the link itself.
// late is one of another lane, without its data.
type opened struct{ lane, barrier, link, late *mongo.Txn }

func openAll(ctx context.Context, t *testing.T, l *Link) opened {
	t.Helper()
	o := opened{
		lane: open(ctx, t, l.Lane(0), at(102, 0), "open"), barrier: open(ctx, t, l.Barrier(), at(102, 0), "open-barrier"),
		late: l.Lane(1).Session().Begin(), link: l.txns.Begin(),
	}
	must.Succeed(t, l.Lane(1).Move(ctx, o.late, at(102, 0)))
	must.Succeed(t, l.changeLink(ctx, o.link, setCheckpoint(progress(101), nothing)))
	return o
}

// wantFenced fails the test if a write of a link of an older term is not rejected.
func wantFenced(ctx context.Context, t *testing.T, old *Link, o opened) {
	t.Helper()
	for what, txn := range map[string]*mongo.Txn{"a lane": o.lane, "the barrier": o.barrier, "the link": o.link} {
		if _, err := txn.Commit(ctx, false); !servererr.IsOldNumber(err) {
			t.Errorf("late commit on %s: %v", what, err)
		}
	}
	if _, err := o.late.Call(ctx, insert("late")); !servererr.IsOldNumber(err) {
		t.Errorf("late statement: %v", err)
	}
	if _, err := old.Lane(2).Session().Write(ctx, insert("retryable")); !servererr.IsOldNumber(err) {
		t.Errorf("late retryable write: %v", err)
	}
	if _, err := old.Barrier().Session().Write(ctx, insert("retryable-barrier")); !servererr.IsOldNumber(err) {
		t.Errorf("late retryable write on the barrier: %v", err)
	}
	txn := old.Lane(3).Session().Begin()
	must.Fail(t, old.Lane(3).Move(ctx, txn, at(103, 0)), lease.ErrFenced)
	must.Fail(t, old.Lane(3).Announce(ctx, at(103, 0), nil), lease.ErrFenced)
	must.Fail(t, old.Barrier().Announce(ctx, at(103, 0), positions(old)), lease.ErrFenced)
	must.Fail(t, old.Advance(ctx, progress(101), positions(old), Source{}), lease.ErrFenced)
	must.Fail(t, old.Resize(ctx, progress(101), 2), lease.ErrFenced)
	_, err := old.store.Acquire(ctx, old.Term())
	must.Fail(t, err, lease.ErrFenced)
}

// TestForgottenSessions: if the server has forgotten the sessions, the terms in the
// documents fence alone.
func TestForgottenSessions(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, _, old := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	must.Get(link(t, g).Acquire(ctx, 0))(t)
	// Simulated by session ids that the server has never seen.
	for i, l := range append(old.lanes, old.barrier) {
		l.session = mongo.NewSession(g, mongo.SessionID("forgotten", l.id), old.Term()<<mongo.NumberBits)
		txn := l.session.Begin()
		err := l.Move(ctx, txn, at(102, 0))
		must.Fail(t, err, lease.ErrFenced)
		if i == 0 && !strings.Contains(err.Error(), "term 2") {
			t.Errorf("the error does not say which term: %v", err)
		}
		txn.Abort(ctx)
	}
	old.txns = mongo.NewSession(g, mongo.SessionID("forgotten"), 1)
	must.Fail(t, old.Advance(ctx, progress(101), positions(old), Source{}), lease.ErrFenced)
}

// TestRaisedOnly: once the link's term is raised, an older one cannot move the checkpoint,
// although the lanes still have the older term.
func TestRaisedOnly(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, _, old := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	raising := &target{Set: g.Set}
	raising.Intercept(func(cmd mongo.Command) (error, bool) {
		if v, _ := cmd.Body.Lookup("update").StringValueOK(); v == metadata.Lanes {
			return errCut, false
		}
		return nil, false
	})
	_, err := link(t, raising).Acquire(ctx, 0)
	must.Fail(t, err, errCut)
	must.Fail(t, old.Advance(ctx, progress(101), positions(old), Source{}), lease.ErrFenced)
	old.txns = mongo.NewSession(g, mongo.SessionID("forgotten"), 1)
	must.Fail(t, old.Advance(ctx, progress(101), positions(old), Source{}), lease.ErrFenced)
}

// TestDelayedCommit: a commit that was sent before Acquire and arrives during or after it
// either is included in the result of Acquire, or has no effect.
func TestDelayedCommit(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, _, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	for round := range 40 {
		next := at(uint32(101+round), 0)
		id := next.String()
		txn := open(ctx, t, h.Lane(0), next, id)
		var committed error
		var wg sync.WaitGroup
		wg.Go(func() {
			for range round * 20 {
				_, _ = g.Call(ctx, mongo.Command{DB: "admin", Body: ping})
			}
			_, committed = txn.Commit(ctx, false)
		})
		later := must.Get(link(t, g).Acquire(ctx, 0))(t)
		wg.Wait()
		in := later.State().Lanes[0] == next
		if in != (committed == nil) || in != has(ctx, t, g, id) {
			t.Fatalf("round %d: commit says %v, the lane is at %v, the document is there: %v",
				round, committed, later.State().Lanes[0], has(ctx, t, g, id))
		}
		h = later
	}
}

var ping = metadata.Document(func(dst []byte) []byte { return append(dst, "\x10ping\x00\x01\x00\x00\x00"...) })

// TestTwoBegins: if two processes acquire the lease concurrently, each term belongs to
// one of them, and the other one gets an error.
func TestTwoBegins(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, _, _ := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	terms := map[int64]int{1: 1}
	fencedOnes := 0
	for range 30 {
		var wg sync.WaitGroup
		links, errs := make([]*Link, 3), make([]error, 3)
		for i := range links {
			s := link(t, g)
			wg.Go(func() { links[i], errs[i] = s.Acquire(ctx, 0) })
		}
		wg.Wait()
		usable := 0
		for i, h := range links {
			if errs[i] != nil {
				must.Fail(t, errs[i], lease.ErrFenced)
				fencedOnes++
				continue
			}
			terms[h.Term()]++
			txn := h.Lane(0).Session().Begin()
			next := h.Lane(0).Position()
			next.OpTime.TS.T++
			if h.Lane(0).Move(ctx, txn, next) == nil {
				if _, err := txn.Commit(ctx, false); err == nil {
					usable++
				}
			}
		}
		if usable > 1 {
			t.Fatalf("%d processes have the lease", usable)
		}
	}
	for term, n := range terms {
		if n != 1 {
			t.Errorf("term %d was held %d times", term, n)
		}
	}
	if fencedOnes == 0 {
		t.Error("no two processes ever met: the test shows nothing")
	}
}

var errCut = &mongo.LostError{Err: errors.New("cut")}

// TestAcquireCutOff: after an Acquire that was interrupted at any of its commands, executed
// or not, the same process and another one can acquire the lease.
func TestAcquireCutOff(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, _, h := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	s, last := h.store, h.Term()
	for cut := 1; ; cut++ {
		for _, sent := range []bool{false, true} {
			for _, restart := range []bool{false, true} {
				if restart {
					s, last = link(t, g), 0
				}
				opened := open(ctx, t, h.Lane(0), at(uint32(101+cut), 0), "x")
				n := 0
				var mu sync.Mutex
				g.Intercept(func(mongo.Command) (error, bool) {
					mu.Lock()
					defer mu.Unlock()
					if n++; n >= cut {
						return errCut, sent
					}
					return nil, false
				})
				_, err := s.Acquire(ctx, last)
				g.Intercept(nil)
				if err == nil {
					if cut < 6 {
						t.Fatalf("Begin was not cut at command %d", cut)
					}
					return
				}
				must.Fail(t, err, errCut)
				if h, err = s.Acquire(ctx, last); err != nil {
					t.Fatalf("after a cut at command %d (sent: %v, restarted: %v): %v", cut, sent, restart, err)
				}
				last = h.Term()
				if _, err := opened.Commit(ctx, false); err == nil {
					t.Fatal("an older term committed")
				}
				if st := h.State(); st.Lanes[0] != at(100, AllOps) {
					t.Fatalf("lane 0 is at %s", st.Lanes[0])
				}
			}
		}
	}
}

// TestWithinFenced: writes of an older term, in transactions that move neither a lane nor
// the checkpoint, are fenced by the sessions' numbers, and by the documents alone.
func TestWithinFenced(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	g, _, old := begun(t, mongosim.Options{Members: 1, Seed: 1}, 2)
	next := must.Get(link(t, g).Acquire(ctx, 0))(t)
	write := func(id string) func(txn *mongo.Txn) error {
		return func(txn *mongo.Txn) error {
			_, err := txn.Call(ctx, insert(id))
			return err
		}
	}
	l := old.Lane(1)
	must.Fail(t, l.Within(ctx, write("number")), lease.ErrFenced)
	// Ids that the new term does not use simulate forgotten sessions.
	l.session = mongo.NewSession(g, mongo.SessionID("forgotten", l.id), old.Term()<<mongo.NumberBits)
	must.Fail(t, l.Within(ctx, write("document")), lease.ErrFenced)
	old.txns = mongo.NewSession(g, mongo.SessionID("forgotten"), 1)
	must.Fail(t, old.Within(ctx, func(txn mongo.Caller) error {
		_, err := txn.Call(ctx, insert("link"))
		return err
	}), lease.ErrFenced)
	for _, id := range []string{"number", "document", "link"} {
		if has(ctx, t, g, id) {
			t.Errorf("%s was written by an older term", id)
		}
	}
	must.Succeed(t, next.Lane(1).Within(ctx, write("new")))
	if !has(ctx, t, g, "new") || next.Lane(1).Position() != at(100, AllOps) {
		t.Errorf("the lane is at %s", next.Lane(1).Position())
	}
}
