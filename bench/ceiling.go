package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/oplogrep/replicator/bench/plain"
	"github.com/oplogrep/replicator/bench/result"
)

// Ceiling measures the same operations written by the plain driver.
func Ceiling(ctx context.Context, c Config) (*result.Run, error) {
	runs, err := onTarget(ctx, &c, func(t *target) ([]*contender, error) {
		w, err := newCeiling(c, t)
		return []*contender{w}, err
	})
	if err != nil {
		return nil, fmt.Errorf("measure the plain driver: %w", err)
	}
	return runs[0], nil
}

// newCeiling returns the contender for the plain driver. Its writes are prepared
// beforehand.
func newCeiling(c Config, t *target) (*contender, error) {
	say(c, "dividing %d operations over %d goroutines", c.Workload.Ops, c.Writers)
	work, err := plain.Prepare(c.Workload, c.Writers)
	if err != nil {
		if errors.Is(err, plain.ErrCommands) {
			err = &ConfigError{err}
		}
		return nil, err
	}
	run := newRun("ceiling", c)
	delete(run.Settings, "flush")
	run.Settings["batch"] = float64(c.CeilingBatch)
	run.Target, run.Ops, run.Bytes = t.Is, int64(work.Ops), work.Bytes
	r := &contender{run: run}
	r.prepare = func(ctx context.Context, _ int) (func(context.Context) error, error) {
		client, err := t.driver(ctx)
		if err == nil {
			err = t.ready(ctx, nil)
		}
		return func(ctx context.Context) error { return client.Write(ctx, work, c.CeilingBatch) }, err
	}
	return r, nil
}
