package initialsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/oplog"
)

// bound finds the documents that were inserted since Begin into the capped collections
// to create. They are not copied: the oplog inserts them.
func (c *Copier) bound(ctx context.Context, planned []*collection) error {
	var capped []*collection
	var ids []oplog.UUID
	for _, coll := range planned {
		if !coll.capped {
			continue
		}
		newest, err := c.cloner.Newest(ctx, &coll.doc)
		if err != nil && !errors.Is(err, clone.ErrGone) { // the next step handles it
			return err
		}
		coll.since.Newest = newest
		capped, ids = append(capped, coll), append(ids, coll.doc.UUID)
	}
	if len(capped) == 0 {
		return nil
	}
	inserted, err := c.inserted(ctx, ids)
	if err != nil {
		return fmt.Errorf("find inserts into capped collections since the copy began: %w", err)
	}
	for _, coll := range capped {
		coll.since.Has = inserted[coll.doc.UUID].Has
	}
	return nil
}

// copyRange copies the rest of a range.
//
// If the oplog does not delete from the target what a capped collection discards,
// resuming could leave a hole: the documents copied before, then a gap where the source
// has discarded the document to resume after. So an interrupted copy of such a
// collection starts again from its beginning.
func (c *Copier) copyRange(ctx context.Context, l lane, p part) error {
	coll, r := p.coll, p.r
	whole := coll.capped && c.cfg.NoHoles
	for again := whole && coll.started; ; again = true {
		if again {
			if err := c.makeAgain(ctx, coll); err != nil {
				return fmt.Errorf("make %s for %s again: %w", coll.to, coll.doc.NS, err)
			}
			c.board.discarded(coll, &r)
			c.cfg.Observer.Log(slog.LevelInfo, "capped collection copied again: its copy was interrupted, and what the source pushed out meanwhile cannot be deleted",
				slog.String(keyNS, string(coll.doc.NS)), slog.Int64(keyDocs, r.Docs))
			r.At, r.Docs, r.Bytes = nil, 0, 0
		}
		var err error
		if r, err = c.cloner.Copy(ctx, l, &coll.doc, coll.to, r); !whole || !errors.Is(err, clone.ErrHole) {
			return err
		}
	}
}

// makeAgain drops a collection of the target and creates it again, empty.
func (c *Copier) makeAgain(ctx context.Context, coll *collection) error {
	c.again.Lock()
	defer c.again.Unlock()
	doc := coll.doc
	doc.Again = true
	if err := c.make(ctx, c.worker(c.cfg.IndexWorkers), &doc); err != nil {
		return err
	}
	coll.indexed = false
	return nil
}
