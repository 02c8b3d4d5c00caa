package locks_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/lockstest"
)

// TestElectTokenOfReentry: a function that takes the lock a again within that of b has a's
// token.
func TestElectTokenOfReentry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockstest.NewMemory()
		e := newElect(store, "p")
		defer e.Close()
		for range 7 { // b's term grows
			must.Succeed(t, e.Lock(t.Context(), "b", "", func(context.Context) {}))
		}
		must.Succeed(t, e.Lock(t.Context(), "a", "", func(ctx context.Context) {
			must.Succeed(t, e.Lock(ctx, "b", "", func(ctx context.Context) {
				must.Succeed(t, e.Lock(ctx, "a", "", func(ctx context.Context) {
					if got := locks.Token(ctx); got != 1 {
						t.Errorf("the function of lock a has token %d", got)
					}
				}))
				if got := locks.Token(ctx); got != 8 {
					t.Errorf("the function of lock b has token %d", got)
				}
			}))
		}))
	})
}

// TestElectNestedLost: a lock is released by hand while the function of another one runs within
// its own. That one's lock is over for its caller, and for what runs within.
func TestElectNestedLost(t *testing.T) {
	for _, lost := range []string{"a", "b"} {
		synctest.Test(t, func(t *testing.T) {
			store := lockstest.NewMemory()
			e := newElect(store, "p")
			defer e.Close()
			err := e.Lock(t.Context(), "a", "", func(ctx context.Context) {
				must.Fail(t, e.Lock(ctx, "b", "", func(ctx context.Context) {
					must.Fail(t, e.Lock(ctx, "a", "", func(ctx context.Context) {
						must.Succeed(t, store.Release(t.Context(), lost, store.Record(lost).ID)) //nolint:contextcheck // it is an operator
						<-ctx.Done()
						must.Fail(t, locks.Check(ctx), locks.ErrLost)
					}), locks.ErrLost)
				}), locks.ErrLost)
			})
			if errors.Is(err, locks.ErrLost) != (lost == "a") {
				t.Errorf("%s was lost, and a returns %v", lost, err)
			}
		})
	}
}

// slowRelease is a store whose replies to releases take long.
type slowRelease struct{ *lockstest.Memory }

func (s *slowRelease) Release(ctx context.Context, name string, id bson.ObjectID) error {
	if err := s.Memory.Release(ctx, name, id); err != nil {
		return err
	}
	select {
	case <-time.After(1900 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return locks.ErrUnavailable
	}
}

// TestElectEndsBeforeRelease: what a function has left running finds that the lock is over
// before another process gets it, and cannot take it again.
func TestElectEndsBeforeRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockstest.NewMemory()
		a, b := newElect(&slowRelease{Memory: store}, "a"), newElect(store, "b")
		defer a.Close()
		defer b.Close()
		done := make(chan struct{})
		must.Succeed(t, a.Lock(t.Context(), "k", "", func(ctx context.Context) {
			go func() {
				defer close(done)
				time.Sleep(time.Second)
				if got := must.Get(b.TryLock(t.Context(), "k", "", until))(t); !got { //nolint:contextcheck // it is another process
					t.Error("b does not have it")
				}
				must.Fail(t, locks.Check(ctx), locks.ErrUnlocked)
				must.Fail(t, a.Lock(ctx, "k", "", func(context.Context) { t.Error("it ran again") }), locks.ErrUnlocked)
				_, err := a.TryLock(ctx, "other", "", func(context.Context) { t.Error("it ran") })
				must.Fail(t, err, locks.ErrUnlocked)
			}()
		}))
		<-done
	})
}

// TestElectWaitsForInner: a lock is renewed, and not released, until the functions of the locks
// that were taken within have returned.
func TestElectWaitsForInner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockstest.NewMemory()
		e := newElect(store, "p")
		defer e.Close()
		slowly := func(ctx context.Context) {
			<-ctx.Done()
			time.Sleep(time.Minute)
			if r := store.Record("k"); !r.IsLocked() || !r.Expires.After(time.Now()) {
				t.Errorf("the lock around it is free: %+v", r)
			}
		}
		began := time.Now()
		must.Succeed(t, e.Lock(t.Context(), "k", "", func(ctx context.Context) {
			must.Get(e.TryLock(ctx, "l", "", slowly))(t)
			go func() { _ = e.Lock(ctx, "k", "", slowly) }()
			time.Sleep(time.Second)
		}))
		if took := time.Since(began); took < time.Minute || store.Record("l").IsLocked() {
			t.Errorf("released after %s: %+v", took, store.Record("l"))
		}
	})
}

// TestElectVerySlowRenewals: the reply to each renewal takes more than a third of the TTL. The
// lock is kept.
func TestElectVerySlowRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newElect(&slowRenew{Memory: lockstest.NewMemory()}, "a")
		defer e.Close()
		must.Succeed(t, e.Lock(t.Context(), "k", "", func(ctx context.Context) {
			time.Sleep(5 * time.Minute)
			must.Succeed(t, locks.Check(ctx))
		}))
	})
}

type slowRenew struct{ *lockstest.Memory }

func (s *slowRenew) Renew(ctx context.Context, name string, id bson.ObjectID) (locks.Record, error) {
	r, err := s.Memory.Renew(ctx, name, id)
	select {
	case <-time.After(3500 * time.Millisecond):
		return r, err
	case <-ctx.Done():
		return locks.Record{}, locks.ErrUnavailable
	}
}

// TestRoleClose: Close ends a Role that waits for its next try at once.
func TestRoleClose(t *testing.T) {
	for _, lead := range []func(context.Context){nil, func(context.Context) {}} {
		synctest.Test(t, func(t *testing.T) {
			store := lockstest.NewMemory()
			e := locks.NewElect(locks.ElectConfig{Store: store, Process: "a", TTL: time.Hour})
			r := &locks.Role{Elect: e, Name: "r", OnLead: lead}
			ended := make(chan error, 1)
			go func() { ended <- r.Run(t.Context()) }()
			time.Sleep(time.Second)
			began := time.Now()
			e.Close()
			must.Fail(t, <-ended, locks.ErrClosed)
			if took := time.Since(began); took > time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}
