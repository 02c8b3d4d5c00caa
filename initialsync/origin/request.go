package origin

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// question is a find of one document.
type question struct {
	db, collection string
	filter, sort   bsoncore.Document
	// concern is the read concern. It is always given: a default of the set must not
	// take its place.
	concern bsoncore.Document
	// patience is how long the member has for it.
	patience time.Duration
}

func document() *bsoncore.DocumentBuilder { return bsoncore.NewDocumentBuilder() }

// local is a read concern that is not waited for.
func local() bsoncore.Document { return document().AppendString("level", "local").Build() }

// after is a read concern that waits until everything up to at is there.
func after(level string, at bson.Timestamp) bsoncore.Document {
	return document().AppendString("level", level).AppendTimestamp("afterClusterTime", at.T, at.I).Build()
}

// ask returns the whole reply, and the document that was found, nil for none.
func (q *question) ask(ctx context.Context, member mongo.Caller) (reply, doc bson.Raw, err error) {
	cmd := document().AppendString("find", q.collection)
	if q.filter != nil {
		cmd.AppendDocument("filter", q.filter)
	}
	if q.sort != nil {
		cmd.AppendDocument("sort", q.sort)
	}
	cmd.AppendInt32("limit", 1).
		AppendBoolean("singleBatch", true).
		AppendDocument("readConcern", q.concern).
		AppendInt64("maxTimeMS", q.patience.Milliseconds())
	reply, err = run(ctx, member, q.db, cmd)
	if err != nil {
		return nil, nil, err
	}
	doc, err = first(reply)
	return reply, doc, err
}

// first returns the first document of a cursor's first batch, nil for none.
func first(reply bson.Raw) (bson.Raw, error) {
	e, _ := rawbson.Lookup(reply, "cursor")
	cursor, _ := e.Document()
	e, _ = rawbson.Lookup(cursor, "firstBatch")
	batch, ok := e.Array()
	if !ok {
		return nil, errNoBatch
	}
	it := rawbson.NewIter(batch)
	if !it.Next() {
		return nil, it.Err()
	}
	doc, ok := it.Document()
	if !ok {
		return nil, fmt.Errorf("%w: an element is %s", errNoBatch, it.Type)
	}
	return doc, nil
}

// run sends a command that a secondary may answer too, and asks for what the
// member says of its oplog.
func run(ctx context.Context, member mongo.Caller, db string, cmd *bsoncore.DocumentBuilder) (bson.Raw, error) {
	cmd.AppendDocument("$readPreference", document().AppendString("mode", "secondaryPreferred").Build()).
		AppendInt32("$oplogQueryData", 1)
	return member.Call(ctx, mongo.Command{DB: db, Body: bson.Raw(cmd.Build())})
}
