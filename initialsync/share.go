package initialsync

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// share runs work on each element of a list, by a number of workers that are counted
// from 0. Elements are started in order. The first error cancels the others.
func share[T any](ctx context.Context, workers int, list []T, work func(ctx context.Context, worker int, x T) error) error {
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for i := range workers {
		g.Go(func() error {
			for {
				n := next.Add(1) - 1
				switch {
				case n >= int64(len(list)):
					return nil
				case ctx.Err() != nil:
					return context.Cause(ctx)
				}
				if err := work(ctx, i, list[n]); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}
