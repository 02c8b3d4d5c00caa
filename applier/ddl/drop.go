package ddl

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// emptyCapped removes all documents of a capped collection. Servers have a command for
// that only with test commands enabled. Newer servers accept a delete without a filter.
func (s *step) emptyCapped(ctx context.Context) (oplog.Namespace, error) {
	source, err := s.op.EmptyCapped()
	if err != nil {
		return "", err
	}
	ns, _ := s.target(source)
	coll, exists, err := s.cfg.Catalog.Get(ctx, ns)
	switch {
	case err != nil:
		return ns, err
	case !exists || coll.Type != catalog.TypeCollection:
		return ns, s.absent(ns, "there is no such collection")
	}
	d := change{db: ns.DB(), name: "emptycapped", first: ns.Collection(), coll: coll}
	_, err = s.send(ctx, d)
	if !says(err, servererr.IsNoCommand) {
		return ns, err
	}
	statement := bsoncore.NewDocumentBuilder().
		AppendDocument("q", bsoncore.NewDocumentBuilder().Build()).AppendInt32("limit", 0).Build()
	deletes := bsoncore.NewArrayBuilder().AppendDocument(statement).Build()
	d.name, d.rest = "delete", fields{{"deletes", bson.RawValue{Type: bson.TypeArray, Value: deletes}}}
	reply, err := s.send(ctx, d)
	if err != nil {
		return ns, err
	}
	refused, err := mongo.WriteErrors(reply)
	if err == nil && len(refused) > 0 {
		err = &refused[0].Error
	}
	return ns, err
}

// drop removes a collection, a time-series collection, or, as system.views, all views of
// a database.
func (s *step) drop(ctx context.Context) (oplog.Namespace, error) {
	entry, err := s.op.Drop()
	if err != nil {
		return "", err
	}
	if entry.NS.IsSystemViews() {
		return entry.NS, s.dropViews(ctx, entry.NS.DB())
	}
	ns, _ := s.target(entry.NS)
	return ns, s.dropOne(ctx, ns)
}

// dropOne removes a collection, or the time-series collection of buckets, and its
// deferred specs.
func (s *step) dropOne(ctx context.Context, ns oplog.Namespace) error {
	if err := s.notMissing(ctx, ns); err != nil {
		return err
	}
	coll, exists, err := s.cfg.Catalog.Get(ctx, ns)
	switch {
	case err != nil:
		return err
	case exists && coll.Type != catalog.TypeCollection && s.mode == Copied:
		s.tolerate(ns, "it is a "+coll.Type.String())
		return nil
	case exists && coll.Type != catalog.TypeCollection:
		return s.diverged(ns, "it is a %s", coll.Type)
	case exists:
		if err := s.dropNow(ctx, ns); err != nil {
			return err
		}
	case s.mode == Once:
		return s.diverged(ns, "there is no such collection")
	case s.mode == Copied:
		s.tolerate(ns, "there is no such collection")
	}
	return s.release(ctx, s.deferredFilter(ns))
}

// dropNow drops an existing namespace. Buckets are dropped with their time-series
// collection, if that exists.
func (s *step) dropNow(ctx context.Context, ns oplog.Namespace) error {
	names := []oplog.Namespace{ns}
	dropped, exists, err := s.cfg.Catalog.Get(ctx, ns)
	if err != nil {
		return err
	}
	if exists && dropped.Type == catalog.TypeTimeseries {
		names = append(names, ns.Buckets()) // they go with it, and may come again
	}
	if ns.IsBuckets() {
		series := ns.Series()
		names = append(names, series)
		if coll, exists, err := s.cfg.Catalog.Get(ctx, series); err != nil {
			return err
		} else if exists && coll.Type == catalog.TypeTimeseries {
			ns, dropped = series, coll
		}
	}
	if !exists {
		return s.diverged(ns, "it is gone")
	}
	if _, err := s.send(ctx, change{db: ns.DB(), name: "drop", first: ns.Collection(), coll: dropped}); err != nil {
		return err
	}
	return s.cfg.Catalog.Refresh(ctx, names...)
}

