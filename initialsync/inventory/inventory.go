package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// Scope selects the namespaces to mirror, and their names on the target.
type Scope interface {
	// Target returns where ns goes, false where it is not mirrored.
	Target(ns oplog.Namespace) (oplog.Namespace, bool)
	// TargetDBs returns all databases that collections of a database go to.
	TargetDBs(db string) []string
}

// Log is the part of the oplog that was read since the copy began: *spool.Spool.
type Log interface {
	// WaitFor returns once an entry at or after ts has been read.
	WaitFor(ctx context.Context, ts bson.Timestamp) error
	// Commands yields the entries after after, up to and including until, that are
	// commands, in order. A null after means from the first entry. An entry is a view,
	// valid until yield returns.
	Commands(ctx context.Context, after oplog.OpTime, until bson.Timestamp, yield func(*oplog.Entry) error) error
}

// Config has the settings of a listing.
type Config struct {
	// Source runs commands on the member that is copied.
	Source mongo.Caller
	Scope  Scope
	// Log must begin at or before the first entry of every transaction that commits
	// after Begin.
	Log Log
	// Begin is the entry after which the oplog is applied.
	Begin oplog.OpTime
}

func (c *Config) validate() error {
	var faults []error
	if c.Source == nil {
		faults = append(faults, errors.New("inventory: no source"))
	}
	if c.Scope == nil {
		faults = append(faults, errors.New("inventory: no scope"))
	}
	if c.Log == nil {
		faults = append(faults, errors.New("inventory: no log"))
	}
	if c.Begin.IsNull() {
		faults = append(faults, errors.New("inventory: no entry that the copy begins with"))
	}
	return errors.Join(faults...)
}

// Inventory is the collections and views to copy.
type Inventory struct {
	// Collections are in CollectionPlanned; the largest first. They have the names of
	// Begin. A collection that did not exist then is left out: the oplog creates and
	// fills it.
	Collections []progress.Collection
	// Views are the documents of the source's system.views as they were listed ({_id:
	// "db.view", viewOn, pipeline, collation}), without the views of time series, which
	// are created with their buckets, and without those whose name a collection had
	// after Begin, which are left to the oplog.
	Views []bson.Raw
	// Invalid are the documents of system.views that the source itself does not accept
	// as views, by name.
	Invalid []mongo.InvalidView
}

// Take lists the source.
func Take(ctx context.Context, cfg Config) (*Inventory, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := newSource(cfg.Source)
	inv, err := take(ctx, &cfg, s)
	s.end(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the source: %w", err)
	}
	return inv, nil
}

func take(ctx context.Context, cfg *Config, s *source) (*Inventory, error) {
	all, err := s.list(ctx, cfg.Scope)
	if err != nil {
		return nil, err
	}
	until, err := s.present(ctx)
	if err != nil {
		return nil, err
	}
	if err := cfg.Log.WaitFor(ctx, until); err != nil {
		return nil, fmt.Errorf("await the log up to %d:%d: %w", until.T, until.I, err)
	}
	past, err := readHistory(ctx, cfg.Log, cfg.Begin, until)
	if err != nil {
		return nil, fmt.Errorf("read the log's commands after %s: %w", cfg.Begin, err)
	}
	collections, views, err := past.restore(all)
	if err != nil {
		return nil, err
	}
	mirrored := func(ns oplog.Namespace) bool {
		_, in := cfg.Scope.Target(ns)
		return in
	}
	collections = slices.DeleteFunc(collections, func(l listed) bool { return !mirrored(l.atBegin) })
	views = slices.DeleteFunc(views, func(l listed) bool { return !mirrored(l.ns) })
	inv := &Inventory{Invalid: slices.DeleteFunc(s.invalid, func(v mongo.InvalidView) bool {
		return !v.Nameless && !mirrored(oplog.Namespace(v.ID))
	})}
	slices.SortFunc(inv.Invalid, func(a, b mongo.InvalidView) int { return cmp.Compare(a.ID, b.ID) })
	if inv.Collections, err = s.details(ctx, collections); err != nil {
		return nil, err
	}
	slices.SortFunc(inv.Collections, func(a, b progress.Collection) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.NS, b.NS))
	})
	slices.SortFunc(views, func(a, b listed) int { return cmp.Compare(a.ns, b.ns) })
	for i := range views {
		view, err := viewDocument(&views[i])
		if err != nil {
			return nil, err
		}
		inv.Views = append(inv.Views, view)
	}
	return inv, nil
}
