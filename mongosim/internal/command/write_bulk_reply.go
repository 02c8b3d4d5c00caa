package command

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// bulkNamespace is what getMore on the results has to name.
const bulkNamespace = oplog.Namespace("admin.$cmd.bulkWrite")

// parseAnswer reads what the results are to be like.
func (b *bulk) parseAnswer() error {
	if e, ok := rawbson.Lookup(b.r.cmd, "errorsOnly"); ok {
		b.errorsOnly = e.Truth()
	}
	e, ok := rawbson.Lookup(b.r.cmd, "cursor")
	if !ok {
		return nil
	}
	var err error
	b.batchSize, err = argReader("bulkWrite").batchSizeOf(&e)
	return err
}

// answer appends the reply. What does not fit into it of the results is left to a
// cursor: by now the operations are done, and the reply must not fail.
func (b *bulk) answer(ctx context.Context) error {
	retried := b.appendRetried(nil)
	docs := b.results()
	n, size := 0, len(retried)
	for n < len(docs) && (b.batchSize < 0 || int64(n) < b.batchSize) {
		// With the element's type and name.
		if size += len(docs[n]) + len(arrayKey(n)) + 2; (n > 0 || len(retried) > 0) && size > maxBatchBytes {
			break
		}
		n++
	}
	id := int64(0)
	if n < len(docs) {
		c := b.r.newCursor(bulkNamespace, &listFeed{docs: docs[n:]})
		if _, err := b.r.srv.cursors.add(ctx, c); err != nil {
			return err
		}
		b.r.srv.cursors.checkin(c, true)
		id = c.id
	}
	cursor, buf := bsoncore.AppendDocumentElementStart(b.out.Buf, "cursor")
	buf = bsoncore.AppendInt64Element(buf, "id", id)
	array, buf := bsoncore.AppendArrayElementStart(buf, "firstBatch")
	for k, doc := range docs[:n] {
		buf = bsoncore.AppendDocumentElement(buf, arrayKey(k), doc)
	}
	buf, _ = bsoncore.AppendArrayEnd(buf, array)
	buf = bsoncore.AppendStringElement(buf, "ns", string(bulkNamespace))
	buf, _ = bsoncore.AppendDocumentEnd(buf, cursor)
	for _, count := range []struct {
		name string
		n    int
	}{
		{"nErrors", len(b.errors)},
		{"nInserted", b.inserted},
		{"nMatched", b.matched},
		{"nModified", b.modified},
		{"nUpserted", len(b.upserted)},
		{"nDeleted", b.deleted},
	} {
		buf = bsoncore.AppendInt32Element(buf, count.name, int32(count.n))
	}
	buf = append(buf, retried...)
	buf = bsoncore.AppendObjectIDElement(buf, "electionId", b.r.self.ElectionID)
	b.out.Buf = appendOpTime(buf, "opTime", b.out.wrote)
	return nil
}

func (b *bulk) appendRetried(buf []byte) []byte {
	if len(b.retried) == 0 {
		return buf
	}
	i, buf := bsoncore.AppendArrayElementStart(buf, "retriedStmtIds")
	for n, id := range b.retried {
		buf = bsoncore.AppendInt32Element(buf, arrayKey(n), id)
	}
	buf, _ = bsoncore.AppendArrayEnd(buf, i)
	return buf
}

// results returns the outcomes of the operations that were tried, or of those that
// failed if only they are wanted.
func (b *bulk) results() []bson.Raw {
	var docs []bson.Raw
	failures := b.errors
	for i := range b.ops {
		var failure *servererr.Error
		if len(failures) > 0 && failures[0].index == i {
			failure, failures = failures[0].err, failures[1:]
		}
		if failure == nil && (b.errorsOnly || !b.ops[i].tried) {
			continue
		}
		docs = append(docs, b.ops[i].result(i, failure))
	}
	return docs
}

// result makes the document that tells of an operation.
func (op *bulkOp) result(index int, failure *servererr.Error) bson.Raw {
	i, buf := bsoncore.AppendDocumentStart(nil)
	ok := 1.0
	if failure != nil {
		ok = 0
	}
	buf = bsoncore.AppendDoubleElement(buf, "ok", ok)
	buf = bsoncore.AppendInt32Element(buf, "idx", int32(index))
	if failure != nil {
		buf = bsoncore.AppendInt32Element(buf, "code", int32(failure.Code))
		buf = appendFields(buf, failure.Info)
		buf = bsoncore.AppendStringElement(buf, "errmsg", failure.Message)
	}
	buf = bsoncore.AppendInt32Element(buf, "n", int32(op.n))
	if op.kind == "update" {
		buf = bsoncore.AppendInt32Element(buf, "nModified", int32(op.modified))
	}
	if op.upserted != nil {
		j, up := bsoncore.AppendDocumentElementStart(buf, "upserted")
		up = bsoncore.AppendValueElement(up, "_id", bsoncore.Value{Type: bsoncore.Type(op.upserted.Type), Data: op.upserted.Value})
		buf, _ = bsoncore.AppendDocumentEnd(up, j)
	}
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	return buf
}