// dropViews removes the views that come from a database of the source. Time series are
// not included: they are dropped with their buckets.
func (s *step) dropViews(ctx context.Context, db string) error {
	left, err := s.left(ctx, db)
	if err != nil {
		return err
	}
	for _, coll := range left {
		if coll.Type != catalog.TypeView {
			continue
		}
		if err := s.dropNow(ctx, coll.NS); err != nil {
			return err
		}
	}
	if err := s.takeViews(ctx, db); err != nil {
		return err
	}
	return s.dropDefinitions(ctx, db)
}

// dropDefinitions removes the collection of view definitions if it is empty, in a
// database of the target that may have views of others, which this catalog need not know.
// A view created concurrently by another process would be lost, so nothing is removed
// while another process is known to be active.
func (s *step) dropDefinitions(ctx context.Context, db string) error {
	if s.cfg.Shared {
		return nil
	}
	for _, to := range s.cfg.Scope.TargetDBs(db) {
		ns := oplog.NewNamespace(to, "system.views")
		if err := s.cfg.Catalog.Refresh(ctx, ns); err != nil {
			return err
		}
		_, there, err := s.cfg.Catalog.Get(ctx, ns)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		defines, err := s.defines(ctx, ns)
		if err == nil && !defines {
			err = s.dropNow(ctx, ns)
		}
		if says(err, servererr.IsKept) {
			// It contains no definition, or none of ours.
			s.log(slog.LevelInfo, "collection of view definitions left", slog.String(keyNS, string(ns)), slog.Any(keyError, err))
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// defines reports whether a collection of the target defines a view now. Invalid
// definitions do not count: no client can use them, and while there is one a server
// refuses to create anything in that database.
func (s *step) defines(ctx context.Context, ns oplog.Namespace) (bool, error) {
	cmd := command("find", ns.Collection())
	docs, err := catalog.ReadAll(ctx, s.reader, ns.DB(), bson.Raw(cmd.Build()))
	if err != nil {
		return false, fmt.Errorf("look whether %s defines a view: %w", ns, err)
	}
	return slices.ContainsFunc(docs, func(def bson.Raw) bool { return mongo.IsView(ns.DB(), def) }), nil
}

// dropDatabase removes the rest of a database of the source from the target. The log has
// dropped its collections one by one before. The target's database may contain other
// namespaces, so it is not dropped itself.
func (s *step) dropDatabase(ctx context.Context) (oplog.Namespace, error) {
	db := s.op.NS.DB()
	left, err := s.left(ctx, db)
	if err != nil {
		return "", err
	}
	for _, coll := range left {
		if coll.NS.IsSystemViews() || coll.NS.IsBuckets() {
			continue // they are dropped with their views and series
		}
		if err := s.dropNow(ctx, coll.NS); err != nil {
			return coll.NS, err
		}
	}
	// Not by the drops of this attempt: an interrupted one may have dropped more.
	deferred, err := ReadDeferred(ctx, s.reader, s.cfg.MetaDB, s.cfg.Link)
	if err != nil {
		return "", err
	}
	for _, h := range deferred {
		if ns, in := s.cfg.Scope.Source(h.NS); !in || ns.DB() != db {
			continue
		}
		if err := s.releaseIndex(ctx, h.NS, h.Index); err != nil {
			return h.NS, err
		}
	}
	if err := s.takeViews(ctx, db); err != nil {
		return "", err
	}
	return oplog.Namespace(strings.Clone(db)), s.dropDefinitions(ctx, db)
}

// left returns the namespaces that remain on the target of a database of the source.
func (s *step) left(ctx context.Context, db string) ([]*catalog.Collection, error) {
	var left []*catalog.Collection
	for _, to := range s.cfg.Scope.TargetDBs(db) {
		all, err := s.cfg.Catalog.Database(ctx, to)
		if err != nil {
			return nil, err
		}
		for _, coll := range all {
			if ns, in := s.cfg.Scope.Source(coll.NS); in && ns.DB() == db {
				left = append(left, coll)
			}
		}
	}
	return left, nil
}
