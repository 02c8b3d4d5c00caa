package pipeline_test

import (
	"sync"
	"testing"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/resync"
)

// TestPartBeginsAfterEntry: a collection that an entry makes the link copy is not copied from a member that lacks that entry, although
// the rules prefer no member: it would be copied twice.
func TestPartBeginsAfterEntry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 3, Seed: 1}, mongosim.Options{Members: 1, Seed: 2})
	var mu sync.Mutex
	copies := 0
	w.observe = func(e event.Event) {
		if part, is := e.(resync.PartEvent); is {
			if _, created := part.Event.(checkpoint.Acquired); created {
				w.source.HealAll()
			}
		}
		if _, is := e.(resync.Began); is {
			mu.Lock()
			defer mu.Unlock()
			copies++
		}
	}
	w.play(`
		source insert shop.a 1..20
		start copy read=secondary exclude=shop.hidden
		await told consistent
		await running
		await caught-up
	`)
	for _, m := range w.source.Members() {
		if m != w.source.Primary() && m.Host() != w.links["a"].p.Snapshot().Resolver.Current {
			w.source.Isolate(m.ID())
		}
	}
	w.play(`
		source insert shop.hidden 1..10
		source run admin {"renameCollection": "shop.hidden", "to": "shop.shown"}
		await resync done shop.shown
		await caught-up
		equal
		drain
	`)
	if mu.Lock(); copies != 1 {
		t.Errorf("the collection was copied %d times", copies)
	}
	mu.Unlock()
}
