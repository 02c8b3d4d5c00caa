package pipeline_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/resync"
)

// awaitSpooled waits until all of the source's entries are on disk.
func (w *world) awaitSpooled(l *link) {
	w.t.Helper()
	want := w.newest()
	if err := w.untilOf(l, "everything on disk", func() bool {
		c := l.p.Snapshot().Copy
		return c != nil && c.Spool != nil && !c.Spool.Last.Before(want)
	}); err != nil {
		w.fail("fault", "await what is spooled", err)
	}
}

// awaitEnd waits until a link has ended.
func (w *world) awaitEnd(l *link) {
	w.t.Helper()
	if err := w.until("the end of "+l.name, func() bool {
		select {
		case <-l.done:
			return true
		default:
			return false
		}
	}); err != nil {
		w.fail("fault", "await the end", err)
	}
}

// TestTargetAway: the target is unreachable while the source is written to, and then
// the source's member as well. The oplog is spooled all the time, and the state is
// correct. In one case the process has a lease, which ends meanwhile.
func TestTargetAway(t *testing.T) {
	t.Parallel()
	for _, phase := range []struct{ name, start, until string }{
		{"copying", "start copy flush=20 workers=1 ops=100 lease=2s", "await copied 100"},
		{"replaying", "start copy flush=20 workers=1 delay=20s", "await told everything copied"},
	} {
		t.Run(phase.name, func(t *testing.T) {
			t.Parallel()
			w := play(t, `
				source insert shop.a 1..600
				hold copied shop.a
				`+phase.start)
			l := w.links["a"]
			if phase.name == "replaying" {
				w.play("await told copied shop.a")
			}
			w.play(`
				source insert shop.a 601..700
				release
				` + phase.until + `
				target cut client 0
				target cut client 1
				target cut client 2
				source update shop.a 1..50
				await starting
				source insert shop.b 1..50
			`)
			w.awaitSpooled(l)
			// Heartbeats continue, at least one per second.
			heard := l.p.Snapshot().HeardAt
			if err := w.untilOf(l, "more of the source", func() bool {
				s := l.p.Snapshot()
				if s.State != monitor.Starting || s.Reason == "" {
					t.Errorf("the state is %s, %q", s.State, s.Reason)
					return true
				}
				return s.HeardAt.Sub(heard).Seconds() > 3
			}); err != nil {
				w.fail("fault", "", err)
			}
			w.play(`
				source stop current
				source await primary
				source insert shop.b 51..80
				target heal
				source start down
				source await synced
				limit 0
				await told consistent
				source insert shop.b 81..90
				await caught-up
				equal
				drain
			`)
		})
	}
}

// TestSourceAway: while the only member of the source is unreachable, the state says so.
func TestSourceAway(t *testing.T) {
	t.Parallel()
	w := playOn(t, 1, `
		source insert shop.a 1..100
		hold copied shop.a
		start copy flush=20 workers=1 delay=20s
		await told copied shop.a
		source insert shop.a 101..200
		release
		await told everything copied
		source stop current
	`)
	l := w.links["a"]
	for _, away := range []bool{true, false} {
		if err := w.untilOf(l, "the state to say what is", func() bool {
			// An attempt that ended meanwhile cannot start again without the member.
			s := l.p.Snapshot()
			return (s.State == monitor.InitialSync || s.State == monitor.Starting == away) && (s.Reason != "") == away
		}); err != nil {
			w.fail("fault", "", err)
		}
		if away {
			w.play("source start down")
		}
	}
	w.play(`
		await told consistent
		await caught-up
		equal
		drain
	`)
}

// TestSpoolLost: the folder of the spool is deleted, as a cleanup of caches would. The
// link reports it, fetches the content again, and continues, even while the target is
// unreachable.
func TestSpoolLost(t *testing.T) {
	t.Parallel()
	for _, away := range []bool{false, true} {
		w := play(t, `
			source insert shop.a 1..600
			start copy flush=20 workers=1 ops=100
			await copied 100
		`)
		if away {
			w.play(`
				target cut client 0
				target cut client 1
				target cut client 2
				await starting
			`)
		}
		must.Succeed(t, os.RemoveAll(w.spool("")))
		w.play(`
			source insert shop.a 601..700
			await told spool discarded
			target heal
			limit 0
			await told consistent
			await caught-up
			equal
			drain
		`)
	}
}

// TestSpoolDamaged: the spool is damaged. It is fetched again, without a restart.
func TestSpoolDamaged(t *testing.T) {
	t.Parallel()
	w := play(t, `
		source insert shop.a 1..100
		hold copied shop.a
		start copy flush=20 workers=1
		await told copied shop.a
		source insert shop.a 101..300
		source update shop.a 1..50
	`)
	l := w.links["a"]
	w.awaitSpooled(l)
	files, err := filepath.Glob(filepath.Join(w.spool(""), "*", "*.spool"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)-100] ^= 1
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(b[len(b)-100:len(b)-99], int64(len(b)-100)); err != nil {
			t.Fatal(err)
		}
		must.Succeed(t, f.Close())
	}
	w.play(`
		release
		await told spool discarded
		await told consistent
		await caught-up
		equal
		drain
	`)
}

// TestManyResyncs: of many requested resyncs only some run at a time.
func TestManyResyncs(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c", "d", "e"}
	w := play(t, "")
	for _, name := range names {
		w.play("source insert shop." + name + " 1..50")
	}
	w.play(`
		start copy flush=20
		await running
		await caught-up
	`)
	l := w.links["a"]
	for _, name := range names {
		w.play("resync shop." + name)
	}
	for _, name := range names {
		w.awaitRequest(l, "shop."+name)
	}
	running, most := map[oplog.Namespace]bool{}, 0
	w.mu.Lock()
	for _, e := range w.events {
		switch e := e.event.(type) {
		case resync.Began: // again, if the link had to restart
			running[e.NS] = true
		case resync.Ended:
			delete(running, e.NS)
		}
		most = max(most, len(running))
	}
	w.mu.Unlock()
	if most == 0 || most > 2 {
		t.Errorf("%d collections were copied again at a time", most)
	}
	w.play(`
		source update shop.e 1..50
		await caught-up
		equal
		drain
	`)
}
