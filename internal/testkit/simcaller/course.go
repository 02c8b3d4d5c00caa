package simcaller

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// Lose calls write while commands go to a primary that is isolated, and then lets another
// member become primary, so that the set rolls the writes back.
func (c *Caller) Lose(ctx context.Context, t must.T, write func()) {
	t.Helper()
	must.Succeed(t, c.Set.AwaitSynced(ctx))
	old := must.Get(c.Set.AwaitPrimary(ctx))(t)
	c.Set.Isolate(old.ID())
	c.direct(old)
	write()
	c.direct(nil)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for p := c.Set.Primary(); p == nil || p == old; p = c.Set.Primary() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("no other primary")
		}
	}
	c.Set.HealAll()
	must.Succeed(t, c.Set.AwaitReady(ctx))
}

// RefuseEach calls run again and again. Each time another one of its commands is refused
// with a transient error, executed or not; run must succeed nevertheless.
func (c *Caller) RefuseEach(t must.T, run func() error) {
	t.Helper()
	for _, e := range []*servererr.Error{
		servererr.New(servererr.Interrupted, "operation was interrupted"),
		servererr.New(servererr.NoSuchTransaction, "it does not exist").WithLabels(servererr.LabelTransient),
		servererr.New(servererr.TemporarilyUnavailable, "no room"),
	} {
		for _, done := range []bool{false, true} {
			met := true
			for n := int64(1); met; n++ {
				var calls atomic.Int64
				met = false
				what := ""
				c.Intercept(func(cmd mongo.Command) (error, bool) {
					if calls.Add(1) != n {
						return nil, false
					}
					met, what = true, Name(cmd)
					if what == "commitTransaction" && (done || len(e.Labels) == 0) {
						return nil, false // its outcome would be unknown
					}
					return e, done
				})
				if err := run(); err != nil {
					t.Fatalf("command %d, %s, refused with %s, done: %t: %v", n, what, e.Code, done, err)
				}
			}
		}
	}
}
