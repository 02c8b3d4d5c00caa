package replset

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// Level is a read concern level.
type Level string

const (
	// Local reads everything that the member has.
	Local Level = "local"
	// Majority reads entries that the member knows to be majority-committed.
	Majority Level = "majority"
)

// Patience is the default maxTimeMS of the commands of this package: some wait for
// writes in flight, or for other members.
const Patience = time.Minute

// Find is a find of one document.
type Find struct {
	DB, Collection           string
	Filter, Sort, Projection bsoncore.Document
	// Level is the read concern. It is always sent, so that the default of the set does
	// not apply. Empty means Local.
	Level Level
	// After, if not zero, makes the member wait until it has everything up to that time.
	After bson.Timestamp
	// MaxTime is the command's maxTimeMS. Zero means Patience.
	MaxTime time.Duration
}

// Run returns the whole reply, which has the member's $oplogQueryData, and the first
// document in it, nil for none. Both are views into the same bytes.
func (f *Find) Run(ctx context.Context, member mongo.Caller) (reply, doc bson.Raw, err error) {
	reply, err = member.Call(ctx, f.command())
	if err != nil {
		return nil, nil, err
	}
	doc, err = First(reply)
	return reply, doc, err
}

func (f *Find) command() mongo.Command {
	level, limit := f.Level, f.MaxTime
	if level == "" {
		level = Local
	}
	if limit == 0 {
		limit = Patience
	}
	cmd := document().AppendString("find", f.Collection)
	for _, part := range []struct {
		name string
		doc  bsoncore.Document
	}{{"filter", f.Filter}, {"sort", f.Sort}, {"projection", f.Projection}} {
		if part.doc != nil {
			cmd.AppendDocument(part.name, part.doc)
		}
	}
	concern := document().AppendString("level", string(level))
	if !f.After.IsZero() {
		concern.AppendTimestamp("afterClusterTime", f.After.T, f.After.I)
	}
	cmd.AppendInt32("limit", 1).AppendBoolean("singleBatch", true).AppendDocument("readConcern", concern.Build()).
		AppendInt64("maxTimeMS", limit.Milliseconds())
	return Command(f.DB, cmd)
}

// Command completes a command: secondaries may answer it, and the reply includes
// $oplogQueryData.
func Command(db string, cmd *bsoncore.DocumentBuilder) mongo.Command {
	cmd.AppendDocument("$readPreference", document().AppendString("mode", "secondaryPreferred").Build()).
		AppendInt32("$oplogQueryData", 1)
	return mongo.Command{DB: db, Body: bson.Raw(cmd.Build())}
}

// First returns the first document of a cursor's first batch, nil for none.
func First(reply bson.Raw) (bson.Raw, error) {
	e, _ := rawbson.Lookup(reply, "cursor")
	cursor, _ := e.Document()
	e, _ = rawbson.Lookup(cursor, "firstBatch")
	batch, ok := e.Array()
	if !ok {
		return nil, mongo.ErrNoBatch
	}
	it := rawbson.NewIter(batch)
	if !it.Next() {
		return nil, it.Err()
	}
	doc, ok := it.Document()
	if !ok {
		return nil, fmt.Errorf("%w: an element is %s", mongo.ErrNoBatch, it.Type)
	}
	return doc, nil
}

func document() *bsoncore.DocumentBuilder { return bsoncore.NewDocumentBuilder() }
