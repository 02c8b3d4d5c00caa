package ddl

import (
	"cmp"
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/mongosim/internal/viewdef"
	"github.com/oplogrep/replicator/oplog"
)

func runRename(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	from, err := renameName(r, r.Name, "source")
	if err != nil {
		return err
	}
	to, err := renameName(r, "to", "target")
	if err != nil {
		return err
	}
	dropTarget, dropped, err := renameTarget(r)
	if err != nil {
		return err
	}
	want, err := expected(r, uuidField)
	if err != nil {
		return err
	}
	stayTemp, err := renameFlag(r, "stayTemp")
	if err != nil {
		return err
	}
	if err := checkRename(r, from, to, !want.IsZero() || !dropped.IsZero()); err != nil {
		return err
	}
	return r.WriteBatch(ctx, out, func(b *opwrite.Batch) error {
		if err := meant(b.View(), from, want); err != nil {
			return err
		}
		if err := meant(b.View(), to, dropped); err != nil {
			return err
		}
		coll, ok := b.View().Collection(from)
		if !ok {
			if _, isView, err := viewdef.Lookup(b.View(), from); err != nil || isView {
				return cmpErr(err, servererr.New(servererr.CommandNotSupportedOnView, "cannot rename view: %s", from))
			}
			return servererr.New(servererr.NamespaceNotFound, "Source collection %s does not exist", from)
		}
		var target *storage.Collection
		if existing, taken := b.View().Collection(to); taken {
			if !dropTarget {
				return servererr.New(servererr.NamespaceExists, "target namespace exists")
			}
			target = existing
		} else if _, isView, err := viewdef.Lookup(b.View(), to); err != nil || isView {
			return cmpErr(err, servererr.New(servererr.NamespaceExists, "a view already exists with that name: %s", to))
		}
		if err := cmp.Or(notBuilding(coll), notBuilding(target)); err != nil {
			return err
		}
		return b.Rename(coll, to, target, stayTemp)
	})
}

// checkRename refuses names that a rename cannot go from or to; byUUID says that it
// names the UUID of a collection.
func checkRename(r *dispatch.Request, from, to oplog.Namespace, byUUID bool) error {
	if from == to {
		return servererr.New(servererr.IllegalOperation, "Can't rename a collection to itself")
	}
	if err := CheckCreateName(to); err != nil {
		return err
	}
	if from.IsBuckets() {
		return checkRenameBuckets(r, from, to)
	}
	if fromSystem, toSystem := strings.HasPrefix(from.Collection(), "system."), strings.HasPrefix(to.Collection(), "system."); fromSystem != toSystem || fromSystem {
		return servererr.New(servererr.IllegalOperation, "renaming system collections is not allowed: %s to %s", from, to)
	}
	if (from.DB() == "local") != (to.DB() == "local") {
		return servererr.New(servererr.IllegalOperation, "Cannot rename collections between a replicated and an unreplicated database")
	}
	if byUUID && from.DB() != to.DB() {
		return servererr.New(servererr.InvalidOptions, "The collectionUUID parameter cannot be used when renaming a collection across databases")
	}
	return nil
}

// checkRenameBuckets refuses to rename buckets, except, since 7.0.3, those of a $out to others (rename_collection.cpp,
// validateNamespacesForRenameCollection). A server lets users with the action setUserWriteBlockMode rename all.
func checkRenameBuckets(r *dispatch.Request, from, to oplog.Namespace) error {
	if !strings.HasPrefix(from.Series().Collection(), "tmp.agg_out.") || !r.Server.AtLeast(7, 0) {
		return servererr.New(servererr.IllegalOperation, "Renaming system.buckets collections is not allowed")
	}
	if !to.IsBuckets() {
		return servererr.New(servererr.IllegalOperation,
			"Cannot rename timeseries buckets collection '%s' to a namespace that is not timeseries buckets '%s'.", from, to)
	}
	if from.DB() != to.DB() {
		return servererr.New(servererr.NotImplemented, "renaming buckets to another database is not implemented here")
	}
	return nil
}

// renameTarget reads dropTarget: a boolean, or, since 6.0, the UUID of the collection
// to drop.
func renameTarget(r *dispatch.Request) (bool, oplog.UUID, error) {
	e, ok := rawbson.Lookup(r.Cmd, "dropTarget")
	if _, _, isBinary := e.Binary(); ok && isBinary && r.Server.AtLeast(6, 0) {
		id, err := expected(r, "dropTarget")
		return true, id, err
	}
	drop, err := renameFlag(r, "dropTarget")
	return drop, oplog.UUID{}, err
}

// renameFlag reads an argument that is a boolean.
func renameFlag(r *dispatch.Request, field string) (bool, error) {
	e, ok := rawbson.Lookup(r.Cmd, field)
	if !ok || e.Type == bson.TypeNull || e.Type == bson.TypeUndefined {
		return false, nil
	}
	on, ok := e.Bool()
	if !ok {
		return false, dispatch.WrongType("renameCollection", field, e.Type, "bool")
	}
	return on, nil
}

func renameName(r *dispatch.Request, field, what string) (oplog.Namespace, error) {
	e, ok := rawbson.Lookup(r.Cmd, field)
	if !ok {
		return "", dispatch.MissingField("renameCollection", field)
	}
	text, ok := e.Text()
	if !ok {
		return "", servererr.New(servererr.TypeMismatch,
			"BSON field 'renameCollection.%s' is the wrong type '%s', expected type 'string'", field, bsontext.TypeName(e.Type))
	}
	ns := oplog.Namespace(text).Clone()
	if ns.DB() == "" || ns.Collection() == "" || !strings.Contains(text, ".") {
		return "", servererr.New(servererr.InvalidNamespace, "Invalid %s namespace: %s", what, text)
	}
	return ns, nil
}
