package bench

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/bench/workload"
)

// SuiteConfig says where the goals are measured.
type SuiteConfig struct {
	// Seed is that of all workloads.
	Seed uint64
	// Source, Target, Mongod and Overwrite are those of Config.
	Source, Target, Mongod string
	Overwrite              bool
	// Serve, if set, runs embedded ends in processes of their own; see Config.
	Serve ends.Serve
	// Scale is by how much the workloads are smaller or larger than the goals are
	// for. Zero means 1.
	Scale float64
	// Only runs these parts; empty means all. See Parts.
	Only []string
	// Progress receives lines that report the progress. It may be nil.
	Progress io.Writer
}

// part is a part of the suite: some runs, and the goals that are read off them.
type part struct {
	name string
	run  func(s *suite, ctx context.Context) error
}

var parts = []part{
	{"pipeline", (*suite).pipeline},
	{"apply", (*suite).apply},
	{"sweep", (*suite).sweep},
	{"ceiling", (*suite).ceiling},
	{"catch-up", (*suite).catchUp},
	{"calibrated", (*suite).calibrated},
	{"mirror", (*suite).mirror},
	{"cuts", (*suite).cuts},
	{"cutover", (*suite).cutover},
	{"index-build", (*suite).indexBuild},
	{"clone", (*suite).clone},
	{"verify", (*suite).verification},
}

// Parts are the names of the suite's parts, in order.
func Parts() []string {
	names := make([]string, 0, len(parts))
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// suite collects the results.
type suite struct {
	cfg    SuiteConfig
	report *result.Report
}

// Suite measures what the goals of the project are about, each as a figure or a
// ratio within this one call, and adds runs and goals to the report. Where an end is
// an embedded set the ratios are shown and marked.
func Suite(ctx context.Context, cfg SuiteConfig, report *result.Report) error {
	if cfg.Scale == 0 {
		cfg.Scale = 1
	}
	if cfg.Progress == nil {
		cfg.Progress = io.Discard
	}
	s := &suite{cfg: cfg, report: report}
	for _, p := range parts {
		if !s.wanted(p.name) {
			continue
		}
		if err := p.run(s, ctx); err != nil {
			return fmt.Errorf("measure %s: %w", p.name, err)
		}
	}
	return nil
}

func (s *suite) wanted(name string) bool {
	return len(s.cfg.Only) == 0 || slices.Contains(s.cfg.Only, name)
}

// config is that of a run on a preset, with the given numbers of operations and
// initial documents, scaled.
func (s *suite) config(preset string, ops, documents int) (Config, error) {
	w, err := workload.Preset(preset)
	if err != nil {
		return Config{}, err
	}
	w.Seed, w.Ops, w.Documents = s.cfg.Seed, s.scaled(ops), s.scaled(documents)
	return Config{
		Workload: w, Source: s.cfg.Source, Target: s.cfg.Target, Mongod: s.cfg.Mongod, Overwrite: s.cfg.Overwrite,
		Serve: s.cfg.Serve, Progress: s.cfg.Progress,
	}, nil
}

func (s *suite) scaled(n int) int { return int(float64(n) * s.cfg.Scale) }
