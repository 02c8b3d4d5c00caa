package ddl

import (
	"context"

	"github.com/oplogrep/replicator/applier/catalog"
)

// A $out into a time series X writes buckets whose name the server generates, without a view, and renames them
// (document_source_out.cpp, since 7.0.3):
//
//	create system.buckets.tmp.agg_out.U {temp, timeseries: …}, createIndexes, inserts
//	renameCollection system.buckets.tmp.agg_out.U to system.buckets.X, dropTarget: UUID
//	i system.views X, unless X has existed before
//
// On the target tmp.agg_out.U is a whole time series. Servers let clients rename such buckets, too, since then: those that have
// this name (rename_collection.cpp, isOutTmpBucketsCollection). The view X finds its buckets by their name, and stays.

// followSeries gives renamed buckets, after the rename, the view of their new name, and removes that of the old one, which reads nothing.
func (r *renaming) followSeries(ctx context.Context, buckets *catalog.Collection) error {
	if !r.to.IsBuckets() {
		return nil
	}
	if err := r.cfg.Catalog.Refresh(ctx, r.from.Series(), r.to.Series()); err != nil {
		return err
	}
	if err := r.makeSeries(ctx, buckets); err != nil {
		return err
	}
	if _, kept, err := r.cfg.Catalog.Get(ctx, r.from); err != nil || kept {
		return err
	}
	old, exists, err := r.cfg.Catalog.Get(ctx, r.from.Series())
	if err != nil || !exists || old.Type != catalog.TypeTimeseries {
		return err
	}
	return r.dropNow(ctx, old.NS)
}

// seriesFree returns an error if a collection has the name of the time series that the buckets become: before anything is renamed.
func (r *renaming) seriesFree(ctx context.Context) error {
	if !r.to.IsBuckets() {
		return nil
	}
	name := r.to.Series()
	coll, exists, err := r.cfg.Catalog.Get(ctx, name)
	switch {
	case err != nil:
		return err
	case !exists || coll.Type != catalog.TypeCollection:
		return nil
	case r.mode == Copied && !r.placed():
		return r.resync(r.source.Series(), "the copy has a %s in its place", coll.Type)
	}
	return r.diverged(name, "there is a %s already", coll.Type)
}

// makeSeries creates the time series of existing buckets: its view, which is all that it lacks.
func (r *renaming) makeSeries(ctx context.Context, buckets *catalog.Collection) error {
	name := r.to.Series()
	coll, exists, err := r.cfg.Catalog.Get(ctx, name)
	switch {
	case err != nil:
		return err
	case exists && coll.Type == catalog.TypeTimeseries:
		return nil
	case exists && coll.Type == catalog.TypeView && r.mode == Copied:
		// It is newer, and the log creates it again.
		r.tolerate(name, "there is a view")
		if err := r.dropNow(ctx, name); err != nil {
			return err
		}
	case exists:
		return r.diverged(name, "there is a %s already", coll.Type)
	}
	if err := r.createNow(ctx, name, split(buckets.Options).without(derivedOptions...), false); err != nil {
		return err
	}
	return r.cfg.Catalog.Refresh(ctx, name)
}
