package ddl

import (
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/arg"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/mongosim/internal/viewdef"
	"github.com/oplogrep/replicator/oplog"
)

func runDrop(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	ns, err := r.FirstName()
	if err != nil {
		return err
	}
	if ns == dispatch.OplogNamespace {
		return checkDroppable(ns)
	}
	want, err := expected(r, uuidField)
	if err != nil {
		return err
	}
	return r.WriteBatch(ctx, out, func(b *opwrite.Batch) error {
		if err := meant(b.View(), ns, want); err != nil {
			return err
		}
		coll, ok := b.View().Collection(ns)
		if ok {
			if err := checkDroppable(ns); err != nil {
				return err
			}
			out.Buf = bsoncore.AppendInt32Element(out.Buf, "nIndexesWas", int32(len(coll.Indexes)))
			out.Buf = bsoncore.AppendStringElement(out.Buf, "ns", string(ns))
			return b.Drop(coll)
		}
		def, isView, err := viewdef.LookupUnchecked(b.View(), ns)
		switch {
		case err != nil:
			return err
		case isView:
			out.Buf = bsoncore.AppendStringElement(out.Buf, "ns", string(ns))
			return dropView(b, ns, def)
		case r.Server.AtLeast(7, 0):
			return nil
		}
		return servererr.New(servererr.NamespaceNotFound, "ns not found")
	})
}

// checkDroppable refuses collections that the server requires.
func checkDroppable(ns oplog.Namespace) error {
	coll := ns.Collection()
	switch {
	case ns == dispatch.OplogNamespace:
		return servererr.New(5255000, "can't drop live oplog while replicating")
	case !strings.HasPrefix(coll, "system."):
		return nil
	case strings.HasPrefix(coll, "system.buckets."), ns == "config.system.sessions", ns == "admin.system.keys", ns == "local.system.healthlog":
		return nil
	}
	switch coll {
	case "system.views", "system.js", "system.profile":
		return nil
	}
	return servererr.New(servererr.IllegalOperation, "can't drop system collection %s", ns)
}

// dropView removes a view's definition, and the buckets of a time-series
// collection.
func dropView(b *opwrite.Batch, ns oplog.Namespace, def viewdef.Def) error {
	views, ok := b.View().Collection(oplog.NewNamespace(ns.DB(), "system.views"))
	if !ok {
		return servererr.New(servererr.NamespaceNotFound, "ns not found")
	}
	if def.Timeseries {
		if buckets, ok := b.View().Collection(ns.Buckets()); ok {
			if err := b.Drop(buckets); err != nil {
				return err
			}
		}
	}
	record, ok := viewRecord(views, ns)
	if !ok {
		return servererr.New(servererr.NamespaceNotFound, "ns not found")
	}
	return b.Delete(views, record, opwrite.Stmt{}, opwrite.NoImage)
}

// viewRecord returns the stored definition of a view.
func viewRecord(views *storage.Collection, ns oplog.Namespace) (storage.Record, bool) {
	return views.Get(bson.RawValue{Type: bson.TypeString, Value: bsoncore.AppendString(nil, string(ns))})
}

func runDropDatabase(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	if e, ok := rawbson.Lookup(r.Cmd, r.Name); ok {
		if n, number := e.Int64(); !number || n != 1 {
			return servererr.New(5255100, "Have to pass 1 as 'dropDatabase' parameter")
		}
	}
	switch r.DB {
	case "config", "admin", "local":
		return servererr.New(servererr.IllegalOperation, "Dropping the '%s' database is prohibited.", r.DB)
	}
	return r.WriteBatch(ctx, out, func(b *opwrite.Batch) error { return b.DropDatabase(r.DB) })
}

func runConvertToCapped(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	ns, err := r.FirstName()
	if err != nil {
		return err
	}
	e, ok := rawbson.Lookup(r.Cmd, "size")
	v := e.Raw()
	size := arg.Int64(v)
	switch {
	case !ok || !v.IsNumber() || size <= 0:
		return servererr.New(servererr.InvalidOptions, "Capped collection size must be greater than zero")
	case roundedSize(size) > maxCapped:
		return servererr.New(servererr.BadValue, "size cannot exceed 1 PB")
	}
	return r.WriteBatch(ctx, out, func(b *opwrite.Batch) error {
		coll, ok := b.View().Collection(ns)
		if !ok {
			if _, isView, err := viewdef.Lookup(b.View(), ns); err != nil || isView {
				return cmpErr(err, servererr.New(servererr.CommandNotSupportedOnView, "cannot convert a view to a capped collection"))
			}
			return servererr.New(servererr.NamespaceNotFound, "source collection %s does not exist", ns)
		}
		if arg.Has(coll.Options, "clusteredIndex") {
			return servererr.New(servererr.IllegalOperation, "cannot convert a clustered collection to a capped collection: %s", ns)
		}
		if err := notBuilding(coll); err != nil {
			return err
		}
		return b.ConvertToCapped(coll, roundedSize(size))
	})
}

func runEmptyCapped(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	ns, err := r.FirstName()
	if err != nil {
		return err
	}
	return r.WriteBatch(ctx, out, func(b *opwrite.Batch) error {
		coll, ok := b.View().Collection(ns)
		if !ok {
			if _, isView, err := viewdef.Lookup(b.View(), ns); err != nil || isView {
				return cmpErr(err, servererr.New(servererr.CommandNotSupportedOnView, "emptycapped not supported on view: %s", ns))
			}
			return servererr.New(servererr.NamespaceNotFound, "no such collection")
		}
		if coll.CappedBytes == 0 {
			return servererr.New(servererr.IllegalOperation, "collection must be capped")
		}
		if err := notBuilding(coll); err != nil {
			return err
		}
		return b.EmptyCapped(coll)
	})
}

func cmpErr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}
