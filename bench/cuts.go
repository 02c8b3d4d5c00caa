package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/bench/result"
)

const (
	// cutsOften is the interval of cuts at full speed, a tenth of the usual one, cutsDense that
	// of those whose stalls are measured: there have to be many.
	cutsOften = time.Second
	cutsDense = 100 * time.Millisecond
)

// applyWithCuts measures Apply with a consistent cut every second and without, alternately on
// the same target.
func applyWithCuts(ctx context.Context, c Config) (with, without *result.Run, err error) {
	runs, err := onTarget(ctx, &c, func(t *target) ([]*contender, error) {
		cutting := c
		cutting.CutEvery = cutsOften
		a, err := newApplying(cutting, t)
		if err != nil {
			return nil, err
		}
		b, err := newApplying(c, t)
		return []*contender{a, b}, err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("measure the applier with cuts and without: %w", err)
	}
	return runs[0], runs[1], nil
}

// cuts measures what consistent cuts cost: throughput at full speed, and for how long the
// lanes wait at 1,000 operations per second.
func (s *suite) cuts(ctx context.Context) error {
	c, err := s.config("mixed", 1_000_000, 100_000)
	if err != nil {
		return err
	}
	with, without, err := applyWithCuts(ctx, c)
	if err != nil {
		return err
	}
	s.add(with)
	s.add(without)
	s.leastRatio("applier with cuts / without", "a cut every second costs at most 2 % of the throughput at full speed", with, without, leastWithCuts)

	if c, err = s.config("mixed", 20_000, 20_000); err != nil {
		return err
	}
	c.CutEvery = cutsDense
	run, err := Mirror(ctx, c)
	if err != nil {
		return err
	}
	run.Name += "/cuts"
	s.add(run)
	const name, want = "mirror at 1,000 ops/s: stall of a cut", "p99 of the time for which lanes wait under 50 ms"
	switch why, l := noRatio(run), run.Latencies[stalled]; {
	case why != "":
		s.skip(name, want, why)
	case l.Count == 0:
		s.skip(name, want, "no cut was made")
	default:
		s.most(name, want, "ms", 1000*l.P99, mostStall, result.OnEmbedded(run))
	}
	return nil
}
