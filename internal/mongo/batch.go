package mongo

import (
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// ErrNoBatch reports that the reply to a command that returns a cursor has no valid
// one.
var ErrNoBatch = errors.New("a reply without a usable cursor")

// Batch is one batch of a cursor.
type Batch struct {
	// Cursor is the id of the cursor, 0 if it is exhausted; DB and Collection are
	// those to send a getMore to.
	Cursor         int64
	DB, Collection string
	// Docs are views into the reply.
	Docs []bson.Raw
}

// ReadBatch reads the reply to a command that returns a cursor, or to a getMore. The
// error is ErrNoBatch, or that of a damaged document.
func ReadBatch(reply bson.Raw) (Batch, error) {
	e, _ := rawbson.Lookup(reply, "cursor")
	cursor, _ := e.Document()
	name := "firstBatch"
	e, ok := rawbson.Lookup(cursor, name)
	if !ok {
		name = "nextBatch"
		e, _ = rawbson.Lookup(cursor, name)
	}
	docs, hasDocs := e.Array()
	e, _ = rawbson.Lookup(cursor, "ns")
	ns, hasNS := e.Text()
	e, _ = rawbson.Lookup(cursor, "id")
	id, hasID := e.Int64()
	if !hasDocs || !hasNS || !hasID {
		return Batch{}, fmt.Errorf("%w: id, ns or batch is missing", ErrNoBatch)
	}
	b := Batch{Cursor: id}
	b.DB, b.Collection, _ = strings.Cut(ns, ".")
	it := rawbson.NewIter(docs)
	for it.Next() {
		doc, ok := it.Document()
		if !ok {
			return Batch{}, fmt.Errorf("%w: %s.%s is of type %s", ErrNoBatch, name, it.Name(), it.Type)
		}
		b.Docs = append(b.Docs, doc)
	}
	return b, it.Err()
}

// GetMore returns the command that asks for the next batch, to run on b.DB.
func (b Batch) GetMore() *bsoncore.DocumentBuilder {
	return bsoncore.NewDocumentBuilder().AppendInt64("getMore", b.Cursor).AppendString("collection", b.Collection)
}

// ReadCursor returns all documents of a cursor, as views into the replies, from the reply that opened
// it on. Run runs a getMore.
func ReadCursor(reply bson.Raw, run func(db string, getMore *bsoncore.DocumentBuilder) (bson.Raw, error)) ([]bson.Raw, error) {
	batch, err := ReadBatch(reply)
	docs := batch.Docs
	for err == nil && batch.Cursor != 0 {
		if reply, err = run(batch.DB, batch.GetMore()); err != nil {
			return nil, err
		}
		batch, err = ReadBatch(reply)
		docs = append(docs, batch.Docs...)
	}
	return docs, err
}
