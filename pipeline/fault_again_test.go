package pipeline_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/resync"
)

// TestCopiesCountedAnew: after too many void copies, a restart by an operator starts
// counting anew, as the hint says.
func TestCopiesCountedAnew(t *testing.T) {
	t.Parallel()
	w := play(t, `
		source insert shop.a 1..600
		start copy ops=200 workers=1 flush=20 copies=1
		await copied 100
		source run admin {"setFeatureCompatibilityVersion": "4.4"}
		ended
	`)
	if err := w.links["a"].err; !errors.Is(err, initialsync.ErrCopies) {
		t.Fatalf("it ended with: %v", err)
	}
	w.play(`
		start copy workers=1 flush=20 copies=1
		await told copy void
		await told consistent
		await caught-up
		equal
		drain
	`)
	if c := w.links["a"].p.Snapshot().Copy; c == nil || c.Number != 2 {
		t.Errorf("copy %+v", c)
	}
}

// TestResyncFails: a collection that cannot be copied again stays left out, and the
// link continues with the rest, across a restart too, until another request.
func TestResyncFails(t *testing.T) {
	t.Parallel()
	w := play(t, `
		source insert shop.a 1..400
		source insert shop.b 1..10
		start copy flush=10 copies=1
		await caught-up
		limit 1
		resync shop.a
		await told copies again: shop.a
	`)
	out := w.leftOut("shop.a")
	w.play(`
		source run admin {"setFeatureCompatibilityVersion": "4.4"}
		await resync failed shop.a
		limit 0
	`)
	check := func(when string) {
		t.Helper()
		w.play("source update shop.a 1..10\nsource update shop.b 1..10\nawait applied\nawait running")
		s := w.links["a"].p.Snapshot()
		if len(s.LeftOut) != 1 || s.LeftOut[0].Failed == "" || s.LeftOut[0].Since != out.Since {
			t.Errorf("%s: left out: %+v, at first %+v", when, s.LeftOut, out)
		}
		if s.State != monitor.CatchingUp || !strings.Contains(s.Reason, "shop.a could not be copied again") {
			t.Errorf("%s: %s, %q", when, s.State, s.Reason)
		}
		for where, at := range w.positions() {
			if !strings.Contains(where, "metric") && at.After(out.Since) {
				t.Errorf("%s: %s: %s, left out at %s", when, where, at, out.Since)
			}
		}
		if n := len(runningResyncs(t, w)); n != 0 {
			t.Errorf("%s: %d links of their own are left", when, n)
		}
	}
	check("failed")
	w.play("drain")
	err, failover := w.links["a"].err, "its outcome is unknown" // of the target, as the last checkpoint was written
	if !errors.Is(err, failure.ErrStopped) || !strings.Contains(err.Error(), "shop.a could not be copied again") && !strings.Contains(err.Error(), failover) {
		t.Errorf("drained: %v", err)
	}
	w.play("start copy flush=10 copies=1\nawait running")
	check("after a restart")
	w.play(`
		resync shop.a
		await resync done shop.a
		source update shop.a 20..30
		await caught-up
		equal
		drain
	`)
	if err := w.links["a"].err; err != nil {
		t.Errorf("drained: %v", err)
	}
	if says, err := w.act("consistent"); err != nil || says != "consistent: true" {
		t.Error(says, err)
	}
	if says, err := w.act("spools"); err != nil || says != "0 files on disk" {
		t.Error(says, err)
	}
}

// TestResyncWithoutItsRequest: the request is removed while the collection is copied
// again. The target then has half a copy, to which the oplog is not applied.
func TestResyncWithoutItsRequest(t *testing.T) {
	t.Parallel()
	w := play(t, `
		source insert shop.a 1..400
		source insert shop.b 1..10
		start copy flush=10
		await caught-up
		limit 1
		resync shop.a
		await told copies again: shop.a
	`)
	w.leftOut("shop.a")
	w.play(`
		drain
		target run replicator {"delete": "requests", "deletes": [{"q": {}, "limit": 0}]}
		source update shop.a 1..400
		start copy
		await told copied again: shop.a
		await caught-up
		equal
		drain
	`)
}

// TestResyncSurvivesLocalFault: the folder for the oplog is unusable for a while. The
// collection is copied afterwards, without another request.
func TestResyncSurvivesLocalFault(t *testing.T) {
	t.Parallel()
	w := play(t, `
		source insert shop.a 1..100
		start copy
		await caught-up
	`)
	if err := w.untilOf(w.links["a"], "no spool", func() bool {
		says, err := w.act("spools")
		return err == nil && says == "0 files on disk" && w.links["a"].p.Snapshot().Copy.Spool == nil
	}); err != nil {
		w.fail("fault", "", err)
	}
	folder := w.spool("")
	must.Succeed(t, errors.Join(os.RemoveAll(folder), os.WriteFile(folder, nil, 0o600)))
	w.play(`
		resync shop.a
		await told again: attempt ended
	`)
	must.Succeed(t, errors.Join(os.Remove(folder), os.Mkdir(folder, 0o700)))
	w.play(`
		await resync done shop.a
		await caught-up
		equal
		drain
	`)
}

// runningResyncs returns the links of single collections in the metadata.
func runningResyncs(t *testing.T, w *world) []string {
	t.Helper()
	list := must.Get(checkpoint.List(t.Context(), w.target.conn, ""))(t)
	var names []string
	for _, l := range list {
		if resync.IsPart(l.Link) {
			names = append(names, l.Link)
		}
	}
	return names
}

// TestSpoolsOfTwoTargets: links of the same name on two targets, with one folder for
// spools, do not interfere.
func TestSpoolsOfTwoTargets(t *testing.T) {
	t.Parallel()
	w := play(t, `
		source insert shop.a 1..600
		start copy ops=20 flush=10 workers=1
		await copied 10
	`)
	phase := func(name string) checkpoint.CopyPhase {
		if c := w.links[name].p.Snapshot().Copy; c != nil {
			return c.Phase
		}
		return ""
	}
	w.target = startCluster(t, mongosim.Options{Members: 1, Seed: 3, TTLInterval: -1})
	w.play("start b copy flush=20")
	if err := w.untilOf(w.links["b"], "a copy", func() bool { return phase("b") == checkpoint.Copied || phase("a") != checkpoint.Copying }); err != nil {
		w.fail("fault", "", err)
	}
	if a, b := phase("a"), phase("b"); a != checkpoint.Copying || b != checkpoint.Copied {
		t.Errorf("one is %s, the other %s", a, b)
	}
}
