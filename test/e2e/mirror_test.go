package e2e

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/memory"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
	"github.com/oplogrep/replicator/internal/testkit/mirrored"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/scope"
)

const recordings = "../../testdata/corpus"

// work bounds the variants of each recording. With the race detector there is one of some
// recordings: make corpus mirrors all of them.
func work() int {
	switch {
	case race.Enabled:
		return 1
	case testing.Short():
		return 500
	}
	return 0
}

func scenarios(t *testing.T) []corpus.Scenario {
	t.Helper()
	return must.Get(corpus.Open(recordings))(t)
}

// TestMirrorCorpus mirrors what a real server logged, by way of the pipeline, and
// compares with what that server had.
func TestMirrorCorpus(t *testing.T) {
	all := scenarios(t)
	for i := range all {
		if race.Enabled && i%3 > 0 {
			continue
		}
		t.Run(all[i].Name, func(t *testing.T) {
			r := mirrored.Prove(t.Context(), &all[i], mirrored.Options{Work: work(), Seed: 1})
			if !r.OK() || r.Skipped != "" {
				t.Error(r.String())
			}
			if r.Moving != (r.Name == "fuzzy-clone") {
				t.Errorf("a moving copy: %t", r.Moving)
			}
		})
	}
}

// TestMirrorSettings mirrors under other names, parts only, read in the other way,
// and cut into pieces of other sizes.
func TestMirrorSettings(t *testing.T) {
	scoped := func(c scope.Config) func(*pipeline.Config) {
		return func(cfg *pipeline.Config) {
			var err error
			if cfg.Scope, err = scope.New(c); err != nil {
				t.Error(err)
			}
		}
	}
	names := []string{"ddl", "fuzzy-clone", "mass", "random", "timeseries", "txn-prepared", "txn-small", "unique"}
	settings := []struct {
		name   string
		change func(*pipeline.Config)
	}{
		{"databases renamed", scoped(scope.Config{
			Include: []string{"ddl", "other", "gone", "mass", "rnd0", "rnd1", "ts", "prep", "txn", "txn2", "uniq"},
			Map: []string{
				"ddl=there", "other=elsewhere", "gone=away", "mass=m", "rnd0=r0", "rnd1=r1", "ts=series", "prep=p", "txn=t", "txn2=t2", "uniq=u",
			},
		})},
		{"one database", scoped(scope.Config{Include: []string{"ddl", "rnd0", "txn", "ts", "prep"}})},
		{"some collections", scoped(scope.Config{Include: []string{"rnd*.c*", "txn*.a", "uniq.*", "prep.b"}})},
		{"small flushes", func(cfg *pipeline.Config) { cfg.FlushDocs, cfg.WindowBytes, cfg.Memory = 3, 1000, memory.MinLink }},
		{"long runs", func(cfg *pipeline.Config) { cfg.CoalesceWindow, cfg.Writers = 10_000, 3 }},
	}
	all, chosen := scenarios(t), -1
	for i := range all {
		if !slices.Contains(names, all[i].Name) {
			continue
		}
		if chosen++; !race.One(chosen) {
			continue
		}
		t.Run(all[i].Name, func(t *testing.T) {
			src, err := mirrored.Start(t.Context(), &all[i])
			if err != nil {
				t.Fatal(err)
			}
			defer src.Close()
			must.Succeed(t, src.Play(src.Entries()))
			for j, s := range settings {
				if testing.Short() && (i+j)%len(settings) > 0 {
					continue
				}
				v := mirrored.Variant{Writers: 16, BatchOps: 5000, Relaxed: i%2 == 0, Unique: ddl.Serialized}
				report, err := src.Mirror(t.Context(), v, mirrored.RunOptions{Change: s.change})
				if err != nil {
					t.Errorf("%s: %v", s.name, err)
				} else if !report.Equal() {
					t.Errorf("%s: %s", s.name, &report)
				}
			}
		})
	}
}

// TestMirrorWhileWritten mirrors logs that grow meanwhile, a few entries at a
// time, into a target of three members.
func TestMirrorWhileWritten(t *testing.T) {
	all := scenarios(t)
	for i := range all {
		s := &all[i]
		switch s.Name {
		case "ddl", "failover", "txn-prepared", "txn-small", "random", "update-v1":
		default:
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			src, err := mirrored.Start(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			defer src.Close()
			ctx, stop := context.WithCancelCause(t.Context())
			defer stop(nil)
			var playing sync.WaitGroup
			defer playing.Wait()
			playing.Go(func() {
				for src.Entries() > 0 && ctx.Err() == nil {
					if err := src.Play(7); err != nil {
						stop(err)
						return
					}
				}
			})
			report, err := src.Mirror(ctx, mirrored.Variant{Writers: 16, BatchOps: 5000, Unique: ddl.Serialized}, mirrored.RunOptions{Members: 3})
			if err != nil {
				t.Error(err)
			} else if !report.Equal() {
				t.Error(report.String())
			}
		})
	}
}
