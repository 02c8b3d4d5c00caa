package pipeline_test

import (
	"errors"
	"testing"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/lease"
)

// TestTakenOver: a process is suspended in a step of its copy. Another one takes the
// link over and completes it. When the first one continues it does no harm.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	for i, step := range []string{
		"copy: clearing", "copy: listing", "copy: creating views", "copy: creating collections", "copy: copying",
		"copied shop.a", "copy: building", "everything copied", "consistent",
	} {
		if !race.One(i) {
			continue
		}
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			const settings = " copy drop-existing flush=20 workers=2 range=2000 "
			w := play(t, `
				source insert shop.a 1..300
				source insert shop.b 1..300
				source run shop {"createIndexes": "a", "indexes": [{"key": {"x": 1}, "name": "x_1"}]}
				target insert shop.a 1000..1010
				hold `+step+`
				start `+settings+`
				await told `+step+`
				source update shop.a 1..50
				source delete shop.b 1..50
			`)
			// Other processes are not blocked.
			w.mu.Lock()
			free := w.free
			w.held = ""
			w.mu.Unlock()
			w.play("start b spool=other" + settings)
			a, b := w.links["a"], w.links["b"]
			if err := w.untilOf(b, "the copy to be consistent", func() bool {
				c := b.p.Snapshot().Copy
				return c != nil && c.Phase == checkpoint.Copied
			}); err != nil {
				close(free)
				w.fail("fault", "", err)
			}
			close(free)
			w.play("source update shop.a 1..50")
			w.awaitEnd(a)
			if !errors.Is(a.err, lease.ErrFenced) {
				t.Errorf("it ended with: %v", a.err)
			}
			w.drainsEqual("b")
		})
	}
}

// TestOtherWriters: a link is restarted with another number of writers during its copy,
// during its replay, and afterwards.
func TestOtherWriters(t *testing.T) {
	t.Parallel()
	play(t, `
		source insert shop.a 1..600
		source insert shop.b 1..50
		start copy writers=2 workers=2 flush=20 range=2000 ops=200
		await copied 100
		stop
		source update shop.a 1..600
		start copy writers=6 workers=6 flush=20 ops=200
		await copied 300
		stop
		hold copied shop.a
		start copy writers=1 workers=4 flush=20
		await told copied shop.a
		source update shop.a 1..600
		source update shop.b 1..50
		release
		await told everything copied
		stop
		start copy writers=5 flush=7
		await busy
		stop
		start copy writers=3
		await told consistent
		stop
		start copy writers=4
		source update shop.a 1..20
		await running
		await caught-up
		equal
		drain
	`)
}

// TestSpoolFullForGood: the spool is full, and no file can be removed, as an open
// transaction began before all of it. The link reports that.
func TestSpoolFullForGood(t *testing.T) {
	t.Parallel()
	w := play(t, `
		source insert shop.a 1..10
		source insert shop.b 1..10
		source insert shop.c 1..10
		source prepare p shop.c 11..15
		hold copied shop.a
		start copy flush=20 workers=2 spool-bytes=900000
		await told copied shop.a
		source insert shop.b 11..1000 size=3000
		await told spool full
		release
		ended
	`)
	if err := w.links["a"].err; !as[*spool.FullError](err) {
		t.Errorf("it ended with: %v", err)
	}
	w.play(`
		source commit p
		start copy flush=20 workers=2
		await told consistent
		await running
		await caught-up
		equal
		drain
	`)
}
