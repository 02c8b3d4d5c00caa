package locks_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/lockstest"
)

// replaced is a store of which one process's calls are replaced.
type replaced struct {
	muted
	acquire func(context.Context, locks.Claim) (locks.Record, error)
	list    func(context.Context, string) ([]locks.Record, error)
}

func newReplaced(store *lockstest.Memory) *replaced {
	return &replaced{muted: muted{Memory: store}, acquire: store.Acquire, list: store.List}
}

func (r *replaced) Acquire(ctx context.Context, c locks.Claim) (locks.Record, error) {
	return r.acquire(ctx, c)
}

func (r *replaced) List(ctx context.Context, process string) ([]locks.Record, error) {
	return r.list(ctx, process)
}

// TestLateAcquireReply: the reply to an acquisition comes when another process has overtaken it,
// or may have, and the pinger is back. The process does not have the lock, until the other one
// has unlocked it.
func TestLateAcquireReply(t *testing.T) {
	for _, overtaken := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			mem := lockstest.NewMemory()
			store, away := newReplaced(mem), make(chan struct{})
			a, b := start(t, store, "a"), start(t, mem, "b")
			store.acquire = func(ctx context.Context, c locks.Claim) (locks.Record, error) {
				store.acquire = mem.Acquire
				r, err := mem.Acquire(ctx, c)
				store.off.Store(true)
				<-away
				return r, err
			}
			got := make(chan *locks.Lock, 1)
			go func() { got <- must.Get(a.Lock(t.Context(), "shop", "", locks.Wants{Wait: -1}))(t) }()
			time.Sleep(time.Second)
			var has *locks.Lock
			if overtaken {
				has = must.Get(b.Lock(t.Context(), "shop", "", locks.Wants{Wait: -1}))(t)
			} else {
				time.Sleep(20 * time.Minute)
			}
			store.off.Store(false)
			time.Sleep(31 * time.Second) // the pinger is back
			close(away)
			time.Sleep(time.Minute)
			want := int64(2)
			if overtaken {
				if len(got) > 0 || has.Err() != nil {
					t.Errorf("both have it, or b does not: %v", has.Err())
				}
				has.Unlock(t.Context())
				want = 3
			}
			l := <-got
			if l.Err() != nil || l.Record().Term != want {
				t.Errorf("overtaken %t: %v, %+v, want term %d", overtaken, l.Err(), l.Record(), want)
			}
			l.Unlock(t.Context())
		})
	}
}

// lateRenewal executes the first renewal after the fourth one, by the time when it was sent.
type lateRenewal struct {
	*lockstest.Memory
	n     atomic.Int32
	began time.Time
}

func (s *lateRenewal) Renew(ctx context.Context, name string, id bson.ObjectID) (locks.Record, error) {
	switch s.n.Add(1) {
	case 1:
		s.began = time.Now()
		<-ctx.Done() // it waits for a ticket on the server; the client gives up
		return locks.Record{}, locks.ErrUnavailable
	case 2, 3:
		return s.Memory.Renew(ctx, name, id)
	case 4:
		r, err := s.Memory.Renew(ctx, name, id)
		s.Skew(-time.Since(s.began))
		_, _ = s.Memory.Renew(context.WithoutCancel(ctx), name, id)
		s.Skew(0)
		return r, err
	default:
		<-ctx.Done()
		return locks.Record{}, locks.ErrUnavailable
	}
}

// TestElectLateRenewal: a renewal that is executed late does not make the lock end before its
// context.
func TestElectLateRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := lockstest.NewMemory()
		a, b := newElect(&lateRenewal{Memory: mem}, "a"), newElect(mem, "b")
		defer a.Close()
		defer b.Close()
		must.Fail(t, a.Lock(t.Context(), "k", "", func(ctx context.Context) {
			for {
				got := must.Get(b.TryLock(t.Context(), "k", "", until))(t) //nolint:contextcheck // it is another process
				if got && locks.Check(ctx) == nil {
					t.Error("both have it")
				}
				if got || t.Failed() {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		}), locks.ErrExpired)
	})
}

// TestAgainSameProcess: a process that takes its own lock up again has it once: the earlier one
// is over before.
func TestAgainSameProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := start(t, lockstest.NewMemory(), "a")
		one := must.Get(a.Lock(t.Context(), "shop", "", locks.Wants{}))(t)
		two := must.Get(a.Lock(t.Context(), "shop", "", locks.Wants{Again: func(r locks.Record) bool { return r.ID == one.Record().ID }}))(t)
		must.Fail(t, one.Err(), locks.ErrLost)
		must.Succeed(t, two.Err())
		one.Unlock(t.Context())
		time.Sleep(time.Minute)
		must.Succeed(t, two.Err())
		two.Unlock(t.Context())
	})
}

// TestGivenUp: a caller gives up while its claim is on the way, and the process ends: the claim may arrive after the
// lock was unlocked, if that does not wait for the reply. Nobody has the lock in the end.
func TestGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := lockstest.NewMemory()
		store := newReplaced(mem)
		a := locks.NewManager(locks.Config{Store: store, Process: "a"})
		running, stop := context.WithCancelCause(t.Context())
		var pinger, arrives sync.WaitGroup
		pinger.Go(func() { a.Run(running) })
		store.acquire = func(ctx context.Context, c locks.Claim) (r locks.Record, err error) {
			arrived := make(chan struct{})
			arrives.Go(func() {
				defer close(arrived)
				time.Sleep(time.Second)
				r, err = mem.Acquire(context.WithoutCancel(ctx), c)
			})
			select {
			case <-arrived:
				return r, err
			case <-ctx.Done(): // the connection is closed, and the claim is on the way
				return locks.Record{}, context.Cause(ctx)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if l, err := a.Lock(ctx, "shop", "", locks.Wants{Wait: -1}); err == nil {
			t.Errorf("got %+v", l.Record())
		}
		stop(nil)
		pinger.Wait()
		must.Succeed(t, a.Close(t.Context()))
		arrives.Wait()
		if list := must.Get(mem.List(t.Context(), ""))(t); len(list) != 1 || list[0].IsLocked() {
			t.Errorf("left: %+v", list)
		}
	})
}
