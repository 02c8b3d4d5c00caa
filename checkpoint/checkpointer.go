package checkpoint

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

// Applied is a watermark, with the positions that the lanes had acknowledged then.
type Applied struct {
	Progress
	// Lanes are the positions of the writers' lanes.
	Lanes []Position
}

// CheckpointerConfig configures a Checkpointer.
type CheckpointerConfig struct {
	Link *Link
	// Interval is the minimum time between two checkpoints.
	Interval time.Duration
	// Start is the link's progress when its lease was acquired.
	Start Progress
	// Source returns the source as it is known now, for the link's document.
	Source func() Source
	// Moved receives each change of the progress. It must not block.
	Moved func(Progress)
	// Advanced is called after each checkpoint. An error ends Run.
	Advanced func(context.Context, Progress) error
}

// Checkpointer makes applied operations durable: it writes checkpoints, one at a time
// and at most one per interval, and passes on the progress.
type Checkpointer struct {
	interval time.Duration
	// advance writes one checkpoint. When it returns, everything up to it is committed
	// by a majority of the target.
	advance func(ctx context.Context, a Applied) error
	moved   func(Progress)
	// gaps returns the gaps of the target in a progress.
	gaps func() Gaps

	progress Progress // the newest
	applied  Applied  // the newest watermark
}

// NewCheckpointer returns the Checkpointer of a link under a lease.
func NewCheckpointer(cfg CheckpointerConfig) *Checkpointer {
	return &Checkpointer{
		interval: cfg.Interval, moved: cfg.Moved, gaps: cfg.Link.Gaps, progress: cfg.Start,
		advance: func(ctx context.Context, a Applied) error {
			if err := cfg.Link.Advance(ctx, a.Progress, a.Lanes, cfg.Source()); err != nil {
				return err
			}
			return cfg.Advanced(ctx, a.Progress)
		},
	}
}

// Run reads watermarks from in until it is closed and writes a checkpoint of the last
// of them. Whenever out is ready, it sends the newest progress that may be reported (see
// Gaps.Reached), and the last one in any case. It closes out.
func (c *Checkpointer) Run(ctx context.Context, in <-chan Applied, out chan<- Progress) error {
	defer close(out)
	g, ctx := errgroup.WithContext(ctx)
	todo := make(chan Applied)
	done := make(chan Applied)
	g.Go(func() error { return c.writeLoop(ctx, todo, done) })
	g.Go(func() error {
		defer close(todo)
		return c.loop(ctx, in, todo, done, out)
	})
	return g.Wait()
}

// writeLoop writes the checkpoints that it is given, until there are no more.
func (c *Checkpointer) writeLoop(ctx context.Context, todo <-chan Applied, done chan<- Applied) error {
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

func (c *Checkpointer) loop(ctx context.Context, in <-chan Applied, todo chan<- Applied,
	done <-chan Applied, out chan<- Progress,
) error {
	next := time.NewTimer(0)
	defer next.Stop()
	rested, writing := false, false
	var send chan<- Progress
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
			c.moved(c.progress)
			send = out
		case <-next.C:
			rested = true
		case write <- c.applied:
			writing, rested = true, false
			next.Reset(c.interval)
		case a := <-done:
			writing = false
			c.progress.Durable, c.progress.DurableWall = a.Applied, a.AppliedWall
			c.moved(c.progress)
			send = out
		case send <- c.reached():
			send = nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// reached returns the progress to report.
func (c *Checkpointer) reached() Progress {
	gaps := c.gaps()
	return gaps.Reached(c.progress)
}
