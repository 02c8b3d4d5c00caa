package metadata

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
)

// ChunkDocs is the largest number of documents that Chunks puts into one command.
const ChunkDocs = 1000

// chunkBytes is the largest size of the documents that Chunks puts into one command,
// except for a single document that is larger.
const chunkBytes = 8 << 20

// Statement is one statement of an update command. Filter and Change append the
// elements of their documents.
type Statement struct {
	Filter, Change func(dst []byte) []byte
	// Stage, if not nil, is the one stage of a pipeline that is the update, in place of
	// Change.
	Stage         bson.Raw
	Multi, Upsert bool
}

// Doc returns the statement as an element of updates.
func (s *Statement) Doc() bson.Raw {
	return Document(func(dst []byte) []byte {
		dst = AppendDoc(dst, "q", s.Filter)
		if s.Stage != nil {
			i, array := bsoncore.AppendArrayElementStart(dst, "u")
			dst = CloseDoc(bsoncore.AppendDocumentElement(array, "0", s.Stage), i)
		} else {
			dst = AppendDoc(dst, "u", s.Change)
		}
		if s.Upsert {
			dst = bsoncore.AppendBooleanElement(dst, "upsert", true)
		}
		return bsoncore.AppendBooleanElement(dst, "multi", s.Multi)
	})
}

// Insertion returns the statement that inserts a document unless its _id exists.
func Insertion(id string, fields func(dst []byte) []byte) bson.Raw {
	s := Statement{
		Filter: ByID(id),
		Change: func(dst []byte) []byte { return AppendDoc(dst, "$setOnInsert", fields) },
		Upsert: true,
	}
	return s.Doc()
}

// Update builds an update command.
func Update(db, collection string, statements ...Statement) mongo.Command {
	docs := make([]bson.Raw, len(statements))
	for i := range statements {
		docs[i] = statements[i].Doc()
	}
	return Write(db, "update", collection, "updates", docs...)
}

// Delete builds a delete command for all documents that the filter matches.
func Delete(db, collection string, filter func(dst []byte) []byte) mongo.Command {
	return Write(db, "delete", collection, "deletes", Document(func(dst []byte) []byte {
		dst = AppendDoc(dst, "q", filter)
		return bsoncore.AppendInt32Element(dst, "limit", 0)
	}))
}

// Write builds the write command of that name, whose documents or statements are
// the elements of sequence.
func Write(db, name, collection, sequence string, docs ...bson.Raw) mongo.Command {
	body := Document(func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, name, collection) })
	return mongo.Command{DB: db, Body: body, Sequence: sequence, Docs: docs}
}

// Majority adds write concern majority to a command, for use outside of transactions.
func Majority(cmd mongo.Command) mongo.Command {
	cmd.Body = mongo.WithMajority(cmd.Body)
	return cmd
}

// MajorityWithin is Majority with a time limit: the server answers then that the write concern is
// not satisfied.
func MajorityWithin(cmd mongo.Command, limit time.Duration) mongo.Command {
	concern := Document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "w", "majority")
		return bsoncore.AppendInt64Element(dst, "wtimeout", limit.Milliseconds())
	})
	cmd.Body = mongo.With(cmd.Body, bsoncore.AppendDocumentElement(nil, "writeConcern", concern))
	return cmd
}

// PrimaryOnly adds a write concern to a command that has none, so that the primary alone
// acknowledges it. Without one, servers since 5.0 wait for a majority.
func PrimaryOnly(cmd mongo.Command) mongo.Command {
	concern := Document(func(dst []byte) []byte { return bsoncore.AppendInt32Element(dst, "w", 1) })
	cmd.Body = mongo.With(cmd.Body, bsoncore.AppendDocumentElement(nil, "writeConcern", concern))
	return cmd
}

