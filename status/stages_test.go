package status

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/control"
	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/request"
)

// TestPauseSetsThePace: of a link that is paused, or throttled, that sets the pace, although the operations wait as
// they do for a command. Once it has been resumed, the time of the pause says nothing of what does.
func TestPauseSetsThePace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(t, Config{})
		var p fakePipeline
		tr.Follow(p.Snapshot)
		f := newFigures()
		p.set(busy)
		waits := func(_ int, s *monitor.Snapshot) {
			f.work.Dispatcher[metric.Waiting] += time.Second
			f.show(s)
			s.Applier.WaitsFor, s.HeardAt = "something", time.Now()
		}
		is := func(side, what string) {
			t.Helper()
			s := tr.Snapshot()
			if b := s.Bottleneck; what == "" && b != nil || what != "" && (b == nil || b.Side != side || !strings.HasPrefix(b.Why, what)) {
				t.Errorf("%s, want %q", jsonOf(t, b), what)
			}
			if also := strings.Join(s.Verdict.Also, "\n"); what != "" && !strings.Contains(s.Verdict.Sentence+also, "what sets the pace is "+what) {
				t.Errorf("%s\n%s", s.Verdict.Sentence, also)
			}
		}
		follow(tr, &p, 20, waits)
		is("", "commands and transactions")

		p.set(func(s *monitor.Snapshot) {
			s.Control = &control.Status{Known: true, Factor: 1, Paused: &request.Paused{Since: time.Now(), By: "ann@ops1"}}
		})
		is(sideOperator, "the pause")
		follow(tr, &p, 20, waits)
		is(sideOperator, "the pause")

		p.set(func(s *monitor.Snapshot) { s.Control.Paused = nil })
		follow(tr, &p, 5, waits)
		is("", "")
		follow(tr, &p, 15, waits)
		is("", "commands and transactions")

		p.set(func(s *monitor.Snapshot) { s.Applier.Throttled = true })
		is(sideOperator, "the throttle")
		follow(tr, &p, 20, waits)
		p.set(func(s *monitor.Snapshot) { s.Applier.Throttled, s.Applier.WaitsFor = false, "" }) // it hands something out just now
		is(sideOperator, "the throttle")
		follow(tr, &p, 20, waits)
		p.set(func(s *monitor.Snapshot) { s.Applier.WaitsFor = "" })
		is("", "commands and transactions")

		// For the smaller part of the last ten seconds the wait was for the throttle.
		p.set(func(s *monitor.Snapshot) { s.Applier.Throttled = true })
		follow(tr, &p, 2, waits)
		p.set(func(s *monitor.Snapshot) { s.Applier.Throttled = false })
		follow(tr, &p, 6, waits)
		p.set(func(s *monitor.Snapshot) { s.Applier.WaitsFor = "" })
		is("", "commands and transactions")

		p.set(func(s *monitor.Snapshot) { s.Control.Known = false })
		is(sideOperator, "perhaps a pause")
		follow(tr, &p, 20, waits)
		is(sideOperator, "perhaps a pause")
		p.set(func(s *monitor.Snapshot) { s.Control.Known = true })
		is("", "")
		follow(tr, &p, 5, waits)
		is("", "")
		follow(tr, &p, 15, waits)
		is("", "commands and transactions")
	})
}
