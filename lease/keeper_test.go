package lease

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

var errLost = &mongo.LostError{Host: "db1", Err: errors.New("connection reset")}

func isLost(err error) bool {
	_, ok := errors.AsType[*mongo.LostError](err)
	return ok
}

// hang is a store that does not answer.
func hang(ctx context.Context, _ string) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}

// skews are how far the store's clock is ahead of the clients'.
var skews = map[string]time.Duration{"same clock": 0, "an hour ahead": time.Hour, "an hour behind": -time.Hour}

// TestOneHolder: a lease is kept for as long as it is renewed, whatever the clients' clocks
// say. When its holder dies, another process has it within the TTL and two intervals.
func TestOneHolder(t *testing.T) {
	for name, skew := range skews {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory(t)
				m.skew = skew
				a, b := m.process("a"), m.process("b")
				must.Succeed(t, a.acquire(Claim{Why: "mirror"}))
				time.Sleep(time.Hour + time.Second)
				must.Fail(t, b.acquire(Claim{}), ErrHeld)
				must.Succeed(t, a.ctx.Err())
				granted := m.record().Grant
				if granted.Why != "mirror" || granted.Duration != 1800 || granted.Expires.Time().Sub(m.now()) < 7*time.Second || m.now().Sub(granted.Granted.Time()) != time.Hour+time.Second {
					t.Errorf("after an hour: %+v", granted)
				}
				m.fail(func(ctx context.Context, name string) (bool, error) {
					if name == "update" {
						return hang(ctx, name) // of a, which is dead
					}
					return true, nil
				})
				died := time.Now()
				<-a.ctx.Done()
				must.Fail(t, context.Cause(a.ctx), ErrExpired)
				if took := time.Since(died); took > 8*time.Second {
					t.Errorf("its context ended after %s", took)
				}
				m.fail(nil)
				must.Succeed(t, b.standBy(2*time.Second))
				took := time.Since(died)
				if took > DefaultTTL+4*time.Second || m.record().Term != 2 || m.record().Grant.Duration > 1 {
					t.Errorf("b has it after %s: %+v", took, m.record())
				}
				must.Fail(t, a.lease.Check(t.Context()), ErrFenced)
			})
		})
	}
}

// TestEndsBeforeExpiry: when renewals hang, the process stops using its lease before the
// store lets another one have it, counted from when the last renewal that succeeded was
// sent, not from its reply.
func TestEndsBeforeExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t)
		a := m.process("a")
		var sent atomic.Int64
		m.fail(func(_ context.Context, name string) (bool, error) {
			if name == "update" {
				sent.Store(time.Now().UnixNano())
				time.Sleep(time.Second) // each takes a second, then is executed
			}
			return true, nil
		})
		must.Succeed(t, a.acquire(Claim{}))
		time.Sleep(time.Minute)
		must.Succeed(t, a.ctx.Err())
		synctest.Wait()
		m.fail(hang) // the one in flight still succeeds
		<-a.ctx.Done()
		ended, last, expires := time.Now(), time.Unix(0, sent.Load()), m.record().Grant.Expires.Time()
		if ended.Sub(last) > 9*time.Second || !ended.Before(expires.Add(-time.Second)) {
			t.Errorf("last renewal sent at %s, it expires at %s, the context ended at %s", last, expires, ended)
		}
		// What it sends from now on is not sent.
		before := m.updates()
		_, err := a.lease.Own().Write(t.Context(), mongo.Command{DB: "db", Body: m.doc()})
		must.Fail(t, err, ErrExpired)
		if m.updates() != before {
			t.Error("it was sent")
		}
	})
}

// TestWakesUp: a process that was suspended sends nothing for which its lease is over, even
// before a timer has told it.
func TestWakesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t)
		a := m.process("a")
		must.Succeed(t, a.acquire(Claim{}))
		a.keeper.mu.Lock()
		a.keeper.stop()
		a.keeper.until = time.Now().Add(-time.Millisecond) // as after SIGCONT
		a.keeper.mu.Unlock()
		must.Succeed(t, a.ctx.Err())
		sent := m.updates()
		must.Fail(t, move(t.Context(), a.lease, a.lease.Own()), ErrExpired)
		must.Fail(t, context.Cause(a.ctx), ErrExpired)
		must.Fail(t, a.lease.Check(t.Context()), ErrExpired)
		if m.updates() != sent {
			t.Error("it was sent")
		}
	})
}

