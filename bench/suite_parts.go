package bench

import (
	"context"
	"fmt"

	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/internal/memory"
)

const (
	memoryEnd = "memory"
	nullEnd   = "null"
	// calibratedEnd is a null end that costs what a real server does.
	calibratedEnd = "calibrated"
	mebibyte      = 1 << 20
	// smallSize is of documents whose inserts are entries of some 200 bytes.
	smallSize = 90
	// slow is fewer operations a second than come, so that the buffer fills up.
	slow = 250_000
)

// pipeline measures the stages before the applier.
func (s *suite) pipeline(ctx context.Context) error {
	c, err := s.config("small-inserts", 1_000_000, 0)
	if err != nil {
		return err
	}
	c.Source = memoryEnd
	c.Workload.Size = smallSize
	few := c.Workload.Namespaces
	memory, err := Pipeline(ctx, c)
	if err != nil {
		return err
	}
	s.add(memory)
	s.least("pipeline from memory", "at least 1,500,000 small entries/s", "entries/s", memory.OpsPerSecond(), leastFromMemory, false)
	s.most("allocations of the pipeline", "at most 0.2 per entry", "allocs/entry", memory.AllocsPerOp, mostAllocs, false)

	c.Rounds = 5
	var runs []*result.Run
	for _, n := range []int{1, 100, 10_000} {
		c.Workload.Namespaces = n
		run, err := Pipeline(ctx, c)
		if err != nil {
			return fmt.Errorf("%d namespaces: %w", n, err)
		}
		runs = append(runs, s.add(run))
	}
	s.most("pipeline: cost and namespaces", "flat up to 10,000 collections, within 15 %", "dearest/cheapest", spread(runs), mostSpread, false)

	c.Workload.Namespaces, c.Rounds = few, 0
	c.Source, c.Workload.Ops = "", s.scaled(500_000)
	tcp, err := Pipeline(ctx, c)
	if err != nil {
		return err
	}
	s.add(tcp)
	s.least("pipeline over TCP", "at least 400,000 small entries/s from the embedded source", "entries/s", tcp.OpsPerSecond(), leastOverTCP, false)
	return s.resident(ctx, c)
}

// resident measures the memory of a pipeline whose target cannot keep up, so that the
// buffer is full, and that it is the same for a longer log.
func (s *suite) resident(ctx context.Context, c Config) error {
	c.BufferBytes, c.Rounds, c.TakeRate = 64*mebibyte, 1, slow
	c.Workload.Ops = s.scaled(250_000)
	short, err := Pipeline(ctx, c)
	if err != nil {
		return err
	}
	s.add(short)
	c.Workload.Ops = s.scaled(1_000_000)
	long, err := Pipeline(ctx, c)
	if err != nil {
		return err
	}
	s.add(long)
	if s.cfg.Serve == nil || long.PeakRSS == 0 {
		s.skip("memory of the pipeline", "peak RSS under the buffer's budget + 64 MiB", "it takes ends in other processes, and a system that tells the peak")
		s.skip("memory and backlog", "independent of each other", "as above")
		return nil
	}
	over := func(r *result.Run, budget int64) float64 { return float64(r.PeakRSS-budget) / mebibyte }
	s.most("memory of the pipeline", "peak RSS under the buffer's budget (64 MiB) + 64 MiB", "MiB over the budget", over(long, c.BufferBytes), mostOverBudget, false)
	s.most("memory and backlog", "four times the log takes no more memory", "MiB more", over(long, 0)-over(short, 0), mostGrowth, false)
	return nil
}

// apply measures the applier against a server that acknowledges everything.
func (s *suite) apply(ctx context.Context) error {
	for _, preset := range []string{"small-inserts", "updates", "mass-update", "deletes", "mixed", "hot", "large-docs", "txn"} {
		ops := 300_000
		if preset == "large-docs" {
			ops = 4_000
		}
		c, err := s.config(preset, ops, ops)
		if err != nil {
			return err
		}
		c.Target = nullEnd
		run, err := Apply(ctx, c)
		if err != nil {
			return fmt.Errorf("%s: %w", preset, err)
		}
		s.add(run)
		if preset == "small-inserts" {
			s.least("applier to a null network target", "at least 600,000 ops/s", "ops/s", run.OpsPerSecond(), leastToNull, false)
		}
	}
	return nil
}

