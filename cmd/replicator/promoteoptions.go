package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/promote"
)

// restored is the outcome for the options that were deferred.
type restored struct {
	// deferred is how many there are, restored how many of them were changed just now.
	deferred, restored int
	// refused are the indexes that documents violate: they stay deferred.
	refused ddl.RefusedErrors
	// unlisted is why the documents could not be listed.
	unlisted error
	// cutover is set if a cutover of the link was under way, which was ended, left if its source may still be
	// blocked; blocked if the target blocks writes of users.
	cutover, left, blocked bool
}

// restoreTry is how long reading the deferred options is retried while the target fails over.
const restoreTry = time.Minute

// complete prints the recovery point of a link, and restores its deferred options if it was promoted. Both may be
// done again.
func (c *promoteCommand) complete(ctx context.Context, out cli.Output, target *driver.Set, r *promote.Recovery) error {
	var specs ddl.Specs
	again := mongo.Retry{For: restoreTry, Again: func(err error) bool { return servererr.Classify(err).Passes() }}
	err := again.Do(ctx, func() (err error) {
		specs, err = ddl.ReadDeferred(ctx, target, c.MetadataDB, c.Link)
		return err
	})
	if err != nil {
		return errors.Join(c.print(out, r, &restored{}), linkError{fmt.Errorf("promote: restore the deferred options: %w", err)})
	}
	o := &restored{deferred: len(specs)}
	if o.blocked, err = cutover.Blocked(ctx, target); err != nil {
		out.Complain("%s: whether the target blocks writes of users is not known: %s.", c.Link, printable.Text(err.Error()))
	}
	if r.Over == nil || c.DryRun {
		return c.print(out, r, o)
	}
	if !c.JSON { // first, as it may take long to restore options
		if err := c.print(out, r, o); err != nil {
			return err
		}
	}
	failed := c.restore(ctx, out, target, o)
	if c.JSON {
		err = c.print(out, r, o)
	} else {
		err = writeRestored(out.Results, o)
	}
	return errors.Join(err, o.judge(ctx, c.Violations == "", failed))
}

// restore restores the options, with the lock of the link.
func (c *promoteCommand) restore(ctx context.Context, out cli.Output, target *driver.Set, o *restored) error {
	r, err := (&record.Store{Target: target, DB: c.MetadataDB}).Get(ctx, c.Link)
	if err != nil || o.deferred == 0 && !r.Open() {
		return err
	}
	said := func(what string) { out.Complain("%s: %s.", c.Link, printable.Text(what)) }
	lock := cutover.LockConfig{Target: target, MetaDB: c.MetadataDB, Link: c.Link, By: operator(), Why: "promote", Said: said}
	return cutover.Locked(ctx, lock, func(ctx context.Context) error {
		ended, left, err := cutover.EndPromoted(ctx, target, c.MetadataDB, c.Link)
		if err != nil {
			return err
		}
		if ended != nil {
			o.cutover, o.left = true, left
		}
		n, refused, err := cutover.Restore(ctx, &cutover.ConvertConfig{Target: target, MetaDB: c.MetadataDB, Link: c.Link, Said: said})
		o.restored, o.refused = o.restored+n, refused
		if err == nil {
			o.unlisted = c.listRefused(ctx, out, target, c.MetadataDB, c.Link, o.refused)
		}
		return err
	})
}

// judge returns an error unless all options are restored.
func (o *restored) judge(ctx context.Context, unlisted bool, failed error) error {
	const again = "The link is promoted. Run the same command again to restore the rest."
	if failed != nil {
		code := cli.ExitUnexpected
		if is[*cutover.BusyError](failed) {
			code = cli.ExitFailed
		}
		return interrupted(ctx, &cli.Error{Err: fmt.Errorf("promote: restore the deferred options: %w", failed), Code: code, Hint: again})
	}
	if len(o.refused) == 0 {
		return nil
	}
	hint := "Change or remove documents until each key is there once. " + again
	if unlisted {
		hint = "--violations FILE lists all of the documents. " + hint
	}
	return &cli.Error{Err: errors.Join(fmt.Errorf("promote: %d indexes are not unique, as they are at the source: %s", len(o.refused), printable.Text(o.refused.Error())), o.unlisted), Code: cli.ExitFailed, Hint: hint}
}

// names are the indexes that are not unique.
func (o *restored) names() string {
	list := make([]string, len(o.refused))
	for i, e := range o.refused {
		list[i] = printable.Text(e.Index + " of " + string(e.NS))
	}
	return strings.Join(list, ", ")
}
