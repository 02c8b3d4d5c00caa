package catalog

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// List returns the listCollections documents of a database, or of one collection if a
// name is given.
func List(ctx context.Context, target mongo.Caller, db, collection string) ([]bson.Raw, error) {
	cmd := bsoncore.NewDocumentBuilder().AppendInt32("listCollections", 1)
	if collection != "" {
		cmd = cmd.AppendDocument("filter", bsoncore.NewDocumentBuilder().AppendString("name", collection).Build())
	}
	docs, err := ReadAll(ctx, target, db, bson.Raw(cmd.AppendDocument("cursor", wholeBatch()).Build()))
	if mongo.InvalidViews(err) {
		docs, err = listDespite(ctx, target, db, collection)
	}
	if err != nil {
		return nil, fmt.Errorf("read the collections of %s: %w", db, err)
	}
	return docs, nil
}

// listDespite is List for a database with an invalid view, which it omits. Without the
// privilege to read the definitions it omits the valid views too: no command on a view
// succeeds there anyway, until the invalid one is removed.
func listDespite(ctx context.Context, target mongo.Caller, db, collection string) ([]bson.Raw, error) {
	docs, _, _, err := mongo.ListDespite(db, func(cmd *bsoncore.DocumentBuilder) ([]bson.Raw, error) {
		return ReadAll(ctx, target, db, bson.Raw(cmd.Build()))
	})
	if collection == "" {
		return docs, err
	}
	return slices.DeleteFunc(docs, func(doc bson.Raw) bool {
		e, _ := rawbson.Lookup(doc, "name")
		name, _ := e.Text()
		return name != collection
	}), err
}

// Look returns the target's current namespace of that name, nil for none. Ordered does
// not consider the indexes.
func Look(ctx context.Context, target mongo.Caller, ns oplog.Namespace) (*Collection, error) {
	docs, err := List(ctx, target, ns.DB(), ns.Collection())
	if err != nil || len(docs) == 0 {
		return nil, err
	}
	return listed(ns.DB(), docs[0])
}

// Indexes returns the listIndexes documents of a collection.
func Indexes(ctx context.Context, target mongo.Caller, ns oplog.Namespace) ([]bson.Raw, error) {
	cmd := bsoncore.NewDocumentBuilder().AppendString("listIndexes", ns.Collection()).AppendDocument("cursor", wholeBatch()).Build()
	specs, err := ReadAll(ctx, target, ns.DB(), bson.Raw(cmd))
	if err != nil {
		return nil, fmt.Errorf("read the indexes of %s: %w", ns, err)
	}
	return specs, nil
}

// IndexBuilds returns the definitions of a collection's indexes: of those that are ready,
// and of those that are being built, by build.
func IndexBuilds(ctx context.Context, target mongo.Caller, ns oplog.Namespace) (ready []bson.Raw, building map[oplog.UUID][]bson.Raw, err error) {
	cmd := bsoncore.NewDocumentBuilder().AppendString("listIndexes", ns.Collection()).AppendDocument("cursor", wholeBatch()).
		AppendBoolean("includeBuildUUIDs", true).Build()
	docs, err := ReadAll(ctx, target, ns.DB(), bson.Raw(cmd))
	if err != nil {
		return nil, nil, fmt.Errorf("read the indexes of %s: %w", ns, err)
	}
	building = map[oplog.UUID][]bson.Raw{}
	for _, doc := range docs {
		e, _ := rawbson.Lookup(doc, "buildUUID")
		spec, _ := rawbson.Lookup(doc, "spec")
		_, id, inProgress := e.Binary()
		if !inProgress {
			ready = append(ready, doc)
			continue
		}
		of, ok := spec.Document()
		if !ok || len(id) != len(oplog.UUID{}) {
			return nil, nil, fmt.Errorf("read the indexes of %s: one that is being built: %s", ns, doc)
		}
		building[oplog.UUID(id)] = append(building[oplog.UUID(id)], of)
	}
	return ready, building, nil
}

// wholeBatch requests as much as fits a reply, so that a cursor seldom remains.
func wholeBatch() bsoncore.Document {
	return bsoncore.NewDocumentBuilder().AppendInt32("batchSize", 1_000_000).Build()
}

// ReadAll runs a command that returns a cursor, and returns all of its documents. They
// are views into the replies. It retries transient errors.
func ReadAll(ctx context.Context, target mongo.Caller, db string, cmd bson.Raw) ([]bson.Raw, error) {
	return mongo.Retry{}.ReadAll(ctx, target, nil, db, cmd)
}