// sweep measures the applier, against the same, while one setting is varied: that is
// what the charts show.
func (s *suite) sweep(ctx context.Context) error {
	base := func() (Config, error) {
		c, err := s.config("small-inserts", 150_000, 0)
		c.Target = nullEnd
		return c, err
	}
	vary := func(values []int, set func(*Config, int)) ([]*result.Run, error) {
		var runs []*result.Run
		for _, v := range values {
			c, err := base()
			if err != nil {
				return nil, err
			}
			set(&c, v)
			run, err := Apply(ctx, c)
			if err != nil {
				return nil, err
			}
			runs = append(runs, s.add(run))
		}
		return runs, nil
	}
	if _, err := vary([]int{1, 2, 4, 8, 16, 32}, func(c *Config, n int) { c.Writers = n }); err != nil {
		return fmt.Errorf("writers: %w", err)
	}
	if _, err := vary([]int{10, 100, 1_000, 2_000, 5_000}, func(c *Config, n int) { c.FlushDocs = n }); err != nil {
		return fmt.Errorf("documents of a flush: %w", err)
	}
	if _, err := vary([]int{50, 500, 5_000, 20_000}, func(c *Config, n int) { c.BatchOps = n }); err != nil {
		return fmt.Errorf("operations of a batch: %w", err)
	}
	if _, err := vary([]int{100, 1_000, 10_000, 100_000}, func(c *Config, n int) {
		c.Workload.Size = n
		c.Workload.Ops = min(c.Workload.Ops, s.scaled(400_000_000/n))
	}); err != nil {
		return fmt.Errorf("size of documents: %w", err)
	}
	// Enough operations that most follow the first change of lanes.
	runs, err := vary([]int{1, 100, 1_000, 10_000}, func(c *Config, n int) {
		c.Workload.Namespaces, c.Workload.Ops = n, s.scaled(600_000)
	})
	if err != nil {
		return fmt.Errorf("namespaces: %w", err)
	}
	s.most("applier: cost of 1,000 collections", "the program's CPU per operation at most 1.15 × that of one collection", "×", cpuRatio(runs[2], runs[0]), mostSpread, false)
	s.most("applier: cost of 10,000 collections", "the program's CPU per operation at most 1.5 × that of one collection", "×", cpuRatio(runs[3], runs[0]), mostMany, false)
	runs, err = vary([]int{75_000, 150_000, 300_000}, func(c *Config, n int) { c.Workload.Ops = s.scaled(n) })
	if err != nil {
		return fmt.Errorf("entries: %w", err)
	}
	s.most("applier: cost and entries", "linear: an entry of a log four times as long costs no more, within 15 %", "×", fastest(runs[0])/fastest(runs[len(runs)-1]), mostSpread, false)
	return nil
}

// ceiling compares the applier with the plain driver, on one target.
func (s *suite) ceiling(ctx context.Context) error {
	for _, b := range []struct {
		preset, what string
		least        float64
	}{
		{"small-inserts", "inserts", leastInserts},
		{"updates", "updates of distinct documents", leastChanges},
		{"mass-update", "equal updates of distinct documents", leastMass},
		{"deletes", "deletes of distinct documents", leastChanges},
		{"hot", "updates of hot documents", leastHot},
		{"coalesce", "histories that coalesce", leastHot},
	} {
		c, err := s.config(b.preset, 100_000, 100_000)
		if err != nil {
			return err
		}
		apply, ceiling, err := ApplyWithCeiling(ctx, c)
		if err != nil {
			return fmt.Errorf("%s: %w", b.preset, err)
		}
		s.add(apply)
		s.add(ceiling)
		s.leastRatio("apply / ceiling: "+b.what, fmt.Sprintf("at least %g × what 16 goroutines of the plain driver do", b.least), apply, ceiling, b.least)
	}
	return nil
}

