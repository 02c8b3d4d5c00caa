package applier

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestCutAfterFailover: a cut for which lanes were idle during a failover of the target is followed by the next one soon, whether it was
// made or refused; and a requested one that was refused is tried again before whoever waits for it gives up.
func TestCutAfterFailover(t *testing.T) {
	t.Parallel()
	const failover = 20 * time.Second
	d := (*dispatcher)(nil)
	refuse := func() {
		must.Succeed(t, d.leaveOutCut(t.Context(), servererr.New(servererr.NotWritablePrimary, "a failover"), failover))
	}
	for name, tt := range map[string]struct {
		every  time.Duration
		after  func()
		within time.Duration
	}{
		"made":                      {10 * time.Second, func() { d.restAfter(failover) }, time.Minute},
		"made, the interval longer": {10 * time.Minute, func() { d.restAfter(failover) }, 10 * time.Minute},
		"refused":                   {10 * time.Second, refuse, time.Minute},
		"requested and refused":     {10 * time.Second, func() { d.cuts.asked = true; refuse() }, 5 * time.Second},
		"only requested":            {0, func() { d.cuts.asked = true; refuse() }, 5 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			d = newDispatcher(fakeApplier(t, &nullTarget{}, 2, func(c *Config) { c.CutEvery = tt.every }))
			due, end := d.beginCuts()
			defer end()
			if tt.every > 0 {
				<-due
			}
			began := time.Now()
			tt.after()
			<-due
			if took := time.Since(began); took > tt.within {
				t.Errorf("%s: the next cut is due after %s, want %s", name, took, tt.within)
			}
			if late := time.Until(d.cuts.notBefore); late > 0 {
				t.Errorf("%s: a requested cut is not made for another %s", name, late)
			}
		})
	}
}
