package mirrored

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/internal/corpus"
	"github.com/oplogrep/replicator/internal/event"
)

// Options are how thorough the proof is.
type Options struct {
	// Seed chooses among the variants where not all are tried.
	Seed uint64
	// Most is the most variants that are tried of a recording; zero means as many
	// as its size allows, see Choose.
	Most int
	// Limit is how long one run may take. Default one minute.
	Limit time.Duration
	// Observer is told of what the pipeline announces; nil is fine.
	Observer event.Observer
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

// Choose returns the variants to try with a recording of so many entries: all for
// one that is small, and for others fewer the larger they are, chosen by the
// seed. Those of the program's own defaults, the last two ways of treating unique
// indexes, are always among them.
func Choose(entries, most int, seed uint64) []Variant {
	all := Variants()
	if most == 0 {
		most = max(3, 4000/max(entries, 1))
	}
	if most >= len(all) {
		return all
	}
	usual := Variant{16, 5000, false, ddl.Serialized}
	chosen := []Variant{all[len(all)-1], usual}
	rng := rand.New(rand.NewPCG(seed, uint64(entries))) //nolint:gosec // a sample needs no secrets
	for _, i := range rng.Perm(len(all) - 1) {
		if len(chosen) >= most {
			break
		}
		if all[i] != usual {
			chosen = append(chosen, all[i])
		}
	}
	return chosen[:min(most, len(chosen))]
}

// Prove mirrors a recording with each of its variants and compares. It stops when
// ctx is done; the cause is the report's Err then.
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
	if o.Limit == 0 {
		o.Limit = time.Minute
	}
	src, err := Start(ctx, s)
	if err != nil {
		return err
	}
	defer src.Close()
	r.Entries, r.Moving = src.Entries(), src.Moving
	if err := src.Play(r.Entries); err != nil {
		return err
	}
	for _, v := range Choose(r.Entries, o.Most, o.Seed) {
		found, err := src.Mirror(ctx, v, o.Limit, o.Observer)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.Runs = append(r.Runs, Run{Variant: v, Report: found, Err: err})
	}
	return nil
}
