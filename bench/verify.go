package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/scope"
	"github.com/oplogrep/replicator/verify"
)

// verifyWorkers is how many ranges are read at a time.
const verifyWorkers = 4

// verifyWithReading measures a verification of two sets with the same documents, and the plain
// driver that reads all of both, in turns.
func verifyWithReading(ctx context.Context, c Config) (ours, reading *result.Run, err error) {
	c.setDefaults()
	if err := errors.Join(c.validate(), setsOnly(c)); err != nil {
		return nil, nil, fmt.Errorf("measure a verification: %w", err)
	}
	p := &copying{cfg: c}
	defer p.close(ctx)
	defer func() {
		err = errors.Join(err, p.tidy(ctx))
	}()
	if err := p.open(ctx); err != nil {
		return nil, nil, fmt.Errorf("measure a verification: %w", err)
	}
	if _, err := p.bare(ctx, verifyWorkers); err != nil {
		return nil, nil, fmt.Errorf("measure a verification: fill the target: %w", err)
	}
	us, them, err := p.comparing(ctx)
	if err == nil {
		err = turns(ctx, c, us, them)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("measure a verification: %w", err)
	}
	return us.run, them.run, nil
}

// comparing returns the contenders: a verification, and loops that read.
func (p *copying) comparing(ctx context.Context) (ours, reading *contender, err error) {
	pieces, err := p.from.Divide(ctx, p.names(), verifyWorkers)
	if err != nil {
		return nil, nil, err
	}
	ours, reading = &contender{run: p.verifyRun("verify")}, &contender{run: p.verifyRun("reading")}
	ours.prepare = func(context.Context, int) (func(context.Context) error, error) { return p.verified, nil }
	reading.run.Notes = []string{fmt.Sprintf("%d loops of the plain driver on each side that read all documents", verifyWorkers)}
	reading.prepare = func(context.Context, int) (func(context.Context) error, error) {
		return func(ctx context.Context) error {
			n, err := p.from.ReadBoth(ctx, p.to, pieces, verifyWorkers)
			if want := 2 * sum(p.docs); err == nil && n != want {
				err = fmt.Errorf("%d documents were read of %d", n, want)
			}
			return err
		}, nil
	}
	return ours, reading, nil
}

// verifyRun is a run whose operations are the documents of one side.
func (p *copying) verifyRun(who string) *result.Run {
	run := newRun("verify", p.cfg)
	delete(run.Settings, "batch")
	delete(run.Settings, "flush")
	run.Name += "/" + who
	run.Settings["writers"] = verifyWorkers
	run.Source, run.Target = p.source.Is, p.target.Is
	run.Ops, run.Bytes = sum(p.docs), sum(p.bytes)
	return run
}

// verified compares both sides, from the catalogs on.
func (p *copying) verified(ctx context.Context) error {
	include := make([]string, 0, len(p.collections))
	for _, ns := range p.names() {
		include = append(include, string(ns))
	}
	names, err := scope.New(scope.Config{Include: include})
	if err != nil {
		return err
	}
	v, err := verify.New(verify.Config{
		Source: p.source.Set, Target: p.target.Set, Scope: names,
		Workers: verifyWorkers, Memory: verifyWorkers * verify.LeastMemory,
		// Small enough ranges for all workers to have some.
		RangeBytes: max(1, sum(p.bytes)/(2*verifyWorkers)),
		Found:      func(d *verify.Difference) error { return fmt.Errorf("the sides differ: %+v", *d) },
	})
	if err != nil {
		return err
	}
	summary, err := v.Run(ctx)
	if err != nil {
		return err
	}
	equal := int64(0)
	for i := range summary.Collections {
		equal += summary.Collections[i].EqualDocs
	}
	if want := sum(p.docs); equal != want || summary.Unchecked() > 0 {
		return fmt.Errorf("%d documents of %d were compared: %+v", equal, want, summary.Collections)
	}
	return nil
}

// verification compares a verification with reading both sides.
func (s *suite) verification(ctx context.Context) error {
	c, err := s.config("small-inserts", 0, 200_000)
	if err != nil {
		return err
	}
	c.Workload.Namespaces, c.Workload.Size = 1, 1024
	ours, reading, err := verifyWithReading(ctx, c)
	if err != nil {
		return err
	}
	s.add(ours)
	s.add(reading)
	s.leastRatio("verify / reading both sides", fmt.Sprintf("at least %g × what as many loops of the plain driver need to read both sides", leastVerify), ours, reading, leastVerify)
	return nil
}
