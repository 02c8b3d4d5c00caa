package locks_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
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

func newElect(store locks.Store, process string) *locks.Elect {
	return locks.NewElect(locks.ElectConfig{Store: store, Process: process})
}

func until(ctx context.Context) { <-ctx.Done() }

// TestElect: the function runs while its process has the lock, for longer than the TTL. The
// next one has it at most an interval after its release, with a larger token.
func TestElect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockstest.NewMemory()
		store.Skew(-time.Hour)
		a, b := newElect(store, "a"), newElect(store, "b")
		defer a.Close()
		defer b.Close()
		must.Succeed(t, a.Lock(t.Context(), "k", "mirror", func(ctx context.Context) {
			got, err := b.TryLock(ctx, "k", "", until)
			if got || err != nil || locks.Token(ctx) != 1 {
				t.Errorf("b: %t, %v, a's token %d", got, err, locks.Token(ctx))
			}
			time.Sleep(time.Hour)
			must.Succeed(t, locks.Check(ctx))
			if list := must.Get(b.Locked(ctx))(t); len(list) != 1 || list[0].Why != "mirror" || list[0].Process != "a" || list[0].Renewals != 1799 && list[0].Renewals != 1800 {
				t.Errorf("%+v", list)
			}
			if !slices.Equal(a.Holding(), []string{"k"}) || len(b.Holding()) > 0 {
				t.Errorf("a has %q, b %q", a.Holding(), b.Holding())
			}
		}))
		began := time.Now()
		must.Succeed(t, b.Lock(t.Context(), "k", "", func(ctx context.Context) {
			if locks.Token(ctx) != 2 || time.Since(began) > 2*time.Second {
				t.Errorf("token %d after %s", locks.Token(ctx), time.Since(began))
			}
		}))
		if len(must.Get(b.Locked(t.Context()))(t))+len(b.Holding()) > 0 {
			t.Error("it is still locked")
		}
	})
}

// TestElectEndsBeforeExpiry: renewals fail, hang, or their replies are lost. The context ends
// before another process can have the lock, and that one has it within the TTL and two intervals.
func TestElectEndsBeforeExpiry(t *testing.T) {
	for name, fault := range map[string]func(ctx context.Context) (bool, error){
		"fail": func(context.Context) (bool, error) { return false, locks.ErrUnavailable },
		"hang": func(ctx context.Context) (bool, error) { <-ctx.Done(); return false, ctx.Err() },
		"slow": func(context.Context) (bool, error) { time.Sleep(9 * time.Second); return true, nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := lockstest.NewMemory()
				a, b := newElect(store, "a"), newElect(store, "b")
				defer a.Close()
				defer b.Close()
				var cut time.Time
				err := a.Lock(t.Context(), "k", "", func(ctx context.Context) {
					time.Sleep(time.Minute + time.Second)
					cut = time.Now()
					store.Fail(func(ctx context.Context, call string) (bool, error) {
						switch call {
						case lockstest.Renew:
							return fault(ctx)
						case lockstest.Release:
							return false, locks.ErrUnavailable
						}
						return true, nil
					})
					<-ctx.Done()
					if r := store.Record("k"); r.Process != "a" || time.Until(r.Expires) < time.Second || time.Since(cut) > 8*time.Second {
						t.Errorf("its context ended after %s, the lock %s later", time.Since(cut), time.Until(r.Expires))
					}
					must.Fail(t, locks.Check(ctx), locks.ErrExpired)
				})
				must.Fail(t, err, locks.ErrExpired)
				store.Fail(nil)
				must.Succeed(t, b.Lock(t.Context(), "k", "", func(ctx context.Context) {
					if took := time.Since(cut); took > 14*time.Second || locks.Token(ctx) != 2 {
						t.Errorf("b has it after %s, token %d", took, locks.Token(ctx))
					}
				}))
			})
		})
	}
}

// TestElectSlowRenewals: each renewal takes a second before it is executed. The lock is
// kept, and its context ends 8 s after the last renewal was sent.
func TestElectSlowRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockstest.NewMemory()
		e := newElect(store, "a")
		defer e.Close()
		var sent atomic.Int64
		var cut atomic.Bool
		store.Fail(func(_ context.Context, call string) (bool, error) {
			if call == lockstest.Renew {
				if cut.Load() {
					return false, locks.ErrUnavailable
				}
				sent.Store(time.Now().UnixNano())
				time.Sleep(time.Second)
			}
			return true, nil
		})
		must.Fail(t, e.Lock(t.Context(), "k", "", func(ctx context.Context) {
			time.Sleep(time.Minute)
			must.Succeed(t, locks.Check(ctx))
			cut.Store(true)
			<-ctx.Done()
			if d := time.Since(time.Unix(0, sent.Load())); d > 8*time.Second {
				t.Errorf("it ended %s after the last renewal was sent", d)
			}
		}), locks.ErrExpired)
	})
}

