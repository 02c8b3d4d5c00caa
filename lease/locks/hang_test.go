package locks_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/lockstest"
)

// hang is a fault: no call gets a reply.
func hang(ctx context.Context, _ string) (bool, error) {
	<-ctx.Done()
	return false, nil
}

// TestWaitForEverThroughHang: a store that hangs for longer than any call may take does not end
// a Lock that waits for ever, whatever error its calls return then.
func TestWaitForEverThroughHang(t *testing.T) {
	for name, fault := range map[string]func(ctx context.Context, call string) (bool, error){
		"unavailable": hang,
		"context's":   func(ctx context.Context, _ string) (bool, error) { <-ctx.Done(); return false, ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := lockstest.NewMemory()
				a := start(t, mem, "a")
				mem.Fail(fault)
				time.AfterFunc(2*time.Minute, func() { mem.Fail(nil) })
				l := must.Get(a.Lock(t.Context(), "shop", "", locks.Wants{Wait: -1}))(t)
				l.Unlock(t.Context())
			})
		})
	}
}

// TestCloseThroughHang: Close goes on until it has unlocked all, or its context is done.
func TestCloseThroughHang(t *testing.T) {
	for _, d := range []time.Duration{45 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			mem := lockstest.NewMemory()
			m := locks.NewManager(locks.Config{Store: mem, Process: "a"})
			must.Get(m.Lock(t.Context(), "shop", "", locks.Wants{}))(t)
			mem.Fail(hang)
			time.AfterFunc(d, func() { mem.Fail(nil) })
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			err := m.Close(ctx)
			if left := mem.Record("shop").IsLocked() || mem.HasPing("a"); left == (err == nil) || left != (d == time.Hour) || time.Since(began) > 11*time.Minute {
				t.Errorf("hangs %s: after %s: %v; something is left: %t", d, time.Since(began), err, left)
			}
		})
	}
}

// TestWaitLimit: the store is up, and confirms no write. Lock returns when it has waited for as
// long as it is to, or after one try, and what it may have got is unlocked.
func TestWaitLimit(t *testing.T) {
	for wait, most := range map[time.Duration]time.Duration{0: 31 * time.Second, 5 * time.Second: 7 * time.Second, time.Minute: 62 * time.Second} {
		for _, call := range []string{lockstest.Acquire, lockstest.Ping} {
			synctest.Test(t, func(t *testing.T) {
				mem := lockstest.NewMemory()
				a := start(t, mem, "a")
				mem.Fail(func(ctx context.Context, of string) (bool, error) {
					if of != call {
						return true, nil
					}
					<-ctx.Done()
					return true, fmt.Errorf("no majority: %w", locks.ErrUnavailable)
				})
				time.Sleep(time.Second)
				go func() { _, _ = a.Lock(t.Context(), "other", "", locks.Wants{}) }() // its ping hangs, too
				time.Sleep(time.Second)
				began := time.Now()
				_, err := a.Lock(t.Context(), "shop", "", locks.Wants{Wait: wait})
				must.Fail(t, err, locks.ErrUnavailable)
				if took := time.Since(began); took > most {
					t.Errorf("wait %s, %s hangs: it returned after %s", wait, call, took)
				}
				mem.Fail(nil)
				time.Sleep(time.Minute)
				if mem.Record("shop").IsLocked() || mem.Record("other").IsLocked() {
					t.Errorf("it is still locked: %+v", mem.Record("shop"))
				}
			})
		}
	}
}

// TestStaleList: after an election of the store a list does not show a lock that was acquired
// just before. The process keeps it, if the store still has it.
func TestStaleList(t *testing.T) {
	for _, released := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			mem := lockstest.NewMemory()
			store := newReplaced(mem)
			a := start(t, store, "a")
			store.list = func(context.Context, string) ([]locks.Record, error) { return nil, nil }
			l := must.Get(a.Lock(t.Context(), "shop", "", locks.Wants{}))(t)
			if released {
				must.Succeed(t, mem.Release(t.Context(), "shop", l.Record().ID))
			}
			time.Sleep(time.Minute)
			if over := l.Err() != nil; over != released {
				t.Errorf("released %t: %v; the store: %+v", released, l.Err(), mem.Record("shop"))
			}
			l.Unlock(t.Context())
		})
	}
}

// TestCloseRemovesUncertainPing: the reply to the first ping was lost, and no other was sent.
func TestCloseRemovesUncertainPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := lockstest.NewMemory()
		m := locks.NewManager(locks.Config{Store: mem, Process: "a"})
		mem.Fail(func(context.Context, string) (bool, error) { return true, locks.ErrUnavailable })
		_, err := m.Lock(t.Context(), "shop", "", locks.Wants{})
		must.Fail(t, err, locks.ErrUnavailable)
		mem.Fail(nil)
		must.Succeed(t, m.Close(t.Context()))
		if mem.HasPing("a") {
			t.Error("it still has a ping")
		}
	})
}
