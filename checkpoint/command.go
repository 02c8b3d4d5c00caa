package checkpoint

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// The collections.
const (
	linksCollection = "links"
	lanesCollection = "lanes"
	heldCollection  = "held"
	// routesCollection is of the collections of the target that have one lane.
	routesCollection = "routes"
	// copiesCollection is of the collections and ranges of copies, and
	// requestsCollection of what operators want.
	copiesCollection   = "copies"
	requestsCollection = "requests"
	// parkedCollection is of documents that the applier has put aside.
	parkedCollection = "parked"
	// owedCollection is of names of collections that a copy lacks.
	owedCollection = "owed"
)

// statement is one statement of a write command.
type statement struct {
	filter, change func(dst []byte) []byte // change is nil for a delete
	multi          bool
	upsert         bool
}

// appendMajority appends the write concern of what must not be lost.
func appendMajority(dst []byte) []byte {
	return appendDoc(dst, "writeConcern", func(dst []byte) []byte {
		return bsoncore.AppendStringElement(dst, "w", "majority")
	})
}

// updateCommand builds an update; majority is for those outside of transactions.
func updateCommand(db, collection string, majority bool, statements ...statement) mongo.Command {
	docs := make([]bson.Raw, len(statements))
	for i := range statements {
		docs[i] = statements[i].update()
	}
	return writeCommand(db, "update", collection, "updates", majority, docs...)
}

// update is the statement as an update command holds it.
func (s *statement) update() bson.Raw {
	return document(func(dst []byte) []byte {
		dst = appendDoc(dst, "q", s.filter)
		dst = appendDoc(dst, "u", s.change)
		if s.upsert {
			dst = bsoncore.AppendBooleanElement(dst, "upsert", true)
		}
		return bsoncore.AppendBooleanElement(dst, "multi", s.multi)
	})
}

// deleteCommand builds a delete of everything that the filter matches; majority is
// for those outside of transactions.
func deleteCommand(db, collection string, majority bool, filter func(dst []byte) []byte) mongo.Command {
	doc := document(func(dst []byte) []byte {
		dst = appendDoc(dst, "q", filter)
		return bsoncore.AppendInt32Element(dst, "limit", 0)
	})
	return writeCommand(db, "delete", collection, "deletes", majority, doc)
}

func writeCommand(db, name, collection, sequence string, majority bool, docs ...bson.Raw) mongo.Command {
	body := document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, name, collection)
		if majority {
			dst = appendMajority(dst)
		}
		return dst
	})
	return mongo.Command{DB: db, Body: body, Sequence: sequence, Docs: docs}
}

// findCommand builds a find whose whole result is in its reply: of the fields
// given and _id, or of all.
func findCommand(db, collection string, limit int, filter func(dst []byte) []byte, fields ...string) mongo.Command {
	return mongo.Command{DB: db, Body: document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "find", collection)
		dst = appendDoc(dst, "filter", filter)
		if len(fields) > 0 {
			dst = appendDoc(dst, "projection", func(dst []byte) []byte {
				for _, f := range fields {
					dst = bsoncore.AppendInt32Element(dst, f, 1)
				}
				return dst
			})
		}
		dst = bsoncore.AppendInt64Element(dst, "limit", int64(limit))
		dst = bsoncore.AppendInt64Element(dst, "batchSize", int64(limit))
		return bsoncore.AppendBooleanElement(dst, "singleBatch", true)
	})}
}

// byID is the filter {_id: id}.
func byID(id string) func(dst []byte) []byte {
	return func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "_id", id) }
}

// between is the filter on the _ids from one, included, to another, excluded.
func between(from, to string) func(dst []byte) []byte {
	return func(dst []byte) []byte {
		return appendDoc(dst, "_id", func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "$gte", from)
			return bsoncore.AppendStringElement(dst, "$lt", to)
		})
	}
}

// readAll calls yield for each document of a collection that the filter matches,
// with a read concern: a view into a reply. Session is the id of the one that
// the cursor is to belong to.
func (s *Store) readAll(ctx context.Context, session bson.Raw, collection, concern string, filter func(dst []byte) []byte, yield func(doc bson.Raw) error) error {
	docs, err := s.patience().ReadAll(ctx, s.once, session, s.cfg.DB, document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "find", collection)
		dst = appendDoc(dst, "filter", filter)
		return appendDoc(dst, "readConcern", func(dst []byte) []byte {
			return bsoncore.AppendStringElement(dst, "level", concern)
		})
	}))
	for i := 0; err == nil && i < len(docs); i++ {
		err = yield(docs[i])
	}
	return err
}

// found returns the documents of the reply to a find whose whole result is in it.
func found(reply bson.Raw) ([]bson.Raw, error) {
	e, _ := rawbson.Lookup(reply, "cursor")
	doc, _ := e.Document()
	return documents(doc, "firstBatch")
}

// documents returns those of a batch of a cursor.
func documents(cursor bson.Raw, name string) ([]bson.Raw, error) {
	batch, _ := rawbson.Lookup(cursor, name)
	array, ok := batch.Array()
	if !ok {
		return nil, fmt.Errorf("the reply of a find has no cursor.%s", name)
	}
	var docs []bson.Raw
	it := rawbson.NewIter(array)
	for it.Next() {
		d, ok := it.Document()
		if !ok {
			return nil, fmt.Errorf("the reply of a find holds %s", it.Type)
		}
		docs = append(docs, d)
	}
	return docs, it.Err()
}

// written returns how many documents a write matched. What was refused, or not
// confirmed, is an error.
func written(reply bson.Raw) (int64, error) {
	refused, err := mongo.WriteErrors(reply)
	if err != nil {
		return 0, err
	}
	if len(refused) > 0 {
		return 0, &refused[0].Error
	}
	if e := mongo.ConcernError(reply); e != nil {
		return 0, &mongo.UnconfirmedError{Err: e}
	}
	e, _ := rawbson.Lookup(reply, "n")
	n, ok := e.Int64()
	if !ok {
		return 0, errors.New("the reply of a write has no n")
	}
	return n, nil
}