// TestElectHangingRenewal: one renewal hangs. The next one is in time.
func TestElectHangingRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockstest.NewMemory()
		e := newElect(store, "a")
		defer e.Close()
		store.Fail(func(ctx context.Context, call string) (bool, error) {
			if call == lockstest.Renew && store.Calls(call)%3 == 0 {
				<-ctx.Done()
				return false, ctx.Err()
			}
			return true, nil
		})
		must.Succeed(t, e.Lock(t.Context(), "k", "", func(ctx context.Context) {
			time.Sleep(time.Hour)
			must.Succeed(t, locks.Check(ctx))
		}))
	})
}

// TestElectLostReplies: every second reply is lost, of whatever call. Locks are got, kept and
// released all the same, in one term each.
func TestElectLostReplies(t *testing.T) {
	for _, executed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := lockstest.NewMemory()
			var n atomic.Int64
			store.Fail(func(context.Context, string) (bool, error) {
				if n.Add(1)%2 == 1 {
					return executed, locks.ErrUnavailable
				}
				return true, nil
			})
			e := newElect(store, "a")
			defer e.Close()
			for range 20 {
				must.Succeed(t, e.Lock(t.Context(), "k", "", func(ctx context.Context) {
					term := locks.Token(ctx)
					time.Sleep(time.Minute)
					if r := store.Record("k"); !r.IsLocked() || r.Term != term || locks.Check(ctx) != nil {
						t.Errorf("executed %t: %+v, %v", executed, r, locks.Check(ctx))
					}
				}))
			}
		})
	}
}

// TestElectReleasedByHand: the holder of a lock that was released, or overtaken, finds out with its
// next renewal, and does not release that of the next one.
func TestElectReleasedByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockstest.NewMemory()
		a, b := newElect(store, "a"), newElect(store, "b")
		defer b.Close()
		err := a.Lock(t.Context(), "k", "", func(ctx context.Context) {
			must.Succeed(t, store.Release(ctx, "k", store.Record("k").ID))
			began := time.Now()
			if got, err := b.TryLock(t.Context(), "k", "", until); !got || err != nil { //nolint:contextcheck // it is another process
				t.Errorf("b: %t, %v", got, err)
			}
			<-ctx.Done()
			if time.Since(began) > 2*time.Second {
				t.Errorf("it found out after %s", time.Since(began))
			}
		})
		must.Fail(t, err, locks.ErrLost)
		a.Close()
		if r := store.Record("k"); !r.IsLocked() || r.Process != "b" || r.Term != 2 {
			t.Errorf("%+v", r)
		}
	})
}

// TestElectReentrant: a function can take its own lock, and that of a function around it,
// again. Another one waits.
func TestElectReentrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newElect(lockstest.NewMemory(), "a")
		defer e.Close()
		ran := 0
		must.Succeed(t, e.Lock(t.Context(), "k", "", func(ctx context.Context) {
			must.Succeed(t, e.Lock(ctx, "l", "", func(ctx context.Context) {
				must.Succeed(t, e.Lock(ctx, "k", "", func(context.Context) { ran++ }))
			}))
			short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			must.Fail(t, e.Lock(short, "k", "", func(context.Context) { ran++ }), context.DeadlineExceeded) //nolint:contextcheck // without the lock
		}))
		if ran != 1 {
			t.Errorf("%d ran", ran)
		}
	})
}

// TestElectUnlock: Unlock and Close end the functions, wait for them, and release. The lock is
// renewed for as long as they take, however long.
func TestElectUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockstest.NewMemory()
		a, b := newElect(store, "a"), newElect(store, "b")
		defer b.Close()
		why := make(chan error, 3)
		slowly := func(key string) func(context.Context) {
			return func(ctx context.Context) {
				<-ctx.Done()
				why <- context.Cause(ctx)
				time.Sleep(time.Minute)
				if r := store.Record(key); !r.IsLocked() || !r.Expires.After(time.Now()) || r.Term != locks.Token(ctx) {
					t.Errorf("after a minute: %+v", r)
				}
			}
		}
		for _, key := range []string{"k", "l", "m"} {
			if got, err := a.TryLock(t.Context(), key, "", slowly(key)); !got || err != nil {
				t.Fatal(got, err)
			}
		}
		waiting := make(chan error, 1)
		go func() { waiting <- a.Lock(t.Context(), "k", "", until) }()
		time.Sleep(10 * time.Second)
		began := time.Now()
		if !a.Unlock("k") || time.Since(began) != time.Minute || a.Unlock("none") {
			t.Errorf("it took %s", time.Since(began))
		}
		must.Fail(t, <-why, locks.ErrUnlocked)
		time.Sleep(5 * time.Second) // the one that waits has it
		if !slices.Equal(a.Holding(), []string{"k", "l", "m"}) || store.Record("k").Term != 2 {
			t.Errorf("%q, %+v", a.Holding(), store.Record("k"))
		}
		a.Close()
		must.Fail(t, <-waiting, locks.ErrClosed)
		must.Fail(t, <-why, locks.ErrClosed)
		if left := must.Get(b.Locked(t.Context()))(t); len(left)+len(a.Holding()) > 0 {
			t.Errorf("%+v", left)
		}
		must.Fail(t, a.Lock(t.Context(), "k", "", until), locks.ErrClosed)
	})
}