// TestSuspendedMachine: the wall clock counts, too, as the monotonic one stops while a
// machine is suspended.
func TestSuspendedMachine(t *testing.T) {
	now := time.Now()
	if isOver(now.Add(time.Minute)) || !isOver(now.Add(-time.Minute)) || !isOver(now.Add(-time.Minute).Round(0)) {
		t.Error("isOver is wrong")
	}
}

// TestLostReplies: whether the reply to a grant, a renewal or a release is lost before or
// after it was executed, the holder knows what it has.
func TestLostReplies(t *testing.T) {
	for _, executed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(t)
			a, b := m.process("a"), m.process("b")
			var n atomic.Int64
			m.fail(func(_ context.Context, name string) (bool, error) {
				if n.Add(1)%2 == 0 && name == "update" {
					return executed, errLost
				}
				return true, nil
			})
			must.Succeed(t, a.acquire(Claim{}))
			term := m.record().Term
			time.Sleep(time.Minute)
			must.Succeed(t, a.ctx.Err())
			must.Fail(t, b.acquire(Claim{}), ErrHeld)
			if m.record().Term != term || term != 1 || a.failed.Load() == 0 {
				t.Errorf("executed %t: term %d, first %d, %d renewals failed", executed, m.record().Term, term, a.failed.Load())
			}
		})
	}
}

// TestRelease: a lease that was given back is free at once. Its term is not used again, and
// a renewal that comes late does not bring it back.
func TestRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t)
		a, b := m.process("a"), m.process("b")
		must.Succeed(t, a.acquire(Claim{}))
		grant := a.keeper.grant
		a.end()
		must.Succeed(t, a.keeper.Release(t.Context()))
		if s := must.Get(b.watch.Look(t.Context(), m, m.record()))(t); !s.Free {
			t.Errorf("it is not free: %+v", s)
		}
		late := func() int64 {
			return must.Get(a.keeper.change(t.Context(), func(dst []byte) []byte {
				return bsoncore.AppendObjectIDElement(appendTerm(1)(dst), fieldLease+"."+fieldID, grant)
			}, 1, bson.D{{Key: fieldLease + "." + fieldExpires, Value: until(time.Hour)}}))(t)
		}
		if n := late(); n != 0 || m.record().Grant.Expires.Time().After(m.now()) {
			t.Errorf("it was renewed after it was given back: %d, %+v", n, m.record())
		}
		must.Succeed(t, b.acquire(Claim{}))
		n := late()
		if now := m.record(); n != 0 || now.Term != 2 || now.Holder != "b" {
			t.Errorf("%d documents, %+v", n, now)
		}
		// b's lease is not a's to give back.
		must.Succeed(t, a.keeper.Release(t.Context()))
		if m.record().Grant.Released {
			t.Error("it released b's lease")
		}
	})
}

// TestTakeOver: a process takes the lease over at once; the holder finds out with its next
// renewal. Acquiring one's own again needs no time, and keeps since when one has it.
func TestTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t)
		a, b := m.process("a"), m.process("b")
		must.Succeed(t, a.acquire(Claim{}))
		time.Sleep(5 * time.Second)
		granted := m.record().Grant
		must.Succeed(t, a.acquire(Claim{}))
		if now := m.record(); now.Term != 2 || now.Grant.Granted != granted.Granted || now.Grant.ID == granted.ID || now.Grant.Duration != 0 {
			t.Errorf("acquired again: %+v, before %+v", now, granted)
		}
		must.Succeed(t, b.acquire(Claim{TakeOver: true}))
		if now := m.record(); now.Term != 3 || now.Grant.Granted == granted.Granted {
			t.Errorf("taken over: %+v", now)
		}
		began := time.Now()
		<-a.ctx.Done()
		must.Fail(t, context.Cause(a.ctx), ErrFenced)
		if took := time.Since(began); took > 2*time.Second || !strings.Contains(context.Cause(a.ctx).Error(), "b in term 3") {
			t.Errorf("after %s: %v", took, context.Cause(a.ctx))
		}
		must.Succeed(t, b.ctx.Err())
	})
}

