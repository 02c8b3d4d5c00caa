package mirrored

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/testkit/corpus"
)

// Options are how thorough the proof is.
type Options struct {
	// Work bounds the work for one recording: the weight of its log times the
	// number of variants, see Choose. Zero means no bound: all variants.
	Work int
	// Seed chooses among the variants where not all are tried.
	Seed uint64
	Run  RunOptions
}

// Variants returns all settings that a recording is mirrored with.
func Variants() []Variant {
	var all []Variant
	for _, writers := range []int{1, 16} {
		for _, ops := range []int{1, 7, 5000} {
			for _, relaxed := range []bool{false, true} {
				all = append(all, Variant{writers, ops, relaxed, ddl.Serialized})
			}
		}
	}
	return append(all, Variant{16, 5000, false, ddl.Relaxed})
}

// fewest is how many variants are tried at least.
const fewest = 3

// Choose returns the variants to try with a log of a weight: as many as make no
// more than work, chosen by the seed, but at least three, of which two are what
// the program does by itself, with unique indexes serialized and relaxed. Work of
// zero means all.
func Choose(weight, work int, seed uint64) []Variant {
	all := Variants()
	most := max(fewest, work/max(weight, 1))
	if work == 0 || most >= len(all) {
		return all
	}
	usual := Variant{16, 5000, false, ddl.Serialized}
	chosen := []Variant{all[len(all)-1], usual}
	rng := rand.New(rand.NewPCG(seed, uint64(weight))) //nolint:gosec // a sample needs no secrets
	for _, i := range rng.Perm(len(all) - 1) {
		if len(chosen) < most && all[i] != usual {
			chosen = append(chosen, all[i])
		}
	}
	return chosen
}

// Prove mirrors a recording with each of its variants and compares. It stops when
// ctx is done; the cause is then the report's Err.
func Prove(ctx context.Context, s *corpus.Scenario, o Options) Report {
	start := time.Now()
	r := Report{Name: s.Name, Seed: o.Seed}
	r.Err = prove(ctx, s, o, &r)
	if errors.Is(r.Err, ErrUnplayed) {
		r.Skipped, r.Err = r.Err.Error(), nil
	}
	r.Elapsed = time.Since(start)
	return r
}

func prove(ctx context.Context, s *corpus.Scenario, o Options, r *Report) error {
	src, err := startPlayed(ctx, s)
	if err != nil {
		return err
	}
	defer src.Close()
	r.Entries, r.Moving = len(src.entries), src.Moving
	for _, v := range Choose(src.Weight(), o.Work, o.Seed) {
		found, err := src.Mirror(ctx, v, o.Run)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.Runs = append(r.Runs, Run{Variant: v, Report: found, Err: err})
	}
	return nil
}
