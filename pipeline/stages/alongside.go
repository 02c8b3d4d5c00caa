package stages

import (
	"context"
	"errors"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Alongside runs work, and loops concurrently with it. They end after work has. If one of them fails,
// it cancels work with that error.
func Alongside(ctx context.Context, work func(context.Context) error, loops ...func(context.Context) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	working, end := context.WithCancelCause(ctx)
	var side errgroup.Group
	for _, loop := range loops {
		side.Go(func() error {
			err := loop(working)
			if err == nil || working.Err() != nil {
				return nil //nolint:nilerr // It was told to end.
			}
			stop(err)
			return err
		})
	}
	err := work(ctx)
	if cause := context.Cause(ctx); cause != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = cause
	}
	end(nil)
	failed := side.Wait()
	if err == nil || failed != nil && errors.Is(err, failed) && strings.HasSuffix(err.Error(), ": "+failed.Error()) {
		err = failed // the stage that was cancelled first has put its name before it
	}
	return err
}
