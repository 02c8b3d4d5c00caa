package lease

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestAcquireSilent: the target answers all but one command with which a lease is acquired.
// Acquire ends, and does not know the outcome of that; the next one acquires the lease, although
// the unanswered command is executed before it, after it, or never.
func TestAcquireSilent(t *testing.T) {
	for _, executed := range []string{"at once", "before the next", "after the next", "never"} {
		for silent := range 2 { // the grant, and what waits for the majority
			synctest.Test(t, func(t *testing.T) {
				d := &defaulting{memory: newMemory(t), unanswered: map[int]bool{silent: true}}
				p := d.process("a") // its renewals are answered
				var n atomic.Int64
				d.fail(func(_ context.Context, name string) (bool, error) {
					if name != "update" {
						return true, nil
					}
					return n.Add(1)-1 != int64(silent) || executed == "at once", nil
				})
				began := time.Now()
				err := d.acquire(patient(t, p))
				if took := time.Since(began); err == nil || took != AnswerWithin || servererr.Classify(err) != servererr.Lost && context.Cause(p.ctx) == nil {
					t.Fatalf("%d, executed %s: %v after %s", silent, executed, err, took)
				}
				d.fail(nil)
				late := d.sent[silent]
				late.SendBy = time.Time{} // it was sent
				if executed == "before the next" {
					must.Get(d.memory.Call(t.Context(), late))(t)
				}
				p.end()
				p.lead()
				must.Succeed(t, d.acquire(p))
				has := d.record()
				if executed == "after the next" {
					must.Get(d.memory.Call(t.Context(), late))(t)
				}
				now := d.record()
				if now.Grant.Duration > has.Grant.Duration { // it was renewed meanwhile
					has.Grant.Duration, has.Grant.Expires = now.Grant.Duration, now.Grant.Expires
				}
				if now.Grant != has.Grant || now.Term != p.lease.Term() || now.Grant.ID != p.lease.grant {
					t.Errorf("%d, executed %s: %+v, it acquired %+v", silent, executed, now, has)
				}
			})
		}
	}
}

// patient makes a process give up in the end, which it need not.
func patient(t *testing.T, p *process) *process {
	ctx, cancel := context.WithTimeout(p.ctx, time.Hour)
	t.Cleanup(cancel)
	p.ctx = ctx
	return p
}

// TestAcquireUnread: reads that are not answered do not make Acquire wait for ever either.
func TestAcquireUnread(t *testing.T) {
	for _, name := range []string{"find", "hello"} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory(t)
			must.Succeed(t, m.process("other").acquire(Claim{}))
			time.Sleep(time.Second)
			p := m.process("a")
			m.fail(func(ctx context.Context, sent string) (bool, error) {
				if sent != name {
					return true, nil
				}
				return hang(ctx, sent)
			})
			began := time.Now()
			err := patient(t, p).acquire(Claim{TakeOver: name == "find"})
			if took := time.Since(began); servererr.Classify(err) != servererr.Lost || took != AnswerWithin {
				t.Errorf("%s: %v after %s", name, err, took)
			}
			m.fail(nil)
		})
	}
}