// Find builds a find whose whole result is in its reply: with _id and the given fields,
// or with all fields if none is given.
func Find(db, collection string, limit int, filter func(dst []byte) []byte, fields ...string) mongo.Command {
	return mongo.Command{DB: db, Body: Document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "find", collection)
		dst = AppendDoc(dst, "filter", filter)
		if len(fields) > 0 {
			dst = AppendDoc(dst, "projection", func(dst []byte) []byte {
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

// FindOne runs a Find for one document: a view into the reply, nil for none.
func FindOne(ctx context.Context, c mongo.Caller, db, collection string, filter func(dst []byte) []byte, fields ...string) (bson.Raw, error) {
	reply, err := c.Call(ctx, Find(db, collection, 1, filter, fields...))
	if err != nil {
		return nil, err
	}
	docs, err := Found(reply)
	if err != nil || len(docs) == 0 {
		return nil, err
	}
	return docs[0], nil
}

// Committed adds read concern majority to a find, for use outside of transactions.
func Committed(cmd mongo.Command) mongo.Command {
	concern := bsoncore.NewDocumentBuilder().AppendString("level", "majority").Build()
	cmd.Body = mongo.With(cmd.Body, bsoncore.AppendDocumentElement(nil, "readConcern", concern))
	return cmd
}

// FindAll returns all documents that the filter matches, as views into replies. It reads
// with the given read concern. The cursor belongs to the session with the id lsid.
func FindAll(ctx context.Context, retry mongo.Retry, c mongo.Caller, lsid bson.Raw, db, collection, concern string, filter func(dst []byte) []byte) ([]bson.Raw, error) {
	return retry.ReadAll(ctx, c, lsid, db, Document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "find", collection)
		dst = AppendDoc(dst, "filter", filter)
		return AppendDoc(dst, "readConcern", func(dst []byte) []byte {
			return bsoncore.AppendStringElement(dst, "level", concern)
		})
	}))
}

// ByID appends the filter {_id: id}.
func ByID(id string) func(dst []byte) []byte {
	return func(dst []byte) []byte { return bsoncore.AppendStringElement(dst, "_id", id) }
}

// Below appends the filter for all _ids that begin with prefix and a slash. A link's
// name has no slash.
func Below(prefix string) func(dst []byte) []byte {
	return func(dst []byte) []byte {
		return AppendDoc(dst, "_id", func(dst []byte) []byte {
			dst = bsoncore.AppendStringElement(dst, "$gte", prefix+"/")
			return bsoncore.AppendStringElement(dst, "$lt", prefix+"0") // 0 follows the slash
		})
	}
}

// OfLink appends the filter for the _id link and all those that Below matches.
func OfLink(link string) func(dst []byte) []byte {
	return func(dst []byte) []byte {
		i, dst := bsoncore.AppendArrayElementStart(dst, "$or")
		dst = AppendDoc(dst, "0", ByID(link))
		dst = AppendDoc(dst, "1", Below(link))
		return CloseDoc(dst, i)
	}
}

// AnyOf appends the filter {_id: {$in: ids}}.
func AnyOf(ids []string) func(dst []byte) []byte {
	return func(dst []byte) []byte {
		return AppendDoc(dst, "_id", func(dst []byte) []byte { return AppendIn(dst, ids...) })
	}
}

// AppendIn appends {$in: values}.
func AppendIn(dst []byte, values ...string) []byte { return appendList(dst, "$in", values) }

// AppendNotIn appends {$nin: values}.
func AppendNotIn(dst []byte, values ...string) []byte { return appendList(dst, "$nin", values) }

func appendList(dst []byte, operator string, values []string) []byte {
	i, dst := bsoncore.AppendArrayElementStart(dst, operator)
	for j, v := range values {
		dst = bsoncore.AppendStringElement(dst, strconv.Itoa(j), v)
	}
	return CloseDoc(dst, i)
}

// Found returns the documents in the reply to a Find: views into the reply.
func Found(reply bson.Raw) ([]bson.Raw, error) {
	batch, err := mongo.ReadBatch(reply)
	return batch.Docs, err
}

// Written returns how many documents a write matched, inserted or deleted. A write error
// or write concern error in the reply is an error.
func Written(reply bson.Raw) (int64, error) {
	n, err := mongo.Written(reply)
	if err != nil {
		return 0, err
	}
	if e := mongo.ConcernError(reply); e != nil {
		return 0, &mongo.UnconfirmedError{Err: e}
	}
	return n, nil
}

// Run runs a write command, which must match, insert or delete want documents; -1 means
// any number.
func Run(ctx context.Context, c mongo.Caller, cmd mongo.Command, want int64) error {
	reply, err := c.Call(ctx, cmd)
	if err != nil {
		return err
	}
	n, err := Written(reply)
	if err != nil {
		return err
	}
	if want >= 0 && n != want {
		return fmt.Errorf("a write of the transaction met %d documents, not %d", n, want)
	}
	return nil
}

// Chunks splits documents into groups that fit into one command.
func Chunks(docs iter.Seq[bson.Raw]) iter.Seq[[]bson.Raw] {
	return func(yield func([]bson.Raw) bool) {
		var chunk []bson.Raw
		size := 0
		for doc := range docs {
			if len(chunk) == ChunkDocs || len(chunk) > 0 && size+len(doc) > chunkBytes {
				if !yield(chunk) {
					return
				}
				chunk, size = nil, 0
			}
			chunk, size = append(chunk, doc), size+len(doc)
		}
		if len(chunk) > 0 {
			yield(chunk)
		}
	}
}
