package lease

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestLateRenewal: a renewal that the server executes late, by the time when it began, does not
// make the lease end before its holder stops using it.
func TestLateRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &defaulting{memory: newMemory(t)}
		p := d.processOn("a")
		must.Succeed(t, d.acquire(p))
		grants := d.updates()
		var from time.Time
		d.fail(func(ctx context.Context, name string) (bool, error) {
			if name == "update" && d.updates() == grants+1 {
				from = time.Now()
				return hang(ctx, name) // it waits on the server, for a ticket
			}
			return true, nil
		})
		time.Sleep(7 * time.Second) // later ones have succeeded
		synctest.Wait()
		if from.IsZero() || d.record().Grant.Duration == 0 {
			t.Fatalf("no renewal is in flight: %+v", d.record())
		}
		d.fail(hang)
		<-p.ctx.Done()
		ended := time.Now()
		synctest.Wait()
		d.mu.Lock()
		late := d.sent[grants]
		number := func(cmd mongo.Command) int64 { return cmd.Docs[0].Lookup("q", "lease.termDuration", "$lt").Int64() }
		for _, cmd := range d.sent[grants:] {
			if number(cmd) < number(late) {
				late = cmd
			}
		}
		d.mu.Unlock()
		d.fail(nil)
		d.elect(-time.Since(from), nil) // $$NOW is that of when it began
		must.Get(d.memory.Call(t.Context(), late))(t)
		d.elect(0, nil)
		if expires := d.record().Grant.Expires.Time(); !ended.Before(expires) {
			t.Errorf("another process could have had it for %s when it stopped using it", ended.Sub(expires))
		}
	})
}

// slow is a store whose replies to updates come late, by what after says for each.
type slow struct {
	*memory
	after func(n int) time.Duration

	mu sync.Mutex
	n  int
}

func (s *slow) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	reply, err := s.memory.Call(ctx, cmd)
	if must.Get(cmd.Body.IndexErr(0))(s.t).Key() != "update" {
		return reply, err
	}
	s.mu.Lock()
	s.n++
	n := s.n
	s.mu.Unlock()
	select {
	case <-time.After(s.after(n)):
		return reply, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestSlowRenewals: each write takes seconds, less than the lease lasts. It is kept.
func TestSlowRenewals(t *testing.T) {
	for _, took := range []time.Duration{3 * time.Second, 5900 * time.Millisecond} {
		t.Run(took.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &slow{memory: newMemory(t), after: func(int) time.Duration { return took }}
				p := s.process("a")
				p.keeper.cfg.Target = s
				must.Succeed(t, p.acquire(Claim{}))
				time.Sleep(5 * time.Minute)
				if err := context.Cause(p.ctx); err != nil {
					t.Errorf("it is lost: %v", err)
				}
			})
		})
	}
}

// TestLateReply: the reply to a renewal comes after that to a later one, and says nothing about
// how long the lease lasts. It ends as the last one that succeeded says.
func TestLateReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{memory: newMemory(t), after: func(n int) time.Duration { return []time.Duration{5 * time.Second, 0, time.Hour}[min(n, 3)-1] }}
		p := s.process("a")
		p.keeper.cfg.Target = s
		must.Succeed(t, p.acquire(Claim{}))
		began := time.Now()
		<-p.ctx.Done()
		if took := time.Since(began); took != 12*time.Second {
			t.Errorf("it ended after %s: the second renewal was sent after 4 s", took)
		}
	})
}

// TestAcquireAfterLostTerm: the term that this process has seen is gone, in a rollback or a
// restore. The next one is above it.
func TestAcquireAfterLostTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t)
		p := m.process("a")
		l, _, err := Acquire(p.ctx, Config{
			Target: m, Retry: mongo.Retry{Again: again}, DB: "db", Collection: "c", ID: "a", Holder: p.name, Keeper: p.keeper, Claim: Claim{TTL: DefaultTTL},
		}, m.record(), 6)
		must.Succeed(t, err)
		if l.Term() <= 6 {
			t.Errorf("term %d", l.Term())
		}
	})
}

// TestReleaseUncertain: a lease that was granted, but the reply was lost, is given back, also
// if that has to be tried again.
func TestReleaseUncertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t)
		a, b := m.process("a"), m.process("b")
		ctx, cancel := context.WithCancelCause(a.ctx)
		a.ctx = ctx
		m.fail(func(_ context.Context, name string) (bool, error) {
			if name != "update" {
				return true, nil
			}
			cancel(nil) // it is told to end
			return true, errLost
		})
		if err := a.acquire(Claim{}); err == nil || m.record().Holder != "a" {
			t.Fatalf("%v, %+v", err, m.record())
		}
		a.end()
		failures := 3
		m.fail(func(_ context.Context, name string) (bool, error) {
			if failures--; failures > 0 && name == "update" {
				return false, errLost
			}
			return true, nil
		})
		must.Succeed(t, a.keeper.Release(t.Context()))
		must.Succeed(t, b.acquire(Claim{}))
	})
}
