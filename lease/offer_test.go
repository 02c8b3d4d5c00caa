package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestOffer: a lease that is offered is kept until a process accepts it, and by one that does
// not say so it is not acquired. Once it is not offered any more, nobody gets it, also not one
// that has still seen the offer.
func TestOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t)
		a, b, c := m.process("a"), m.process("b"), m.process("c")
		must.Succeed(t, a.acquire(Claim{}))
		must.Fail(t, b.acquire(Claim{AcceptOffer: true}), ErrHeld)
		must.Succeed(t, a.keeper.Offer(t.Context(), true))
		must.Fail(t, b.acquire(Claim{}), ErrHeld)
		time.Sleep(time.Minute)
		must.Succeed(t, context.Cause(a.ctx))
		if !m.record().Grant.Offered {
			t.Error("renewals end the offer")
		}
		// The offer ends between the look at it and the write.
		m.fail(func(ctx context.Context, name string) (bool, error) {
			if name == "update" {
				m.fail(nil)
				must.Succeed(t, a.keeper.Offer(ctx, false))
			}
			return true, nil
		})
		must.Fail(t, b.acquire(Claim{AcceptOffer: true}), ErrHeld)
		if r := m.record(); r.Holder != "a" || r.Grant.Offered {
			t.Errorf("%+v", r)
		}

		must.Succeed(t, a.keeper.Offer(t.Context(), true))
		must.Succeed(t, b.acquire(Claim{AcceptOffer: true}))
		must.Fail(t, c.acquire(Claim{AcceptOffer: true}), ErrHeld) // b does not offer it
		must.Succeed(t, a.keeper.Offer(t.Context(), false))        // it finds out at once
		must.Fail(t, context.Cause(a.ctx), ErrFenced)
		time.Sleep(time.Minute)
		if r := m.record(); r.Holder != "b" || r.Grant.Offered || context.Cause(b.ctx) != nil {
			t.Errorf("%+v, %v", r, context.Cause(b.ctx))
		}
	})
}
