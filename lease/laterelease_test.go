package lease

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestLateRelease: giving a lease back is a write that the server may execute late, as when its disk stalls. It does not give back a later
// lease of the process: an agent runs a link again, under the same name.
func TestLateRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &defaulting{memory: newMemory(t)}
		first, next := d.processOn("agent"), d.processOn("agent")
		must.Succeed(t, d.acquire(first))
		time.Sleep(7 * time.Second) // it was renewed
		synctest.Wait()
		first.end()
		before := d.updates()
		must.Succeed(t, first.keeper.Release(t.Context()))
		d.mu.Lock()
		release := d.sent[before]
		d.mu.Unlock()
		must.Succeed(t, d.acquire(next))
		must.Get(d.memory.Call(t.Context(), release))(t) // the server had not answered, and executes it again
		if now := d.record(); now.Term != 2 || now.Grant.Released {
			t.Errorf("the next lease was given back: %+v", now)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if err := next.keeper.Err(); err != nil {
			t.Errorf("the next lease is over: %v", err)
		}
		next.end()
		must.Succeed(t, next.keeper.Release(t.Context()))
		if !d.record().Grant.Released {
			t.Error("the next lease was not given back")
		}
	})
}
