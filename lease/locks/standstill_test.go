package locks_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/lockstest"
)

// TestElectClockBack: the store's clock is set back by hours. A process that is alive keeps its lock; once it is gone,
// another one has the lock within seconds, not hours, whether it waits or tries again and again.
func TestElectClockBack(t *testing.T) {
	for name, waits := range map[string]bool{"lock": true, "try": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := lockstest.NewMemory()
				a, b := newElect(store, "a"), newElect(store, "b")
				defer a.Close()
				defer b.Close()
				store.Skew(6 * time.Hour)
				var cut, ended time.Time
				got := make(chan time.Time, 1)
				hold := func(ctx context.Context) {
					select {
					case got <- time.Now():
					default:
						t.Error("b has it twice")
					}
					if ended.IsZero() || locks.Token(ctx) != 2 {
						t.Errorf("b has the lock in term %d; that of a has ended: %t", locks.Token(ctx), !ended.IsZero())
					}
				}
				must.Fail(t, a.Lock(t.Context(), "k", "", func(ctx context.Context) {
					store.Skew(0)
					for n := 0; ctx.Err() == nil; n++ {
						if n == 300 {
							cut = time.Now()
							store.Fail(func(_ context.Context, call string) (bool, error) {
								if call == lockstest.Renew || call == lockstest.Release {
									return false, locks.ErrUnavailable
								}
								return true, nil
							})
						}
						led, err := b.TryLock(t.Context(), "k", "", hold) //nolint:contextcheck // the context of a is not that of b
						must.Succeed(t, err)
						if led {
							t.Errorf("b has it after %d s, and a uses it", n)
						}
						time.Sleep(time.Second)
					}
					ended = time.Now()
				}), locks.ErrExpired)
				for led := false; !led && time.Since(cut) < time.Hour; {
					if waits {
						must.Succeed(t, b.Lock(t.Context(), "k", "", hold))
						break
					}
					var err error
					led, err = b.TryLock(t.Context(), "k", "", hold)
					must.Succeed(t, err)
					time.Sleep(2 * time.Second)
				}
				select {
				case at := <-got:
					if took := at.Sub(cut); took > 30*time.Second {
						t.Errorf("b has it after %s", took)
					}
				default:
					t.Error("b has not got it")
				}
			})
		})
	}
}
