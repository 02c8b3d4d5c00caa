package locks_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/lockstest"
)

// acquiring is a store with another Acquire.
type acquiring struct {
	locks.Store
	acquire func(ctx context.Context, c locks.Claim) (locks.Record, error)
}

func (s acquiring) Acquire(ctx context.Context, c locks.Claim) (locks.Record, error) {
	return s.acquire(ctx, c)
}

// TestOvertakeComesLate: a has acquired a lock, but not the reply, and tries again only once b takes the lock for one
// of a process that is gone. Whichever is executed first has the lock, and the other has not.
func TestOvertakeComesLate(t *testing.T) {
	for name, fails := range map[string]bool{"late": false, "sent again": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := lockstest.NewMemory()
				store.Skew(6 * time.Hour)
				var sent, up, failed, uses atomic.Bool
				has, done := make(chan struct{}), make(chan error, 1)
				a := newElect(acquiring{store, func(ctx context.Context, c locks.Claim) (locks.Record, error) {
					if up.Load() {
						return store.Acquire(ctx, c)
					}
					if !sent.Swap(true) {
						_, _ = store.Acquire(ctx, c)
					}
					return locks.Record{}, locks.ErrUnavailable
				}}, "a")
				b := newElect(acquiring{store, func(ctx context.Context, c locks.Claim) (locks.Record, error) {
					if !c.Overtake.IsZero() && !failed.Swap(true) {
						up.Store(true)
						<-has
						if fails {
							return locks.Record{}, locks.ErrUnavailable
						}
					}
					return store.Acquire(ctx, c)
				}}, "b")
				defer a.Close()
				defer b.Close()
				go func() {
					done <- a.Lock(t.Context(), "k", "", func(ctx context.Context) {
						uses.Store(true)
						close(has)
						select {
						case <-ctx.Done():
						case <-time.After(time.Minute):
						}
						uses.Store(false)
					})
				}()
				synctest.Wait()
				store.Skew(0)
				err := b.Lock(t.Context(), "k", "", func(context.Context) {
					if uses.Load() {
						t.Error("b has the lock, and a uses it")
					}
				})
				if lost := <-done; err != nil || lost != nil || !failed.Load() {
					t.Errorf("b: %v; a: %v; b has tried to take it over: %t", err, lost, failed.Load())
				}
			})
		})
	}
}
