package ddl

import (
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/mongosim/internal/viewdef"
	"github.com/oplogrep/replicator/oplog"
)

func runCreate(ctx context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	ns, err := r.FirstName()
	if err != nil {
		return err
	}
	if err := CheckCreateName(ns); err != nil {
		return err
	}
	args, err := parseCreate(r, ns)
	if err != nil {
		return err
	}
	if r.InTxn() && strings.HasPrefix(ns.Collection(), "system.") {
		return servererr.New(servererr.OperationNotSupportedInTransaction,
			"Cannot create system collection %s within a transaction.", ns)
	}
	return r.Write(ctx, out, func(ops opwrite.Ops) error {
		if args.has("autoIndexId") {
			out.Buf = bsoncore.AppendStringElement(out.Buf, "note",
				"The autoIndexId option is deprecated and will be removed in a future release")
		}
		return create(r, ops, args)
	})
}

// create makes the collection, view or time-series collection that the arguments
// describe.
func create(r *dispatch.Request, ops opwrite.Ops, args *createOptions) error {
	if done, err := taken(r, ops.View(), args); done || err != nil {
		return err
	}
	switch {
	case args.has("viewOn"):
		return createView(ops, args)
	case args.has("timeseries"):
		return createTimeseries(r, ops, args)
	}
	_, err := ops.Create(args.ns, args.stored(r), args.idIndex)
	return err
}

// taken reports whether the name is in use: an error, except for an equal
// collection or view from server 7.0 on.
func taken(r *dispatch.Request, v storage.View, args *createOptions) (done bool, err error) {
	existing, collection := v.Collection(args.ns)
	def, view, err := viewdef.Lookup(v, args.ns)
	switch {
	case err != nil:
		return false, err
	case !collection && !view:
		return false, nil
	case !r.Server.AtLeast(7, 0):
		return false, args.exists(def, view)
	case collection && args.has("viewOn"):
		return false, servererr.New(servererr.NamespaceExists, "namespace %s already exists, but is not a view", args.ns)
	case collection:
		if string(existing.Options) == string(args.stored(r)) && !args.has("timeseries") {
			return true, nil
		}
		return false, differs(args.ns, existing)
	case args.has("viewOn") && !def.Timeseries:
		if args.text("viewOn") == def.On && string(args.pipeline()) == string(def.Pipeline) && string(args.collation) == string(def.Collation) {
			return true, nil
		}
		return false, servererr.New(servererr.NamespaceExists,
			"namespace %s already exists, but is a view on %s with another definition", args.ns, def.On)
	case args.has("timeseries") && def.Timeseries:
		buckets, ok := v.Collection(args.ns.Buckets())
		options, err := bucketOptions(r, args)
		if ok && err == nil && string(buckets.Options) == string(options) {
			return true, nil
		}
		if ok && err == nil {
			err = differs(args.ns, buckets)
		}
		return false, err
	default:
		return false, args.exists(def, view)
	}
}

// exists is the refusal of a name that is in use.
func (a *createOptions) exists(def viewdef.Def, view bool) error {
	switch {
	case view && a.has("timeseries") && def.Timeseries:
		return servererr.New(servererr.NamespaceExists, "A timeseries collection already exists. NS: %s", a.ns)
	case view && a.has("timeseries"):
		return servererr.New(servererr.NamespaceExists, "A view already exists. NS: %s", a.ns)
	}
	return servererr.New(servererr.NamespaceExists, "Collection already exists. NS: %s", a.ns)
}

// differs is the refusal of a collection that exists with other options.
func differs(ns oplog.Namespace, existing *storage.Collection) error {
	options := fmt.Sprintf("{ uuid: UUID(\"%s\") }", existing.UUID)
	if len(existing.Options) > len(dispatch.EmptyDocument) {
		options = options[:len(options)-2] + ", " + bsontext.Document(existing.Options)[2:]
	}
	return servererr.New(servererr.NamespaceExists, "namespace %s already exists, but with different options: %s", ns, options)
}

// CreateCollection makes a plain collection for a command that needs one.
func CreateCollection(ops opwrite.Ops, ns oplog.Namespace) error {
	if err := CheckCreateName(ns); err != nil {
		return err
	}
	_, err := ops.Create(ns, dispatch.EmptyDocument, storage.IDIndex(2, nil))
	return err
}
