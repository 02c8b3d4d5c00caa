package pipeline

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
)

// checkpointer makes applied operations durable: it writes checkpoints, one at a time
// and at most one per interval, and passes on the progress.
type checkpointer struct {
	interval time.Duration
	// advance writes one checkpoint. When it returns, everything up to it is committed
	// by a majority of the target.
	advance func(ctx context.Context, a applier.Applied) error
	// observe receives each change of the progress. It must not block.
	observe func(checkpoint.Progress)
	// reached returns the part of a progress that may be reported.
	reached func(checkpoint.Progress) checkpoint.Progress

	progress checkpoint.Progress // the newest
	applied  applier.Applied     // the newest watermark
}

// run reads watermarks from in until it is closed and writes a checkpoint of the last
// of them. Whenever out is ready, it sends the newest progress that may be reported,
// and the last one in any case. It closes out.
func (c *checkpointer) run(ctx context.Context, in <-chan applier.Applied, out chan<- checkpoint.Progress) error {
	defer close(out)
	g, ctx := errgroup.WithContext(ctx)
	todo := make(chan applier.Applied)
	done := make(chan applier.Applied)
	g.Go(func() error { return c.writeLoop(ctx, todo, done) })
	g.Go(func() error {
		defer close(todo)
		return c.loop(ctx, in, todo, done, out)
	})
	return g.Wait()
}

// writeLoop writes the checkpoints that it is given, until there are no more.
func (c *checkpointer) writeLoop(ctx context.Context, todo <-chan applier.Applied, done chan<- applier.Applied) error {
	for a := range todo {
		if err := c.advance(ctx, a); err != nil {
			return err
		}
		select {
		case done <- a:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (c *checkpointer) loop(ctx context.Context, in <-chan applier.Applied, todo chan<- applier.Applied,
	done <-chan applier.Applied, out chan<- checkpoint.Progress,
) error {
	next := time.NewTimer(0)
	defer next.Stop()
	rested, writing := false, false
	var send chan<- checkpoint.Progress
	if !c.progress.Applied.IsNull() {
		// If nothing else is written, this is all there is to report.
		send = out
	}
	for {
		// The last checkpoint does not wait for the interval.
		write := todo
		resting := !rested && in != nil
		if writing || resting || !c.applied.Applied.After(c.progress.Durable) {
			write = nil
		}
		if in == nil && !writing && write == nil && send == nil {
			return nil
		}
		select {
		case a, ok := <-in:
			if !ok {
				in = nil
				continue
			}
			c.applied = a
			c.progress.Applied, c.progress.AppliedWall = a.Applied, a.AppliedWall
			c.progress.FetchFrom, c.progress.Ops = a.FetchFrom, a.Ops
			if c.progress.Durable.IsNull() {
				c.progress.Durable, c.progress.DurableWall = a.Durable, a.DurableWall
			}
			c.observe(c.progress)
			send = out
		case <-next.C:
			rested = true
		case write <- c.applied:
			writing, rested = true, false
			next.Reset(c.interval)
		case a := <-done:
			writing = false
			c.progress.Durable, c.progress.DurableWall = a.Applied, a.AppliedWall
			c.observe(c.progress)
			send = out
		case send <- c.reached(c.progress):
			send = nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
