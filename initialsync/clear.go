package initialsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/initialsync/inventory"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// leftover is what the target has under the names that the copy uses.
type leftover struct {
	// collections are the source's names of collections and of buckets of time series.
	collections []oplog.Namespace
	// dbs are the source's databases for which the target has anything, including
	// deferred options.
	dbs map[string]bool
	// count is the number of collections, time series and views.
	count int
}

// clear drops what the target has under the names that the copy uses.
func (c *Copier) clear(ctx context.Context) error {
	c.enter(StepClear)
	left, err := c.leftover(ctx)
	if err != nil {
		return err
	}
	workers := min(c.cfg.Workers, len(left.collections))
	if err := c.equip(ctx, max(1, workers)); err != nil {
		return err
	}
	err = share(ctx, workers, left.collections, func(ctx context.Context, worker int, ns oplog.Namespace) error {
		op, err := inventory.DropOp(ns, c.copy.Begin)
		if err != nil {
			return err
		}
		return c.worker(worker).Apply(ctx, op)
	})
	if err != nil {
		return err
	}
	// Dropping the databases, as the oplog would, removes the rest: views, and deferred
	// options of collections that are gone.
	for _, db := range slices.Sorted(maps.Keys(left.dbs)) {
		if err := c.worker(0).Apply(ctx, dropDatabaseOp(db, c.copy.Begin)); err != nil {
			return err
		}
	}
	c.copy.Cleared = true
	if err := c.link.UpdateCopy(ctx, c.copy); err != nil {
		return err
	}
	c.cfg.Observer.Log(slog.LevelInfo, "conflicting collections of the target are dropped",
		slog.Int(keyDatabases, len(left.dbs)), slog.Int(keyCollections, left.count))
	return nil
}

func dropDatabaseOp(db string, at oplog.OpTime) *oplog.Op {
	return &oplog.Op{
		OpTime: at, Kind: oplog.KindCommand, Command: oplog.CommandDropDatabase, NS: oplog.NewNamespace(db, "$cmd"),
		O: bson.Raw(bsoncore.NewDocumentBuilder().AppendInt32("dropDatabase", 1).Build()),
	}
}

// leftover lists existing collections and views of the target under those names.
func (c *Copier) leftover(ctx context.Context) (leftover, error) {
	left := leftover{dbs: map[string]bool{}}
	dbs, err := mongo.Databases(ctx, c.cfg.Target)
	if err != nil {
		return left, fmt.Errorf("look at the target: %w", err)
	}
	for _, db := range dbs {
		if oplog.IsServerDB(db) || db == c.cfg.MetaDB {
			continue
		}
		listed, err := listCollections(ctx, c.cfg.Target, db)
		if err != nil {
			return left, err
		}
		for _, x := range listed {
			if err := left.add(c.cfg.Scope, x, listed); err != nil {
				return left, err
			}
		}
	}
	deferred, err := deferredNames(ctx, c.cfg.Target, c.cfg.MetaDB, c.cfg.Link)
	if err != nil {
		return left, err
	}
	for _, ns := range deferred {
		if from, in := c.cfg.Scope.Source(ns); in {
			left.dbs[from.DB()] = true
		}
	}
	return left, nil
}

// add adds one of the collections and views of a database of the target.
func (l *leftover) add(scope Scope, x listed, all []listed) error {
	// These are dropped with their views and series. Buckets that have lost their
	// series are a collection like any other.
	if x.ns.IsSystemViews() || x.ns.IsBuckets() && hasSeries(all, x.ns) {
		return nil
	}
	from, in := scope.Source(x.ns)
	if !in {
		return nil
	}
	l.dbs[from.DB()] = true
	l.count++
	switch x.kind {
	case "collection":
		l.collections = append(l.collections, from)
	case "timeseries":
		l.collections = append(l.collections, from.Buckets())
	case "view":
	default:
		return fmt.Errorf("%s is a %q: %w", x.ns, x.kind, errUnknownType)
	}
	return nil
}

var errUnknownType = errors.New("no rule for dropping such a thing; drop it, or exclude it")

func hasSeries(all []listed, buckets oplog.Namespace) bool {
	return slices.ContainsFunc(all, func(x listed) bool { return x.kind == "timeseries" && x.ns.Buckets() == buckets })
}
