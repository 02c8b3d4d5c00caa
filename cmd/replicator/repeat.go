package main

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// repeat looks at the target and prints what it has seen, once, or with on again and again until ctx
// is done, also while the target cannot be read. A single look is patient. It returns the last result.
func repeat[T any](ctx context.Context, out cli.Output, on bool, every time.Duration, look func(context.Context) (T, error), show func(T) error) (seen T, err error) {
	away := false
	for {
		if on {
			seen, err = look(ctx)
		} else {
			err = patiently(ctx, func() error {
				seen, err = look(ctx)
				return err
			})
		}
		switch {
		case ctx.Err() != nil && on:
			return seen, nil // as asked
		case err != nil && (!on || !failure.Transient(err)):
			return seen, cli.Stopped(ctx, err)
		case err != nil && !away:
			away = true
			out.Complain("The target cannot be read: %v. Retrying.", err)
		case err == nil:
			away = false
			if err := show(seen); err != nil {
				return seen, err
			}
		}
		if !on {
			return seen, nil
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return seen, nil // as asked
		}
	}
}
