package initialsync

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

var errReply = errors.New("a reply of another form")

// listed is a collection, time series or view of the target.
type listed struct {
	ns oplog.Namespace
	// kind is "collection", "timeseries" or "view".
	kind string
}

func listCollections(ctx context.Context, target mongo.Caller, db string) ([]listed, error) {
	run := func(cmd *bsoncore.DocumentBuilder) ([]bson.Raw, error) { return all(ctx, target, db, cmd) }
	docs, err := run(bsoncore.NewDocumentBuilder().AppendInt32("listCollections", 1).AppendBoolean("nameOnly", true).
		AppendDocument("cursor", bsoncore.NewDocumentBuilder().Build()))
	if mongo.InvalidViews(err) {
		// Invalid views are dropped with the rest of the database.
		docs, _, _, err = mongo.ListDespite(db, run)
	}
	list := make([]listed, 0, len(docs))
	for _, doc := range docs {
		name, hasName := textOf(doc, "name")
		kind, hasKind := textOf(doc, "type")
		if !hasName || !hasKind {
			err = errReply
			break
		}
		list = append(list, listed{ns: oplog.NewNamespace(db, name), kind: kind})
	}
	if err != nil {
		return nil, fmt.Errorf("list the target's collections of %s: %w", db, err)
	}
	return list, nil
}

// deferredNames returns the target's namespaces for which a link has deferred options,
// possibly with duplicates.
func deferredNames(ctx context.Context, target mongo.Caller, metaDB, link string) ([]oplog.Namespace, error) {
	var names []oplog.Namespace
	cmd := bsoncore.NewDocumentBuilder().AppendString("find", metadata.Deferred).
		AppendDocument("filter", bsoncore.NewDocumentBuilder().AppendString("_id.link", link).Build()).
		AppendDocument("projection", bsoncore.NewDocumentBuilder().AppendInt32("_id", 1).Build())
	docs, err := all(ctx, target, metaDB, cmd)
	for _, doc := range docs {
		e, _ := rawbson.Lookup(doc, "_id")
		id, _ := e.Document()
		name, ok := textOf(id, "ns")
		if !ok {
			err = errReply
			break
		}
		names = append(names, oplog.Namespace(name))
	}
	if err != nil {
		return nil, fmt.Errorf("read the deferred options of %s: %w", link, err)
	}
	return names, nil
}

// all runs a command that returns a cursor, in a session of its own, and returns its
// documents.
func all(ctx context.Context, target mongo.Caller, db string, cmd *bsoncore.DocumentBuilder) ([]bson.Raw, error) {
	return mongo.Retry{}.ReadAll(ctx, target, mongo.NewSessionID(), db, bson.Raw(cmd.Build()))
}

func textOf(doc bson.Raw, name string) (string, bool) {
	e, _ := rawbson.Lookup(doc, name)
	return e.Text()
}
