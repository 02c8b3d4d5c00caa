package ddl

import (
	"context"
	"strings"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// rename gives a collection another name, and replaces the collection that has it if the
// log says so.
func (s *step) rename(ctx context.Context) (oplog.Namespace, error) {
	r, ns, err := s.renaming()
	switch {
	case err != nil:
		return ns, err
	case r == nil:
		return ns, s.dropOne(ctx, ns)
	}
	return ns, r.run(ctx)
}

// renaming returns a rename whose new name is mirrored, nil for another one, and the namespace of the target that it concerns first.
func (s *step) renaming() (*renaming, oplog.Namespace, error) {
	entry, err := s.op.RenameCollection()
	if err != nil {
		return nil, "", err
	}
	from, fromIn := s.target(entry.From)
	to, toIn := s.target(entry.To)
	switch {
	case !toIn:
		return nil, from, nil
	case !fromIn:
		return nil, to, s.resync(entry.To, "it was renamed from %s, which is not mirrored; copy it, or include %s from the start",
			entry.From, entry.From)
	case from.DB() != to.DB():
		return nil, from, s.resync(entry.To, "it was renamed from %s, which goes to another database of the target (%s, not %s); "+
			"map both to one", entry.From, from.DB(), to.DB())
	case from.IsBuckets() != to.IsBuckets():
		return nil, from, s.resync(entry.To, "it was renamed from %s, and only one of them has the buckets of a time series", entry.From)
	}
	return &renaming{step: s, source: entry.To, from: from, to: to, drops: !entry.DropTarget.IsZero(), stayTemp: entry.StayTemp}, from, nil
}

// renaming is a rename within a database of the target.
type renaming struct {
	*step
	// source is the new name at the source.
	source, from, to oplog.Namespace
	// drops is set if the log's rename drops the collection with the new name.
	drops, stayTemp bool
}

// run renames according to the namespaces that exist, and renames the deferred specs.
func (r *renaming) run(ctx context.Context) error {
	src, hasSrc, err := r.cfg.Catalog.Get(ctx, r.from)
	if err != nil {
		return err
	}
	dst, hasDst, err := r.cfg.Catalog.Get(ctx, r.to)
	if err != nil {
		return err
	}
	hasSrc = hasSrc && src.Type == catalog.TypeCollection
	if hasSrc {
		if err := r.seriesFree(ctx); err != nil {
			return err
		}
	}
	if err := r.notMissing(ctx, r.from); err != nil {
		return err
	}
	if r.placed() {
		if !hasSrc {
			src = nil
		}
		return r.runPlaced(ctx, src, dst)
	}
	switch {
	case hasSrc && !hasDst:
		if r.drops && r.mode == Once {
			return r.diverged(r.from, "there is no %s to be replaced", r.to)
		}
		err = r.move(ctx, src, nil)
	case hasSrc:
		err = r.onto(ctx, src, dst)
	case !hasDst && r.mode == Copied:
		r.tolerate(r.from, "there is neither it nor "+string(r.to))
		return r.noteMissing(ctx, r.to)
	case !hasDst || r.mode == Once || dst.Type != catalog.TypeCollection:
		return r.absent(r.from, "there is no such collection to be renamed to "+string(r.to))
	case r.mode == Copied:
		r.tolerate(r.from, "there is "+string(r.to)+" already")
	}
	if err != nil {
		return err
	}
	return r.follow(ctx)
}

// onto renames to a name that is in use.
func (r *renaming) onto(ctx context.Context, src, dst *catalog.Collection) error {
	own := r.mode == Copied && (r.made[src.UUID] || passing(r.from))
	switch {
	case dst.Type != catalog.TypeCollection && r.mode == Copied:
		// The view is newer, and the log creates it again.
		r.tolerate(r.to, "it is a "+dst.Type.String())
		if err := r.dropNow(ctx, r.to); err != nil {
			return err
		}
		return r.move(ctx, src, nil)
	case dst.Type != catalog.TypeCollection:
		return r.diverged(r.from, "%s is a %s", r.to, dst.Type)
	case r.drops && (r.mode != Copied || own), own:
		return r.move(ctx, src, dst)
	case r.drops:
		return r.resync(r.source, "the copy has both %s and %s, and which of them is the one that was renamed cannot be told",
			r.from, r.to)
	case r.mode == Copied:
		// At the source nothing had the new name then, so the collection that has it here
		// was copied later: it is the renamed one, or newer. The collection with the old
		// name is dropped at the source, or is newer too, and the log creates it again.
		r.tolerate(r.from, "there is "+string(r.to)+" already")
		return r.dropNow(ctx, r.from)
	}
	return r.diverged(r.from, "%s exists, and the log does not replace it", r.to)
}

// move renames a collection on the target. If over is not nil, it replaces that one.
func (r *renaming) move(ctx context.Context, src, over *catalog.Collection) error {
	_, err := r.send(ctx, change{
		db: "admin", name: "renameCollection", first: string(r.from), rest: fields{{"to", stringValue(string(r.to))}},
		coll: src, replaces: over,
	})
	if r.to.IsBuckets() && says(err, servererr.IsKept) {
		return r.resync(r.source, "it was renamed from %s, and the target does not rename these buckets: %v", r.from, err)
	}
	return err
}

// follow updates the catalog and the deferred specs after a rename.
func (r *renaming) follow(ctx context.Context) error {
	if err := r.cfg.Catalog.Refresh(ctx, r.from, r.to); err != nil {
		return err
	}
	coll, exists, err := r.cfg.Catalog.Get(ctx, r.to)
	if err != nil {
		return err
	}
	if !exists || coll.Type != catalog.TypeCollection {
		return r.diverged(r.to, "it is not there after the rename of %s", r.from)
	}
	if err := r.followSeries(ctx, coll); err != nil {
		return err
	}
	if err := r.notMissing(ctx, r.to); err != nil {
		return err
	}
	return r.moveDeferred(ctx, r.from, r.to, coll.UUID, r.stayTemp)
}

// passing reports whether a collection has a temporary name that a server generates for
// one command and never uses again, so that it stands for one collection only: $out,
// mapReduce, convertToCapped, renames between databases.
func passing(ns oplog.Namespace) bool {
	coll := ns.Series().Collection()
	if strings.HasPrefix(coll, "tmp.agg_out.") || strings.HasPrefix(coll, "tmp.mr.") {
		return true
	}
	prefix, rest, found := strings.Cut(coll, ".")
	const random = 5 // characters after tmp
	if !found || len(prefix) != len("tmp")+random || !strings.HasPrefix(prefix, "tmp") {
		return false
	}
	return rest == "renameCollection" || strings.HasPrefix(rest, "convertToCapped.") || rest == "create" || rest == "rename"
}
