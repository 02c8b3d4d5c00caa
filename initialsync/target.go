package initialsync

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

var errReply = errors.New("a reply of another form")

// databases lists the databases of the target.
func databases(ctx context.Context, target call.Caller) ([]string, error) {
	cmd := bsoncore.NewDocumentBuilder().AppendInt32("listDatabases", 1).AppendBoolean("nameOnly", true).Build()
	reply, err := target.Call(ctx, call.Command{DB: "admin", Body: bson.Raw(cmd)})
	if err != nil {
		return nil, fmt.Errorf("list the target's databases: %w", err)
	}
	e, _ := rawbson.Lookup(reply, "databases")
	array, ok := e.Array()
	if !ok {
		return nil, fmt.Errorf("list the target's databases: %w", errReply)
	}
	var names []string
	it := rawbson.NewIter(array)
	for it.Next() {
		doc, _ := it.Document()
		name, ok := textOf(doc, "name")
		if !ok {
			return nil, fmt.Errorf("list the target's databases: %w", errReply)
		}
		names = append(names, name)
	}
	return names, it.Err()
}

// listed is a collection, time series or view of the target.
type listed struct {
	ns oplog.Namespace
	// kind is "collection", "timeseries" or "view".
	kind string
}

func listCollections(ctx context.Context, target call.Caller, db string) ([]listed, error) {
	run := func(cmd *bsoncore.DocumentBuilder) (docs []bson.Raw, err error) {
		err = each(ctx, target, db, cmd, func(doc bson.Raw) error {
			docs = append(docs, doc)
			return nil
		})
		return docs, err
	}
	docs, err := run(bsoncore.NewDocumentBuilder().AppendInt32("listCollections", 1).AppendBoolean("nameOnly", true).
		AppendDocument("cursor", bsoncore.NewDocumentBuilder().Build()))
	if call.InvalidViews(err) {
		// What is invalid goes with the rest of the database.
		docs, _, _, err = call.ListDespite(db, run)
	}
	all := make([]listed, 0, len(docs))
	for _, doc := range docs {
		name, hasName := textOf(doc, "name")
		kind, hasKind := textOf(doc, "type")
		if !hasName || !hasKind {
			err = errReply
			break
		}
		all = append(all, listed{ns: oplog.NewNamespace(db, name), kind: kind})
	}
	if err != nil {
		return nil, fmt.Errorf("list the target's collections of %s: %w", db, err)
	}
	return all, nil
}

// heldNames returns the target's names of what a link holds something of, some
// of them more than once.
func heldNames(ctx context.Context, target call.Caller, metaDB, link string) ([]oplog.Namespace, error) {
	var names []oplog.Namespace
	cmd := bsoncore.NewDocumentBuilder().AppendString("find", "held").
		AppendDocument("filter", bsoncore.NewDocumentBuilder().AppendString("_id.link", link).Build()).
		AppendDocument("projection", bsoncore.NewDocumentBuilder().AppendInt32("_id", 1).Build())
	err := each(ctx, target, metaDB, cmd, func(doc bson.Raw) error {
		e, _ := rawbson.Lookup(doc, "_id")
		id, _ := e.Document()
		name, ok := textOf(id, "ns")
		if !ok {
			return errReply
		}
		names = append(names, oplog.Namespace(name))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read what is held of %s: %w", link, err)
	}
	return names, nil
}

// each runs a command that answers with a cursor and yields its documents. What
// is yielded may be kept.
func each(ctx context.Context, target call.Caller, db string, cmd *bsoncore.DocumentBuilder, yield func(doc bson.Raw) error) error {
	// A cursor can be used only in the session that it was made in.
	lsid := bsoncore.Document(call.NewSessionID())
	reply, err := target.Call(ctx, call.Command{DB: db, Body: bson.Raw(cmd.AppendDocument("lsid", lsid).Build())})
	for err == nil {
		var batch call.Batch
		if batch, err = call.ReadBatch(reply); err != nil {
			return err
		}
		for _, doc := range batch.Docs {
			if err := yield(doc); err != nil {
				return err
			}
		}
		if batch.Cursor == 0 {
			return nil
		}
		more := bsoncore.NewDocumentBuilder().AppendInt64("getMore", batch.Cursor).AppendString("collection", batch.Collection).
			AppendDocument("lsid", lsid).Build()
		reply, err = target.Call(ctx, call.Command{DB: batch.DB, Body: bson.Raw(more)})
	}
	return err
}

func textOf(doc bson.Raw, name string) (string, bool) {
	e, _ := rawbson.Lookup(doc, name)
	return e.Text()
}
