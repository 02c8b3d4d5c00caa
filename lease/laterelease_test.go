package lease

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
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

// TestLateReleaseWithParts: the same where a part of the link, which has the Keeper of the link and terms of its own, has had more of them.
func TestLateReleaseWithParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &defaulting{memory: newMemory(t)}
		first, next := d.processOn("agent"), d.processOn("agent")
		must.Succeed(t, d.acquire(first))
		of := Record{Term: 50, Instance: "part"}
		d.docs["part"] = metadata.Document(func(dst []byte) []byte { return of.Append(metadata.ByID("part")(dst)) })
		part, _, err := Acquire(t.Context(), Config{
			Target: d, Retry: mongo.Retry{Again: again}, DB: "db", Collection: "c", ID: "part", Keeper: first.keeper,
		}, of, 0)
		must.Succeed(t, err)
		if part.Term() != 51 {
			t.Fatalf("the part is in term %d", part.Term())
		}
		first.end()
		before := d.updates()
		must.Succeed(t, first.keeper.Release(t.Context()))
		d.mu.Lock()
		release := d.sent[before]
		d.mu.Unlock()
		must.Succeed(t, d.acquire(next))
		must.Get(d.memory.Call(t.Context(), release))(t)
		if now := d.record(); now.Term != 2 || now.Grant.Released {
			t.Errorf("the next lease was given back: %+v", now)
		}
		next.end()
		must.Succeed(t, next.keeper.Release(t.Context()))
	})
}

// TestLateReleaseOfNone: a Keeper that has never asked for a lease gives none back: a process may end before that, and the agent runs its
// link again.
func TestLateReleaseOfNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &defaulting{memory: newMemory(t)}
		first, next := d.processOn("agent"), d.processOn("agent")
		first.end()
		must.Succeed(t, first.keeper.Release(t.Context()))
		must.Succeed(t, d.acquire(next))
		must.Succeed(t, first.keeper.Release(t.Context())) // as if the server had stalled, and executes it now
		if d.record().Grant.Released {
			t.Error("the next lease was given back")
		}
		next.end()
		must.Succeed(t, next.keeper.Release(t.Context()))
	})
}
