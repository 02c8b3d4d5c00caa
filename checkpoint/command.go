package checkpoint

import (
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/servererr"
)

// The collections.
const (
	linksCollection = "links"
	lanesCollection = "lanes"
	heldCollection  = "held"
)

// statement is one statement of a write command.
type statement struct {
	filter, change func(dst []byte) []byte // change is nil for a delete
	multi          bool
}

// appendMajority appends the write concern of what must not be lost.
func appendMajority(dst []byte) []byte {
	return appendDoc(dst, "writeConcern", func(dst []byte) []byte {
		return bsoncore.AppendStringElement(dst, "w", "majority")
	})
}

// updateCommand builds an update; majority is for those outside of transactions.
func updateCommand(db, collection string, majority bool, s statement) call.Command {
	doc := document(func(dst []byte) []byte {
		dst = appendDoc(dst, "q", s.filter)
		dst = appendDoc(dst, "u", s.change)
		return bsoncore.AppendBooleanElement(dst, "multi", s.multi)
	})
	return writeCommand(db, "update", collection, "updates", majority, doc)
}

// deleteCommand builds a delete of everything that the filter matches.
func deleteCommand(db, collection string, filter func(dst []byte) []byte) call.Command {
	doc := document(func(dst []byte) []byte {
		dst = appendDoc(dst, "q", filter)
		return bsoncore.AppendInt32Element(dst, "limit", 0)
	})
	return writeCommand(db, "delete", collection, "deletes", false, doc)
}

func writeCommand(db, name, collection, sequence string, majority bool, docs ...bson.Raw) call.Command {
	body := document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, name, collection)
		if majority {
			dst = appendMajority(dst)
		}
		return dst
	})
	return call.Command{DB: db, Body: body, Sequence: sequence, Docs: docs}
}

// findCommand builds a find whose whole result is in its reply.
func findCommand(db, collection string, limit int, filter func(dst []byte) []byte) call.Command {
	return call.Command{DB: db, Body: document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "find", collection)
		dst = appendDoc(dst, "filter", filter)
		dst = bsoncore.AppendInt64Element(dst, "limit", int64(limit))
		dst = bsoncore.AppendInt64Element(dst, "batchSize", int64(limit))
		return bsoncore.AppendBooleanElement(dst, "singleBatch", true)
	})}
}

// byID is the filter {_id: id}.
func byID(id string) func(dst []byte) []byte {
	return func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "_id", id) }
}

// found returns the documents of the reply to a find.
func found(reply bson.Raw) ([]bson.Raw, error) {
	cursor, _ := rawbson.Lookup(reply, "cursor")
	doc, _ := cursor.Document()
	batch, _ := rawbson.Lookup(doc, "firstBatch")
	array, ok := batch.Array()
	if !ok {
		return nil, errors.New("the reply of a find has no cursor.firstBatch")
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
	refused, err := call.WriteErrors(reply)
	if err != nil {
		return 0, err
	}
	if len(refused) > 0 {
		return 0, &refused[0].Error
	}
	if e := call.ConcernError(reply); e != nil {
		return 0, &call.UnconfirmedError{Err: e}
	}
	e, _ := rawbson.Lookup(reply, "n")
	n, ok := e.Int64()
	if !ok {
		return 0, errors.New("the reply of a write has no n")
	}
	return n, nil
}

// tooOld tells whether err is a server's refusal of a number that is older than
// the session's.
func tooOld(err error) bool {
	e, ok := errors.AsType[*servererr.Error](err)
	return ok && e.Code == servererr.TransactionTooOld
}
