package applier

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// conn executes the commands of a flush: in its transaction, or outside of any.
type conn interface {
	read(ctx context.Context, cmd mongo.Command) (bson.Raw, error)
	write(ctx context.Context, cmd mongo.Command) (bson.Raw, error)
}

type inTxn struct{ *mongo.Txn }

func (c inTxn) read(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	return c.Call(ctx, cmd)
}

func (c inTxn) write(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	return c.Call(ctx, cmd)
}

// find builds the command that reads one document by its _id.
func find(ns oplog.Namespace, id bson.RawValue) mongo.Command {
	i, body := bsoncore.AppendDocumentStart(nil)
	body = bsoncore.AppendStringElement(body, "find", ns.Collection())
	f, body := bsoncore.AppendDocumentElementStart(body, "filter")
	// An _id may be a regular expression, or a document with an operator as a field name.
	e, body := bsoncore.AppendDocumentElementStart(body, "_id")
	body = bsoncore.AppendValueElement(body, "$eq", bsoncore.Value{Type: bsoncore.Type(id.Type), Data: id.Value})
	body, _ = bsoncore.AppendDocumentEnd(body, e)
	body, _ = bsoncore.AppendDocumentEnd(body, f)
	body = bsoncore.AppendInt32Element(body, "limit", 1)
	body = bsoncore.AppendBooleanElement(body, "singleBatch", true)
	body, _ = bsoncore.AppendDocumentEnd(body, i)
	return mongo.Command{DB: ns.DB(), Body: body}
}

// newest builds the command that reads the newest documents of a capped
// collection, the newest first.
func newest(ns oplog.Namespace, n int) mongo.Command {
	i, body := bsoncore.AppendDocumentStart(nil)
	body = bsoncore.AppendStringElement(body, "find", ns.Collection())
	body = bsoncore.AppendDocumentElement(body, "filter", bsoncore.NewDocumentBuilder().Build())
	body = bsoncore.AppendDocumentElement(body, "sort", bsoncore.NewDocumentBuilder().AppendInt32("$natural", -1).Build())
	body = bsoncore.AppendInt64Element(body, "limit", int64(n))
	body = bsoncore.AppendInt64Element(body, "batchSize", int64(n))
	body, _ = bsoncore.AppendDocumentEnd(body, i)
	return mongo.Command{DB: ns.DB(), Body: body}
}

// getMore builds the command that continues a cursor.
func getMore(ns oplog.Namespace, cursor int64) mongo.Command {
	body := bsoncore.NewDocumentBuilder().AppendInt64("getMore", cursor).AppendString("collection", ns.Collection()).Build()
	return mongo.Command{DB: ns.DB(), Body: bson.Raw(body)}
}

// batchOf returns the documents of a cursor's reply, and the cursor.
func batchOf(reply bson.Raw) (docs []bson.Raw, cursor int64, err error) {
	c, ok := reply.Lookup("cursor").DocumentOK()
	if !ok {
		return nil, 0, errors.New("read a reply: it has no cursor")
	}
	cursor, _ = c.Lookup("id").AsInt64OK()
	list, ok := c.Lookup("firstBatch").ArrayOK()
	if !ok {
		list, ok = c.Lookup("nextBatch").ArrayOK()
	}
	if !ok {
		return nil, 0, errors.New("read a reply: its cursor has no batch")
	}
	it := rawbson.NewIter(list)
	for it.Next() {
		doc, ok := it.Document()
		if !ok {
			return nil, 0, fmt.Errorf("read a reply: its batch has a %s", it.Type)
		}
		docs = append(docs, doc)
	}
	return docs, cursor, it.Err()
}

// look reads the document with an _id.
func look(ctx context.Context, c conn, ns oplog.Namespace, id bson.RawValue) (bson.Raw, bool, error) {
	reply, err := c.read(ctx, find(ns, id))
	if err != nil {
		return nil, false, err
	}
	docs, _, err := batchOf(reply)
	if err != nil || len(docs) == 0 {
		return nil, false, err
	}
	return docs[0], true, nil
}

// affected returns the n of a write command's reply.
func affected(reply bson.Raw) (int64, error) {
	n, ok := reply.Lookup("n").AsInt64OK()
	if !ok {
		return 0, errors.New("read the reply to a write: it has no n")
	}
	return n, nil
}

// refusals returns the write errors of a reply. Info of the first is its element as the
// server sent it: it contains the key of a duplicate.
func refusals(reply bson.Raw) ([]mongo.WriteError, error) {
	refused, err := mongo.WriteErrors(reply)
	if len(refused) > 0 {
		if doc, ok := reply.Lookup("writeErrors", "0").DocumentOK(); ok {
			refused[0].Info = doc
		}
	}
	return refused, err
}

// indexOf finds the name of the index in the message of a duplicate key.
func indexOf(message string) string {
	_, rest, ok := strings.Cut(message, " index: ")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, " dup key")
	return name
}
