package pipeline_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/resync"
)

// play starts two sets and carries out the lines, as in a scenario.
func play(t *testing.T, lines string) *world {
	t.Helper()
	return playOn(t, 3, lines)
}

// toldOnce are the moods of a target whose test waits for the event that a collection is copied.
var toldOnce = mongosim.GentleMoods("an attempt that has stored that a collection is copied, and lost the reply, does not tell it, nor does the next")

// playOn does the same on sets with this many members.
func playOn(t *testing.T, members int, lines string) *world {
	t.Helper()
	source, target := mongosim.Options{Members: members, Seed: 1, TTLInterval: -1}, mongosim.Options{Members: members, Seed: 2, TTLInterval: -1}
	if strings.Contains(lines, "told copied shop.a") {
		target.Moods = toldOnce
	}
	if strings.Contains(lines, "told copy continues: another member") {
		source.Moods = mongosim.MoodsWithout("no-config", "the copy continues from another member")
	}
	w := newWorld(t, source, target)
	w.play(lines)
	return w
}

func (w *world) play(lines string) {
	w.t.Helper()
	for line := range strings.Lines(lines) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		says, err := w.act(line)
		if err != nil {
			w.fail("fault", line, err)
		}
		if line == "equal" && says != "equal" {
			w.t.Errorf("the sets differ: %s", says)
		}
	}
}

// awaitRequest waits until the request for a collection is done.
func (w *world) awaitRequest(l *link, ns string) {
	w.t.Helper()
	store, err := w.metadata()
	if err != nil {
		w.t.Fatal(err)
	}
	err = w.untilOf(l, ns+" to be copied again", func() bool {
		requests, err := request.New(store).Read(w.t.Context())
		return err == nil && slices.ContainsFunc(requests.Resync, func(r request.Resync) bool {
			return string(r.NS) == ns && r.State == request.Done
		})
	})
	if err != nil {
		w.fail("fault", "await the request", err)
	}
}

// TestResyncTakenOver: another process takes over the link while a collection is copied
// again. It continues that copy; the previous process does not touch it.
func TestResyncTakenOver(t *testing.T) {
	t.Parallel()
	w := play(t, `
		source insert shop.a 1..600
		source insert shop.b 1..10
		start copy flush=20 workers=1
		await running
		await caught-up
		limit 100
		resync shop.a
		await told copies again
		await resync copying shop.a
	`)
	// Before that, a command of the resync (drop, create) may be in flight when it is
	// fenced: then it is late, and the collection is copied once more.
	w.awaitDocuments()
	w.play("start b copy spool=other flush=20 workers=1")
	a, b := w.links["a"], w.links["b"]
	if err := w.until("the first one to be fenced", func() bool {
		select {
		case <-a.done:
			return true
		default:
			return false
		}
	}); err != nil {
		w.fail("fault", "", err)
	}
	if !errors.Is(a.err, lease.ErrFenced) {
		t.Errorf("it ended with: %v", a.err)
	}
	w.play("limit 0")
	w.awaitRequest(b, "shop.a")
	w.play("source update shop.a 1..10")
	w.becomesEqual(b)
	copies := 0
	for _, e := range w.events {
		if r, ok := e.event.(resync.PartEvent); ok {
			if r.Event.Message() == "link created in the target" {
				copies++
			}
		}
	}
	if copies != 1 {
		w.fail("fault", "", fmt.Errorf("the collection's own link was made %d times", copies))
	}
}

// TestResyncNeedsSpool: a link with a resync in progress does not start without a spool
// folder: it would apply the oplog to the collection that is being copied.
func TestResyncNeedsSpool(t *testing.T) {
	t.Parallel()
	w := play(t, `
		source insert shop.a 1..600
		start copy flush=20 workers=1
		await running
		limit 50
		resync shop.a
		await told copies again
		await resync copying shop.a
		stop
		source update shop.a 1..600
		start
		ended
	`)
	if err := w.links["a"].err; !errors.Is(err, initialsync.ErrNoSpool) {
		t.Errorf("it ended with: %v", err)
	}
}

// TestResyncPostponed: a link without a spool folder does not copy a collection again.
// The request and the status say why, until a process with one serves it.
func TestResyncPostponed(t *testing.T) {
	t.Parallel()
	w := play(t, `
		source insert shop.a 1..100
		start copy
		await caught-up
		drain
		start
		await running
		resync shop.a
	`)
	l := w.links["a"]
	if err := w.untilOf(l, "the status to say why", func() bool {
		return strings.Contains(l.p.Snapshot().Reason, "shop.a cannot be copied again now: a copy needs a folder for the oplog")
	}); err != nil {
		w.fail("fault", "", err)
	}
	store, err := w.metadata()
	if err != nil {
		t.Fatal(err)
	}
	requests, err := request.New(store).Read(t.Context())
	if r := requests.Resync; err != nil || len(r) != 1 || r[0].State != request.Asked || r[0].Why != initialsync.ErrNoSpool.Error() {
		t.Errorf("the requests are %+v, %v", r, err)
	}
	w.play(`
		drain
		start copy
		await resync done shop.a
		await caught-up
		equal
		drain
	`)
	if err := l.err; err != nil {
		t.Errorf("drained: %v", err)
	}
}

// TestResyncOfVoidCopy: the copy of the link becomes void after a collection was copied
// again during its replay, and before it was merged back. From then on only one of them
// writes to the collection. The delay keeps the replay from ending before that.
func TestResyncOfVoidCopy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, mongosim.Options{Members: 3, Seed: 1, TTLInterval: -1, OplogBytes: 400_000}, mongosim.Options{Members: 3, Seed: 2, TTLInterval: -1, Moods: toldOnce})
	w.play(`
		source insert shop.a 1..400
		source insert shop.b 1..400
		hold copied shop.a
		start copy flush=20 workers=1 wait=1s delay=1h
		await told copied shop.a
		source insert shop.b 401..600
		resync shop.a
		release
		await told everything copied
		await told copies again
	`)
	l := w.links["a"]
	if err := w.untilOf(l, "the collection to be consistent", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.ContainsFunc(w.events, func(e told) bool {
			r, ok := e.event.(resync.PartEvent)
			return ok && is[monitor.Consistent](r.Event)
		})
	}); err != nil {
		w.fail("fault", "", err)
	}
	w.play(`
		stop
		source insert shop.c 1..300 size=4000
		limit 100
		start copy spool=other flush=20 workers=1 wait=1s delay=10s
		await told copy void
		await told copy: clearing
		source update shop.a 1..400
		source delete shop.a 1..40
		limit 0
		await told consistent
		await running
	`)
	w.awaitRequest(w.links["a"], "shop.a")
	w.play(`
		source update shop.a 50..99
		await caught-up
		equal
	`)
}

func is[E event.Event](e event.Event) bool {
	_, ok := e.(E)
	return ok
}

// TestMovedBeforeTheFirstAttempt: the member that is copied goes away while no process
// runs. The next process continues the copy from another one.
func TestMovedBeforeTheFirstAttempt(t *testing.T) {
	t.Parallel()
	play(t, `
		source insert shop.a 1..600
		start copy ops=200 workers=1 flush=20 wait=10s
		await copied 100
		source stop current
		stop
		source await primary
		start copy workers=1 flush=20 wait=10s
		await told copy continues: another member
		await told consistent
		await running
		source start down
		await caught-up
		equal
		drain
	`)
}
