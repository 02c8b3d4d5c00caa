package initialsync

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// indexLoop builds the indexes of collections as they are filled.
func (c *Copier) indexLoop(ctx context.Context, cmds Commands, lane *turns, filled <-chan *collection) error {
	for {
		select {
		case coll, more := <-filled:
			if !more {
				return nil
			}
			if err := c.buildIndexes(ctx, cmds, lane, coll); err != nil {
				return err
			}
			coll.doc.State = progress.Done
			if err := lane.save(ctx, coll, nil); err != nil {
				return err
			}
			c.board.isDone(coll, false)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// buildIndexes builds all indexes of a collection at once; if one of them is refused,
// one by one.
func (c *Copier) buildIndexes(ctx context.Context, cmds Commands, lane *turns, coll *collection) error {
	c.board.indexing(coll, true)
	defer c.board.indexing(coll, false)
	var wanted []bson.Raw
	for _, spec := range coll.doc.Indexes {
		if !hasFailed(&coll.doc, indexName(spec)) {
			wanted = append(wanted, spec)
			continue
		}
		// The process that left it out may have died before it recorded it as deferred.
		if err := c.deferBuild(ctx, cmds, coll, spec); err != nil {
			return err
		}
	}
	if len(wanted) > 0 {
		err := c.build(ctx, cmds, coll, wanted)
		switch {
		case err == nil:
		case !isUnbuilt(err):
			return fmt.Errorf("build %d indexes of %s: %w", len(wanted), coll.to, err)
		case len(wanted) == 1 && !servererr.IsBuildAborted(err):
			if err := c.giveUp(ctx, cmds, lane, coll, wanted[0], err); err != nil {
				return err
			}
		default:
			if err := c.oneByOne(ctx, cmds, lane, coll, wanted); err != nil {
				return err
			}
		}
	}
	coll.indexed = true
	c.board.built(coll, len(coll.doc.Indexes)-len(coll.doc.Failed))
	return nil
}

func (c *Copier) build(ctx context.Context, cmds Commands, coll *collection, specs []bson.Raw) error {
	op, err := inventory.IndexesOp(&coll.doc, specs, c.copy.Begin)
	if err != nil {
		return err
	}
	return c.during(ctx, func() error { return cmds.Apply(ctx, op) })
}

func (c *Copier) oneByOne(ctx context.Context, cmds Commands, lane *turns, coll *collection, specs []bson.Raw) error {
	for _, spec := range specs {
		err := c.build(ctx, cmds, coll, []bson.Raw{spec})
		switch {
		case err == nil:
		case isUnbuilt(err):
			if err := c.giveUp(ctx, cmds, lane, coll, spec, err); err != nil {
				return err
			}
		default:
			return fmt.Errorf("build the index %s of %s: %w", indexName(spec), coll.to, err)
		}
	}
	return nil
}

// giveUp leaves an index out.
func (c *Copier) giveUp(ctx context.Context, cmds Commands, lane *turns, coll *collection, spec bson.Raw, why error) error {
	name := indexName(spec)
	coll.doc.Failed = append(coll.doc.Failed, progress.FailedIndex{Name: name, Why: why.Error()})
	// Saved first: a command for a deferred index does not report why it cannot be
	// built.
	if err := lane.save(ctx, coll, nil); err != nil {
		return err
	}
	c.board.fail(FailedIndex{NS: coll.doc.NS, Name: name, Why: why.Error()})
	c.cfg.Observer.Log(slog.LevelWarn, "an index cannot be built on the target", slog.String(keyNS, string(coll.doc.NS)),
		slog.String(keyIndex, name), slog.String(keyError, why.Error()))
	return c.deferBuild(ctx, cmds, coll, spec)
}

func (c *Copier) deferBuild(ctx context.Context, cmds Commands, coll *collection, spec bson.Raw) error {
	op, err := inventory.IndexesOp(&coll.doc, []bson.Raw{spec}, c.copy.Begin)
	if err == nil {
		err = cmds.DeferBuild(ctx, op, indexName(spec))
	}
	if err != nil {
		return fmt.Errorf("note that %s lacks the index %s: %w", coll.to, indexName(spec), err)
	}
	return nil
}

func hasFailed(doc *progress.Collection, name string) bool {
	return slices.ContainsFunc(doc.Failed, func(f progress.FailedIndex) bool { return f.Name == name })
}

func indexName(spec bson.Raw) string {
	name, _ := textOf(spec, "name")
	return name
}
