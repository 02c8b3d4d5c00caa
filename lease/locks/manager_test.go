package locks_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/lockstest"
)

// start starts a Manager whose pinger runs until the test ends.
func start(t *testing.T, store locks.Store, process string) *locks.Manager {
	m := locks.NewManager(locks.Config{Store: store, Process: process})
	ctx, cancel := context.WithCancelCause(context.Background())
	var running sync.WaitGroup
	running.Go(func() { m.Run(ctx) })
	t.Cleanup(func() {
		cancel(nil)
		running.Wait()
	})
	return m
}

// TestSuspendedWhileLooking: a process is suspended for longer than the expiry in the middle
// of a look, at any of its calls. It does not take that time for the holder's, whose pings fail
// from then on for a minute.
func TestSuspendedWhileLooking(t *testing.T) {
	for at := 1; at <= 12; at++ {
		synctest.Test(t, func(t *testing.T) {
			store := lockstest.NewMemory()
			mute := &muted{Memory: store}
			a, b := start(t, mute, "a"), locks.NewManager(locks.Config{Store: store, Process: "b"})
			l := must.Get(a.Lock(t.Context(), "shop", "", locks.Wants{}))(t)
			defer l.Unlock(t.Context())
			calls := 0
			store.Fail(func(_ context.Context, call string) (bool, error) {
				if call == lockstest.Clock || call == lockstest.Pinged {
					if calls++; calls == at {
						time.Sleep(20 * time.Minute)
						mute.off.Store(true)
					}
				}
				return true, nil
			})
			for range 3 {
				if _, err := b.Lock(t.Context(), "shop", "", locks.Wants{}); !errors.Is(err, locks.ErrBusy) {
					t.Errorf("suspended at call %d: %v", at, err)
				}
				time.Sleep(31 * time.Second)
			}
			must.Succeed(t, l.Err())
		})
	}
}

// muted is the store of a process whose pings can fail.
type muted struct {
	*lockstest.Memory
	off atomic.Bool
}

func (m *muted) Ping(ctx context.Context, process string) error {
	if m.off.Load() {
		return locks.ErrUnavailable
	}
	return m.Memory.Ping(ctx, process)
}

// TestLateCommand: a command of a lock that was given up is executed when that was confirmed.
// The lock is unlocked again.
func TestLateCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockstest.NewMemory()
		a := start(t, store, "a")
		var claim locks.Claim
		given := &recorded{Memory: store, seen: &claim}
		b := locks.NewManager(locks.Config{Store: given, Process: "a"})
		must.Get(a.Lock(t.Context(), "other", "", locks.Wants{}))(t)
		_, err := b.Lock(t.Context(), "shop", "", locks.Wants{})
		must.Fail(t, err, locks.ErrUnavailable)
		must.Get(store.Acquire(t.Context(), claim))(t)
		if r := store.Record("shop"); !r.IsLocked() {
			t.Fatal("it is not locked")
		}
		time.Sleep(40 * time.Second)
		if r := store.Record("shop"); r.IsLocked() || r.Term != 1 {
			t.Errorf("%+v", r)
		}
		if r := store.Record("other"); !r.IsLocked() {
			t.Error("the other lock was unlocked, too")
		}
	})
}

// recorded records claims that are not executed yet.
type recorded struct {
	*lockstest.Memory
	seen *locks.Claim
}

func (r *recorded) Acquire(_ context.Context, c locks.Claim) (locks.Record, error) {
	*r.seen = c
	return locks.Record{}, locks.ErrUnavailable
}

// TestFair: a process that takes the same lock again and again does not keep others from it.
func TestFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockstest.NewMemory()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var all sync.WaitGroup
		got, longest := make([]int, 4), make([]time.Duration, 4)
		for i := range got {
			m := start(t, store, string(rune('a'+i)))
			all.Go(func() {
				for {
					began := time.Now()
					l, err := m.Lock(ctx, "shop", "", locks.Wants{Wait: -1})
					if err != nil {
						return
					}
					got[i]++
					longest[i] = max(longest[i], time.Since(began))
					time.Sleep(2 * time.Second)
					l.Unlock(ctx)
				}
			})
		}
		all.Wait()
		for i := range got {
			if got[i] < 200 || longest[i] > 5*time.Minute {
				t.Errorf("in an hour: got it %v times, waited at most %v", got, longest)
				break
			}
		}
	})
}

// TestGivesWayInTime: a process that wants a lock again that it has just unlocked gives way for no more than half of the time for which it
// waits.
func TestGivesWayInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := start(t, lockstest.NewMemory(), "a")
		must.Get(m.Lock(t.Context(), "shop", "", locks.Wants{}))(t).Unlock(t.Context())
		began := time.Now()
		l := must.Get(m.Lock(t.Context(), "shop", "", locks.Wants{Wait: 400 * time.Millisecond}))(t)
		if took := time.Since(began); took < 100*time.Millisecond || took > 250*time.Millisecond {
			t.Errorf("it took %s", took)
		}
		l.Unlock(t.Context())
	})
}