// TestElectCutOff: a process that cannot acquire a lock says why when its context ends, and
// leaves nothing.
func TestElectCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockstest.NewMemory()
		store.Fail(func(_ context.Context, call string) (bool, error) {
			if call == lockstest.Acquire {
				return true, locks.ErrUnavailable
			}
			return true, nil
		})
		e := newElect(store, "a")
		defer e.Close()
		enough := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, enough)
		defer cancel()
		if err := e.Lock(ctx, "k", "", until); !errors.Is(err, enough) || store.Record("k").IsLocked() {
			t.Errorf("%v, %+v", err, store.Record("k"))
		}
		if got, err := e.TryLock(t.Context(), "k", "", until); got || !errors.Is(err, locks.ErrUnavailable) || store.Record("k").IsLocked() {
			t.Errorf("%t, %v, %+v", got, err, store.Record("k"))
		}
	})
}

// TestEnoughDuringCall: whoever stops waiting while the store is asked gets the reason of that, not what the store made of it.
func TestEnoughDuringCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockstest.NewMemory()
		store.Fail(func(ctx context.Context, call string) (bool, error) {
			if call != lockstest.Acquire {
				return true, nil
			}
			<-ctx.Done()
			return false, fmt.Errorf("%w: %w", locks.ErrUnavailable, context.Cause(ctx))
		})
		e := newElect(store, "a")
		defer e.Close()
		enough := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, enough)
		defer cancel()
		if err := e.Lock(ctx, "k", "", until); !errors.Is(err, enough) || errors.Is(err, locks.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	})
}

// TestContenders: 1,000 locks, 20 contenders, a store that loses replies and is away at times.
func TestContenders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockstest.NewMemory()
		var n atomic.Int64
		store.Fail(func(context.Context, string) (bool, error) {
			if i := n.Add(1); i%97 == 0 {
				return i%2 == 0, locks.ErrUnavailable
			}
			return true, nil
		})
		for i, got := range lockstest.Contend(t, 1000, 20, time.Minute, locks.ElectConfig{Store: store}) {
			if got < 100 {
				t.Errorf("contender %d had a lock %d times", i, got)
			}
		}
		lockstest.Contend(t, 2, 20, time.Minute, locks.ElectConfig{Store: store})
	})
}

// TestRole: one leads, the others follow, and are told once per change. When the leader is cut
// off it steps down before another one leads.
func TestRole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockstest.NewMemory()
		var leaders atomic.Int32
		var mu sync.Mutex
		told := map[string][]string{}
		note := func(p, what string) {
			mu.Lock()
			defer mu.Unlock()
			told[p] = append(told[p], what)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		var all sync.WaitGroup
		for _, p := range []string{"a", "b", "observer"} {
			e := newElect(&cut{Memory: store, process: p}, p)
			r := &locks.Role{Elect: e, Name: "dc/naming", OnFollow: func(r locks.Record) {
				if !r.IsLocked() {
					return // as an observer may see it for a moment
				}
				note(p, "follow "+r.Process+" "+strconv.FormatInt(r.Term, 10))
			}}
			if p != "observer" {
				r.OnLead = func(ctx context.Context) {
					if n := leaders.Add(1); n != 1 {
						t.Errorf("%d lead", n)
					}
					note(p, "lead "+strconv.FormatInt(locks.Token(ctx), 10))
					<-ctx.Done()
					leaders.Add(-1)
				}
			}
			all.Go(func() { _ = r.Run(ctx); e.Close() })
			time.Sleep(5 * time.Second)
		}
		time.Sleep(time.Minute)
		partition.Store(true) // a is cut off
		time.Sleep(time.Minute)
		partition.Store(false)
		time.Sleep(10 * time.Second)
		cancel(nil)
		all.Wait()
		for p, want := range map[string][]string{"a": {"lead 1", "follow b 2"}, "b": {"follow a 1", "lead 2"}, "observer": {"follow a 1", "follow b 2"}} {
			if !slices.Equal(told[p], want) {
				t.Errorf("%s: %q, want %q", p, told[p], want)
			}
		}
	})
}

// partition cuts process a off.
var partition atomic.Bool

// cut is the store as seen by a process that can be cut off.
type cut struct {
	*lockstest.Memory
	process string
}

func (c *cut) Renew(ctx context.Context, name string, id bson.ObjectID) (locks.Record, error) {
	if partition.Load() && c.process == "a" {
		return locks.Record{}, locks.ErrUnavailable
	}
	return c.Memory.Renew(ctx, name, id)
}

func (c *cut) Acquire(ctx context.Context, claim locks.Claim) (locks.Record, error) {
	if partition.Load() && c.process == "a" {
		return locks.Record{}, locks.ErrUnavailable
	}
	return c.Memory.Acquire(ctx, claim)
}
