package initialsync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// list records the collections to copy in the metadata, and creates the views.
func (c *Copier) list(ctx context.Context) error {
	c.enter(StepList)
	if err := c.link.DropCopies(ctx, c.copy.Number); err != nil {
		return fmt.Errorf("forget the copies that are void: %w", err)
	}
	inv, err := c.take(ctx)
	if _, twice := errors.AsType[*inventory.DuplicateError](err); err == nil || twice {
		// A member lists what it has, committed or not.
		if failed := c.settled(ctx); failed != nil {
			err = failed
		}
	}
	if err != nil {
		return err
	}
	if err := c.link.AddCollections(ctx, inv.Collections); err != nil {
		return fmt.Errorf("store the list of collections to copy: %w", err)
	}
	c.enter(StepViews)
	if err := c.views(ctx, inv.Views); err != nil {
		return err
	}
	for i := range inv.Invalid {
		bad := &inv.Invalid[i]
		if err := c.viewFailed(ctx, oplog.Namespace(bad.ID), bad.DB, bad.Def, bad); err != nil {
			return err
		}
	}
	c.copy.Listed = true
	if err := c.link.UpdateCopy(ctx, c.copy); err != nil {
		return fmt.Errorf("write down that all is listed: %w", err)
	}
	var docs, size int64 // as the source estimates
	for i := range inv.Collections {
		docs += inv.Collections[i].Docs
		size += inv.Collections[i].Bytes
	}
	c.cfg.Observer.Log(slog.LevelInfo, "the collections to copy are listed", slog.Int(keyCollections, len(inv.Collections)),
		slog.Int(keyViews, len(inv.Views)), slog.Int64(keyDocs, docs), slog.Int64(keyBytes, size))
	return nil
}

// views creates views, in the order of the listing: a view may be created before the
// collection it is on.
func (c *Copier) views(ctx context.Context, list []bson.Raw) error {
	if err := c.equip(ctx, 1); err != nil {
		return err
	}
	for _, view := range list {
		op, err := inventory.ViewOp(view, c.copy.Begin)
		if err != nil {
			return fmt.Errorf("make a view: %w", err)
		}
		name, _ := textOf(view, "_id")
		ns := oplog.Namespace(name).Clone()
		err = c.worker(0).Apply(ctx, op)
		switch {
		case err == nil:
		case isRefusal(err):
			if err := c.viewFailed(ctx, ns, ns.DB(), view, err); err != nil {
				return err
			}
		default:
			return fmt.Errorf("make the view %s: %w", ns, err)
		}
	}
	return nil
}

// viewFailed leaves a view out and reports it.
func (c *Copier) viewFailed(ctx context.Context, ns oplog.Namespace, db string, def bson.Raw, why error) error {
	if err := c.worker(0).LeaveView(ctx, db, def, why.Error()); err != nil {
		return fmt.Errorf("note that the view %s is left out: %w", ns, err)
	}
	c.board.fail(FailedIndex{NS: ns, Why: why.Error()})
	c.cfg.Observer.Log(slog.LevelWarn, "a view cannot be made on the target", slog.String(keyNS, string(ns)), slog.String(keyError, why.Error()))
	return nil
}

// load reads the collections to copy, the largest first, and their progress.
func (c *Copier) load(ctx context.Context) ([]*collection, error) {
	docs, ranges, err := c.link.Copies(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]*collection, len(docs))
	known := make(map[oplog.UUID]*collection, len(docs))
	for i := range docs {
		coll := &collection{doc: docs[i], capped: isCapped(docs[i].Options)}
		var in bool
		if coll.to, in = c.cfg.Scope.Target(coll.doc.NS); !in {
			return nil, c.damaged("%s is listed and not mirrored", coll.doc.NS)
		}
		all[i], known[coll.doc.UUID] = coll, coll
	}
	for i := range ranges {
		coll := known[ranges[i].UUID]
		if coll == nil {
			return nil, c.damaged("there is a range of the collection %s, which is not listed", ranges[i].UUID)
		}
		coll.ranges = append(coll.ranges, ranges[i])
	}
	for _, coll := range all {
		slices.SortFunc(coll.ranges, func(a, b progress.Range) int { return cmp.Compare(a.Index, b.Index) })
		if err := c.check(coll); err != nil {
			return nil, err
		}
		coll.loaded()
	}
	slices.SortFunc(all, func(a, b *collection) int {
		return cmp.Or(cmp.Compare(b.doc.Bytes, a.doc.Bytes), cmp.Compare(a.doc.NS, b.doc.NS))
	})
	c.board.load(all)
	return all, nil
}

// check returns an error if a collection's ranges do not cover all of it.
func (c *Copier) check(coll *collection) error {
	switch coll.doc.State {
	case progress.Planned:
		if len(coll.ranges) > 0 {
			return c.damaged("%s is planned and has %d ranges", coll.doc.NS, len(coll.ranges))
		}
		return nil
	case progress.Created, progress.Filled, progress.Done:
	default:
		return c.damaged("%s has the state %q", coll.doc.NS, coll.doc.State)
	}
	if coll.doc.Gone {
		return nil
	}
	if len(coll.ranges) == 0 {
		return c.damaged("%s is %s and has no ranges", coll.doc.NS, coll.doc.State)
	}
	for i := range coll.ranges {
		if coll.ranges[i].Index != i {
			return c.damaged("%s has no range %d", coll.doc.NS, i)
		}
		if !coll.ranges[i].Done && coll.doc.State != progress.Created {
			return c.damaged("%s is %s and range %d is not", coll.doc.NS, coll.doc.State, i)
		}
	}
	return nil
}

func (c *Copier) damaged(format string, args ...any) error {
	return &metadata.DamagedError{Link: c.cfg.Link, What: fmt.Sprintf(format, args...)}
}

func isCapped(options bson.Raw) bool {
	e, ok := rawbson.Lookup(options, "capped")
	return ok && e.Truth()
}