// TestElections: the store elects another primary, whose clock is an hour off, or which has
// not got the last renewals.
func TestElections(t *testing.T) {
	t.Run("clock ahead", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(t)
			a, b := m.process("a"), m.process("b")
			must.Succeed(t, a.acquire(Claim{}))
			time.Sleep(3 * time.Second)
			m.elect(time.Hour, nil)
			// Before a has renewed it there, it has ended by that clock. a finds out.
			must.Succeed(t, b.acquire(Claim{}))
			<-a.ctx.Done()
			must.Fail(t, context.Cause(a.ctx), ErrFenced)
			must.Fail(t, a.lease.Check(t.Context()), ErrFenced)
		})
	})
	t.Run("clock back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(t)
			a, b := m.process("a"), m.process("b")
			must.Succeed(t, a.acquire(Claim{}))
			time.Sleep(3 * time.Second)
			m.elect(-time.Hour, nil)
			time.Sleep(time.Minute)
			must.Succeed(t, a.ctx.Err()) // it goes on
			must.Fail(t, b.acquire(Claim{}), ErrHeld)
			m.elect(-2*time.Hour, nil) // a dies, and has an hour left by this clock
			m.fail(func(_ context.Context, name string) (bool, error) { return name != "update", nil })
			<-a.ctx.Done()
			m.fail(nil)
			began := time.Now()
			must.Succeed(t, b.standBy(2*time.Second))
			if took := time.Since(began); took > DefaultTTL*3/2+2*time.Second {
				t.Errorf("b has it after %s", took)
			}
		})
	})
	t.Run("renewals rolled back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(t)
			a, b := m.process("a"), m.process("b")
			must.Succeed(t, a.acquire(Claim{}))
			was := m.doc()
			time.Sleep(time.Minute + time.Second) // in between two renewals
			m.elect(0, was)
			must.Succeed(t, b.acquire(Claim{})) // a minute later it had ended
			<-a.ctx.Done()
			must.Fail(t, context.Cause(a.ctx), ErrFenced)
		})
	})
	t.Run("grant rolled back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(t)
			a := m.process("a")
			was := m.doc()
			m.fail(func(_ context.Context, name string) (bool, error) {
				if m.updates() == 2 && name == "update" { // the one that waits for a majority
					m.elect(0, was)
				}
				return true, nil
			})
			must.Fail(t, a.acquire(Claim{}), ErrRewound)
		})
	})
}

// TestSlowMajority: while the grant waits for a majority, for longer than the TTL, the lease
// is renewed: no other process acquires it meanwhile, and waits for the same majority.
func TestSlowMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t)
		a, b := m.process("a"), m.process("b")
		m.fail(func(_ context.Context, name string) (bool, error) {
			if name == "update" && m.updates() == 2 {
				time.Sleep(45 * time.Second)
			}
			return true, nil
		})
		acquired := make(chan error, 1)
		go func() { acquired <- a.acquire(Claim{}) }()
		time.Sleep(40 * time.Second)
		must.Fail(t, b.acquire(Claim{}), ErrHeld)
		must.Succeed(t, <-acquired)
		must.Succeed(t, a.ctx.Err())
	})
}

// TestOlderReleases: a document of a release that knew no grants is free. A process of such
// a release that takes the lease over keeps it while its document changes.
func TestOlderReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t)
		older := func(term int64) {
			m.set(func(dst []byte) []byte { return bsoncore.AppendStringElement(appendTerm(term)(dst), "holder", "old") })
		}
		older(7)
		a := m.process("a")
		must.Succeed(t, a.acquire(Claim{}))
		if now := m.record(); now.Term != 8 || now.Superseded || now.Grant.ID.IsZero() {
			t.Errorf("%+v", now)
		}
		older(9)
		<-a.ctx.Done()
		must.Fail(t, context.Cause(a.ctx), ErrFenced)
		if now := m.record(); !now.Superseded || now.Grant != (Grant{}) {
			t.Errorf("%+v", now)
		}
		for n := range 100 { // its checkpoint advances
			m.set(func(dst []byte) []byte { return bsoncore.AppendInt64Element(dst, "writes", int64(n)) })
			if s := must.Get(a.watch.Look(t.Context(), m, m.record()))(t); s.Free {
				t.Fatalf("free after %d s", n*10)
			}
			time.Sleep(10 * time.Second)
		}
		a.end()
		a.lead()
		began := time.Now()
		must.Succeed(t, a.standBy(2*time.Second))
		if took := time.Since(began); took > quietFor+2*time.Second || m.record().Term != 10 {
			t.Errorf("after %s: %+v", took, m.record())
		}
	})
}