// catchUp measures a link on a backlog, and a secondary on the same.
func (s *suite) catchUp(ctx context.Context) error {
	c, err := s.config("backlog", 1_000_000, 0)
	if err != nil {
		return err
	}
	c.Rounds = 1
	ours, err := CatchUp(ctx, c)
	if err != nil {
		return err
	}
	s.add(ours)
	s.linkMemory(ours)
	const name, want = "catch-up / a secondary", "at least as fast as a secondary on the same machine"
	if why := noReference(&c, ours.Source, ours.Target); why != "" {
		s.skip(name, want, why)
	} else {
		secondary, err := Secondary(ctx, c)
		if err != nil {
			return fmt.Errorf("the secondary: %w", err)
		}
		s.add(secondary)
		s.leastRatio(name, want, ours, secondary, leastCatchUp)
	}
	s.skip("catch-up / MongoShake", "at least 5 ×", "the harness runs no other tool; docs/performance.md has what is known")
	return nil
}

// linkMemory adds the goal of a link's memory: while it catches up with a target that is
// slower than its source, its buffers are full.
func (s *suite) linkMemory(run *result.Run) {
	const name, want = "memory of a link", "peak RSS of a catch-up under the memory that it is given (320 MiB)"
	if s.cfg.Serve == nil && (run.Source.Kind == result.EndEmbedded || run.Target.Kind == result.EndEmbedded) || run.PeakRSS == 0 {
		s.skip(name, want, "it takes ends in other processes, and a system that tells the peak")
		return
	}
	s.most(name, want, "MiB", float64(run.PeakRSS)/mebibyte, memory.Default/mebibyte, false)
}

// mirror measures the lag of a link during writes to its source.
func (s *suite) mirror(ctx context.Context) error {
	c, err := s.config("mixed", 20_000, 20_000)
	if err != nil {
		return err
	}
	run, err := Mirror(ctx, c)
	if err != nil {
		return err
	}
	s.add(run)
	s.mirrorLag(run)
	return nil
}

// mirrorLag adds the goal of a mirror: how long after its own acknowledgement by a majority a
// write is seen in the target.
func (s *suite) mirrorLag(run *result.Run) {
	const name, want = "mirror at 1,000 ops/s: a probe", "p99 read from the target at most 5 ms after its write's own majority acknowledgement"
	l := run.Latencies[probed]
	switch why := noRatio(run); {
	case why != "":
		s.skip(name, want, why)
	case l.Count == 0:
		s.skip(name, want, "no probe came")
	default:
		s.most(name, want, "ms", 1000*l.P99, mostMirrorLag, result.OnEmbedded(run))
	}
}

// indexBuild measures what an index build costs the other collections.
func (s *suite) indexBuild(ctx context.Context) error {
	const name, want = "mirror during an index build / without", "a build of a minute costs the other collections at most 10 % of their throughput"
	c, err := s.config("mixed", 1_000_000, 20_000)
	if err != nil {
		return err
	}
	if why := embeddedTarget(c); why != nil {
		s.skip(name, want, why.Error())
		return nil
	}
	c.Rounds = 2
	build, without, err := duringBuild(ctx, c)
	if err != nil {
		return err
	}
	s.add(build)
	s.add(without)
	// What the build itself costs a real server is not measured, and no reason for no limit.
	s.least(name, want, "×", ratio(build, without), leastDuring, false)
	return nil
}

// clone compares a copy with bare loops of the driver.
func (s *suite) clone(ctx context.Context) error {
	c, err := s.config("small-inserts", 0, 200_000)
	if err != nil {
		return err
	}
	c.Workload.Namespaces, c.Workload.Size = 1, 1024
	ours, bare, err := Clone(ctx, c)
	if err != nil {
		return err
	}
	s.add(ours)
	s.add(bare)
	s.leastRatio("copy / bare loops", "as fast as the same number of bare loops of the driver", ours, bare, 1)
	return nil
}
