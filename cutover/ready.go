package cutover

import (
	"context"
	"time"
)

// waited is the time after which the preconditions are checked again.
const waited = 2 * time.Second

// ready checks the preconditions, and that the link makes cuts. If that takes long they are checked once more, because
// one that was met before may be unmet now.
func (cfg *Config) ready(ctx context.Context) error {
	if err := cfg.check(ctx); err != nil {
		return err
	}
	begun := time.Now()
	if err := cfg.cuts(ctx); err != nil || time.Since(begun) < waited {
		return err
	}
	return cfg.check(ctx)
}

func (cfg *Config) check(ctx context.Context) error {
	if cfg.Check == nil {
		return nil
	}
	_, err := cfg.Check(ctx)
	return err
}

// cuts returns an error if the link makes no cuts: it could not be drained, and that would be found only once clients
// are stopped. The process that runs the link expects more requests for a while after this one, so that the drain
// waits less.
func (cfg *Config) cuts(ctx context.Context) error {
	_, err := cfg.Drain.Cuts.NextCut(ctx, cfg.Drain.By, "to see that the link makes cuts, before writes are stopped", cfg.Drain.Within, cfg.Drain.OnWait)
	return err
}
