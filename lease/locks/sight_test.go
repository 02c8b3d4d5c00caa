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

// TestSight: after the store's clock was set back, a process that is alive is said to have its lock, and one that is gone is not.
func TestSight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockstest.NewMemory()
		store.Skew(6 * time.Hour)
		a := newElect(store, "a")
		defer a.Close()
		seen := func(what string, want bool) {
			t.Helper()
			if list := must.Get(locks.Sight(t.Context(), store))(t); len(list) != 1 || list[0].IsLocked() != want {
				t.Errorf("%s: %+v, want locked %t", what, list, want)
			}
		}
		must.Fail(t, a.Lock(t.Context(), "k", "", func(ctx context.Context) {
			seen("taken", true)
			store.Skew(6*time.Hour - 5*time.Second)
			seen("the clock is set back a little", true)
			store.Skew(0)
			time.Sleep(3 * time.Second)
			seen("renewed since", true)
			store.Skew(-6 * time.Hour)
			store.Fail(func(_ context.Context, call string) (bool, error) {
				if call == lockstest.Renew || call == lockstest.Release {
					return false, locks.ErrUnavailable
				}
				return true, nil
			})
			<-ctx.Done()
		}), locks.ErrExpired)
		seen("not renewed since", false)
	})
}
