package initialsync

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/initialsync/progress"
)

// part is a range to copy.
type part struct {
	coll *collection
	r    progress.Range
}

// fill copies documents, and builds the indexes of the collections that are filled.
func (c *Copier) fill(ctx context.Context, all []*collection) error {
	// One more, for collections that are created again.
	if err := c.equip(ctx, c.cfg.IndexWorkers+1); err != nil {
		return err
	}
	c.enter(StepCopy)
	// The buffer fits all of them: sending never blocks.
	filled := make(chan *collection, len(all))
	var parts []part
	for _, coll := range all {
		switch coll.doc.State {
		case progress.Created:
			parts = append(parts, c.left(coll)...)
		case progress.Filled:
			filled <- coll
		default:
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(filled)
		err := share(ctx, min(c.cfg.Workers, len(parts)), parts, func(ctx context.Context, worker int, p part) error {
			return c.copyPart(ctx, &c.lanes[worker], p, filled)
		})
		if err == nil {
			c.enter(StepIndexes)
		}
		return err
	})
	// If there are more lanes than workers, one is left for recording indexes.
	lane := &c.lanes[c.cfg.Workers%len(c.lanes)]
	for i := range c.cfg.IndexWorkers {
		g.Go(func() error { return c.indexLoop(ctx, c.worker(i), lane, filled) })
	}
	return g.Wait()
}

// left returns the parts of a collection that are not copied, and makes the collection
// wait for all of them.
func (c *Copier) left(coll *collection) []part {
	var parts []part
	for _, r := range coll.ranges {
		if !r.Done {
			parts = append(parts, part{coll, r})
		}
	}
	if len(parts) == 0 {
		// The earlier process ended after its last range, before it recorded it as
		// filled.
		parts = []part{{coll, coll.ranges[len(coll.ranges)-1]}}
	}
	c.board.waitFor(coll, len(parts))
	return parts
}

// copyPart copies a range. The worker that copies the last one of a collection ends it.
func (c *Copier) copyPart(ctx context.Context, turn *turns, p part, filled chan<- *collection) error {
	coll := p.coll
	var err error
	if c.board.start(coll, time.Now()) && !p.r.Done {
		err = turn.with(ctx, func(l lane) error { return c.copyRange(ctx, l, p) })
	}
	gone := errors.Is(err, clone.ErrGone)
	if err != nil && !gone {
		return err
	}
	last, isGone := c.board.end(coll, gone, !p.r.Done)
	switch {
	case !last:
		return nil
	case isGone:
		return c.goneOne(ctx, turn, coll)
	}
	coll.doc.State = progress.Filled
	if coll.indexed || len(coll.doc.Indexes) == 0 {
		coll.doc.State = progress.Done
	}
	if err := turn.save(ctx, coll, nil); err != nil {
		return err
	}
	c.logCopied(coll.doc.NS, c.board.filled(coll, time.Now()))
	if coll.doc.State == progress.Done {
		c.board.isDone(coll, false)
		return nil
	}
	filled <- coll
	return nil
}
