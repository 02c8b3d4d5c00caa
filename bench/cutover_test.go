package bench

import (
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestCutover: each round has a cutover of its own, after which both sides have the same.
func TestCutover(t *testing.T) {
	run, err := measureCutover(t.Context(), Config{Workload: small(), Rounds: 2, Writers: 4, Rate: 500, Duration: time.Second})
	must.Succeed(t, err)
	(&runFigures{run, "cutover/small"}).check(t, "cutover", 500, 2)
	if l := run.Latencies[downtime]; l.Count != 2 || l.P50 <= 0 || l.Max > moveWithin.Seconds() {
		t.Errorf("downtime: %+v", l)
	}
	if run.Source.Members != mirrorMembers || run.Settings["rate"] != 500 {
		t.Errorf("%+v, %v", run.Source, run.Settings)
	}
}
