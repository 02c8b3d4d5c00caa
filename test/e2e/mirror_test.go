package e2e

import (
	"context"
	"sync"
	"testing"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/corpus"
	"github.com/oplogrep/replicator/internal/mirrored"
)

const recordings = "../../testdata/corpus"

// work bounds the variants of each recording, so that the test takes about as long
// with -race as without.
func work() int {
	switch {
	case testing.Short():
		return 500
	case raceEnabled:
		return 8000
	}
	return 0
}

func scenarios(t *testing.T) []corpus.Scenario {
	t.Helper()
	all, err := corpus.Open(recordings)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestMirrorCorpus mirrors what a real server logged, by way of the pipeline, and
// compares with what that server had.
func TestMirrorCorpus(t *testing.T) {
	all := scenarios(t)
	for i := range all {
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
			if err != nil || !report.Equal() {
				t.Errorf("%v\n%s", err, &report)
			}
		})
	}
}
