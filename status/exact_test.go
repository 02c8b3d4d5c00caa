package status

import (
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/pipeline/monitor"
)

// TestVerdictExact: as of when the target is what the source was.
func TestVerdictExact(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*monitor.Snapshot)
		want   string
	}{
		"nothing was missing":     {func(*monitor.Snapshot) {}, "Steady. Exact as of 23:59:59.2 UTC, 0.8 s ago."},
		"something is in flight":  {func(s *monitor.Snapshot) { s.Lag, s.Source.Committed = time.Second, at(1001) }, "Steady. Exact as of 23:59:58.2 UTC, 1.8 s ago."},
		"nothing was heard yet":   {func(s *monitor.Snapshot) { s.HeardAt = time.Time{} }, "Steady. How far the target lags is not known yet."},
		"the state has a reason":  {func(s *monitor.Snapshot) { s.Reason = "two members are down" }, "Steady: two members are down. Exact as of"},
		"an old error is no news": {func(s *monitor.Snapshot) { s.LastError = "not primary" }, "Steady. Exact"},
	} {
		s, _, _ := play(t, func(_ *testing.T, _ *Tracker, p *fakePipeline) {
			p.set(func(s *monitor.Snapshot) { steadily(s); c.change(s) })
		})
		if !strings.HasPrefix(s.Verdict.Sentence, c.want) {
			t.Errorf("%s: %s", name, s.Verdict.Sentence)
		}
	}
}

// TestExactAt: nothing is exact while the target is not consistent, however small the lag.
func TestExactAt(t *testing.T) {
	for _, consistent := range []bool{true, false} {
		s, _, _ := play(t, in(func(s *monitor.Snapshot, _ time.Time) {
			if !consistent {
				s.CopiedUntil = at(2000)
			}
		}))
		if s.Consistent != consistent || (s.ExactAt != nil) != consistent {
			t.Errorf("consistent %t, want %t: exact at %v", s.Consistent, consistent, s.ExactAt)
		}
	}
}
