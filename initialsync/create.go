package initialsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/initialsync/progress"
)

// create creates the collections that do not exist yet, and splits them into ranges.
func (c *Copier) create(ctx context.Context, all []*collection) error {
	c.enter(StepCreate)
	var planned []*collection
	for _, coll := range all {
		if coll.doc.State == progress.Planned {
			planned = append(planned, coll)
		}
	}
	if err := c.bound(ctx, planned); err != nil {
		return err
	}
	workers := min(c.cfg.Workers, len(planned))
	if err := c.equip(ctx, workers); err != nil {
		return err
	}
	return share(ctx, workers, planned, c.createOne)
}

func (c *Copier) createOne(ctx context.Context, worker int, coll *collection) error {
	c.board.creating(coll, true)
	defer c.board.creating(coll, false)
	lane := &c.lanes[worker]
	if err := c.during(ctx, func() error { return c.make(ctx, c.worker(worker), &coll.doc) }); err != nil {
		return fmt.Errorf("create %s for %s: %w", coll.to, coll.doc.NS, err)
	}
	if c.cfg.IndexesFirst {
		if err := c.buildIndexes(ctx, c.worker(worker), lane, coll); err != nil {
			return err
		}
	}
	ranges, err := c.cloner.Split(ctx, &coll.doc, coll.to, coll.since)
	switch {
	case errors.Is(err, clone.ErrGone):
		return c.goneOne(ctx, lane, coll)
	case err != nil:
		return fmt.Errorf("cut %s into ranges: %w", coll.doc.NS, err)
	case len(ranges) == 0:
		return fmt.Errorf("cut %s into ranges: there are none", coll.doc.NS)
	}
	coll.doc.State, coll.doc.Again = progress.Created, false
	if err := lane.save(ctx, coll, ranges); err != nil {
		return err
	}
	c.board.created(coll, ranges)
	return nil
}

// make creates a collection of the target. It first drops the documents copied from another
// member.
func (c *Copier) make(ctx context.Context, commands Commands, doc *progress.Collection) error {
	if doc.Again {
		drop, err := inventory.DropOp(doc.NS, c.copy.Begin)
		if err == nil {
			err = commands.Apply(ctx, drop)
		}
		if err != nil {
			return err
		}
	}
	create, err := inventory.CreateOp(doc, c.copy.Begin)
	if err != nil {
		return err
	}
	return commands.Apply(ctx, create)
}

// goneOne ends the copy of a collection that the source has dropped. A member does not
// find one as soon as it has dropped it, committed or not.
func (c *Copier) goneOne(ctx context.Context, lane *turns, coll *collection) error {
	if err := c.settled(ctx); err != nil {
		return err
	}
	coll.doc.State, coll.doc.Gone, coll.doc.Again = progress.Done, true, false
	if err := lane.save(ctx, coll, nil); err != nil {
		return err
	}
	c.board.isDone(coll, true)
	c.cfg.Observer.Log(slog.LevelDebug, "the source has dropped a collection that was being copied", slog.String(keyNS, string(coll.doc.NS)))
	return nil
}
