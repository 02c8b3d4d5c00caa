package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oplogrep/replicator/bench"
	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/cli"
)

type benchPipeline struct {
	Source string   `default:"memory" enum:"memory,embedded" help:"Where the log is: memory, or embedded (an embedded set, over TCP)."`
	Buffer cli.Size `default:"256MiB" placeholder:"SIZE" help:"The budget for entries read."`
	Take   float64  `placeholder:"N" help:"Take so many operations a second and no more, so that the buffer fills up."`
	laneFlags
	measureFlags
}

// Run measures the pipeline.
func (c *benchPipeline) Run(ctx context.Context, out cli.Output, line commandLine) error {
	return c.measure(ctx, out, line, "small-inserts", func(cfg bench.Config) ([]*result.Run, error) {
		cfg.TakeRate, cfg.BufferBytes = c.Take, int64(c.Buffer)
		if c.Source == "memory" {
			cfg.Source = c.Source
		}
		return one(bench.Pipeline(ctx, cfg))
	}, c.into)
}

type benchApply struct {
	targetFlag
	Ceiling bool `help:"Time the plain driver too, alternating with the applier, on the same target."`
	ceilingFlag
	laneFlags
	measureFlags
}

// Run measures the applier.
func (c *benchApply) Run(ctx context.Context, out cli.Output, line commandLine) error {
	return c.measure(ctx, out, line, "small-inserts", func(cfg bench.Config) ([]*result.Run, error) {
		if c.Ceiling {
			return two(bench.ApplyWithCeiling(ctx, cfg))
		}
		return one(bench.Apply(ctx, cfg))
	}, c.laneFlags.into, c.ceilingFlag.into, c.targetFlag.into)
}

type benchCeiling struct {
	targetFlag
	ceilingFlag
	writersFlag
	measureFlags
}

// Run measures the plain driver.
func (c *benchCeiling) Run(ctx context.Context, out cli.Output, line commandLine) error {
	return c.measure(ctx, out, line, "small-inserts", func(cfg bench.Config) ([]*result.Run, error) {
		return one(bench.Ceiling(ctx, cfg))
	}, c.writersFlag.into, c.ceilingFlag.into, c.targetFlag.into)
}

type benchMirror struct {
	sourceFlag
	targetFlag
	Rate float64       `default:"1000" help:"Operations per second that the source is written with."`
	For  time.Duration `name:"for" default:"10s" placeholder:"DURATION" help:"For how long."`
	laneFlags
	measureFlags
}

// Run measures the lag of a link.
func (c *benchMirror) Run(ctx context.Context, out cli.Output, line commandLine) error {
	if c.Rate <= 0 || c.For <= 0 {
		return cli.Usage(fmt.Errorf("--rate=%g, --for=%s: want more than 0", c.Rate, c.For))
	}
	return c.measure(ctx, out, line, "mixed", func(cfg bench.Config) ([]*result.Run, error) {
		cfg.Rate, cfg.Duration = c.Rate, c.For
		return one(bench.Mirror(ctx, cfg))
	}, c.laneFlags.into, c.sourceFlag.into, c.targetFlag.into)
}

type benchCatchUp struct {
	sourceFlag
	targetFlag
	Secondary bool `help:"Time a secondary on the same backlog too: a real one with --mongod, else a member of an embedded set."`
	laneFlags
	measureFlags
}

// Run measures how fast a link catches up with a backlog.
func (c *benchCatchUp) Run(ctx context.Context, out cli.Output, line commandLine) error {
	return c.measure(ctx, out, line, "backlog", func(cfg bench.Config) ([]*result.Run, error) {
		if c.Secondary {
			return two(bench.CatchUpWithSecondary(ctx, cfg))
		}
		return one(bench.CatchUp(ctx, cfg))
	}, c.laneFlags.into, c.sourceFlag.into, c.targetFlag.into)
}

type benchClone struct {
	sourceFlag
	targetFlag
	Workers int `default:"8" help:"How many ranges are copied at a time, and how many bare loops there are."`
	measureFlags
}

// Run measures a copy.
func (c *benchClone) Run(ctx context.Context, out cli.Output, line commandLine) error {
	if docs := 200_000; c.Documents == nil && c.Workload == "" && c.Oplog == "" {
		c.Documents = &docs
	}
	if err := positive(map[string]int{"workers": c.Workers}); err != nil {
		return err
	}
	return c.measure(ctx, out, line, "small-inserts", func(cfg bench.Config) ([]*result.Run, error) {
		cfg.CloneWorkers = c.Workers
		return two(bench.Clone(ctx, cfg))
	}, c.sourceFlag.into, c.targetFlag.into)
}

type benchGoals struct {
	sourceFlag
	targetFlag
	seedFlag
	Scale float64  `default:"1" help:"Make all workloads smaller, or larger, by this."`
	Only  []string `placeholder:"PART" help:"Only this part: pipeline, apply, sweep, ceiling, catch-up, calibrated, mirror, cuts, cutover, index-build, clone or verify. May be given again."`
	watchFlags
	outFlags
}

// Run measures everything that has a goal.
func (c *benchGoals) Run(ctx context.Context, out cli.Output, line commandLine) error {
	if c.Scale <= 0 {
		return cli.Usage(fmt.Errorf("--scale=%g: want more than 0", c.Scale))
	}
	for _, name := range c.Only {
		if !slices.Contains(bench.Parts(), name) {
			return cli.Usage(fmt.Errorf("--only=%s: the parts are %s", name, strings.Join(bench.Parts(), ", ")))
		}
	}
	if err := c.check(); err != nil {
		return err
	}
	b, err := newBenchRun(ctx, out, line, c.Seed, &c.outFlags)
	if err != nil {
		return err
	}
	cfg := bench.SuiteConfig{
		Seed: c.Seed, Source: c.Source, Target: c.Target, Mongod: c.Mongod, Overwrite: c.Overwrite,
		Scale: c.Scale, Only: c.Only, Progress: c.progress(out), Serve: c.serve(),
	}
	if err := bench.Suite(ctx, cfg, b.report); err != nil {
		// The results took minutes to measure: they are shown, but not usable as a
		// baseline.
		if len(b.report.Runs) > 0 {
			err = errors.Join(err, b.report.Table(out.Results))
		}
		return b.add(err)
	}
	if c.Scale != 1 {
		out.Complain("the goals are for --scale=1: with --scale=%g they show that it runs, and little else", c.Scale)
	}
	return b.end()
}

type benchPresets struct {
	Name string `arg:"" optional:"" help:"Print this one as JSON."`
}

// Run lists the presets, or prints one.
func (c *benchPresets) Run(out cli.Output) error {
	if c.Name != "" {
		w, err := workload.Preset(c.Name)
		if err != nil {
			return cli.Usage(err)
		}
		return printJSON(out.Results, w)
	}
	for _, w := range workload.Presets() {
		w = bench.Filled(w)
		if _, err := fmt.Fprintf(out.Results, "%-16s %9d operations, %9d documents before, %6d bytes, %5d collections\n", w.Name, w.Ops, w.Documents, w.Size, w.Namespaces); err != nil {
			return fmt.Errorf("print the presets: %w", err)
		}
	}
	return nil
}
