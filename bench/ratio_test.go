package bench

import (
	"testing"

	"github.com/oplogrep/replicator/internal/testkit/race"
)

// TestRatio: copying is not much slower than a bare loop. The benchmark is what
// measures; this finds out when something has become slow. A machine that is busy
// with something else is unfair to either of them, so the best round of several
// counts.
func TestRatio(t *testing.T) {
	race.Skip(t, "it measures speed")
	if testing.Short() {
		t.Skip("it copies for seconds: not with -short")
	}
	const (
		docs, size = 20_000, 1 << 10
		rounds     = 6
		least      = 0.6
	)
	p := startCopying(t, docs, size)
	for _, workers := range []int{1, cloneWorkers} {
		best := 0.0
		for range rounds {
			ours, bare := p.both(t, workers)
			ratio := bare.Seconds() / ours.Seconds()
			t.Logf("%d workers: %s, bare loops %s: %.2f", workers, ours, bare, ratio)
			if best = max(best, ratio); best >= least {
				break
			}
		}
		if best < least {
			t.Errorf("%d workers: %.2f of the pace of bare loops at best, want %.2f", workers, best, least)
		}
	}
}
