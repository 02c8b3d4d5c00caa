package mongo

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// PassesRead reports whether what was read outside of a transaction can be read again
// after an error: as Passes does, and where the cursor is gone, which is opened anew.
func PassesRead(err error) bool {
	return Passes(err) || servererr.Classify(err) == servererr.Cursor
}

// Reads is a Caller for reads that one reply answers: one that was refused in passing
// is sent again. It is not for a getMore, whose cursor a refusal closes: see ReadAll.
func Reads(c Caller) Caller { return Patient{Caller: c, Retry: Retry{Again: PassesRead}} }

// Twice is a Caller for commands outside of transactions that may be carried out twice:
// one that was refused in passing is sent again.
func Twice(c Caller) Caller { return Patient{Caller: c, Retry: Retry{Again: Passes}} }

// ReadAll runs a command that answers with a cursor and returns all of its documents,
// as views into the replies. What was refused in passing is read again from its
// beginning, whatever r.Again says. Body is built without a session; lsid is the one
// that the cursor belongs to, nil for none.
func (r Retry) ReadAll(ctx context.Context, c Caller, lsid bson.Raw, db string, body bson.Raw) (docs []bson.Raw, err error) {
	r.Again = PassesRead
	err = r.Do(ctx, func() error {
		docs, err = readOnce(ctx, c, lsid, db, body)
		return err
	})
	if err != nil {
		return nil, err
	}
	return docs, nil
}

func readOnce(ctx context.Context, c Caller, lsid bson.Raw, db string, body bson.Raw) (docs []bson.Raw, err error) {
	cmd := Command{DB: db, Body: within(body, lsid)}
	for {
		reply, err := c.Call(ctx, cmd)
		if err != nil {
			return nil, err
		}
		batch, err := ReadBatch(reply)
		if err != nil {
			return nil, err
		}
		docs = append(docs, batch.Docs...)
		if batch.Cursor == 0 {
			return docs, nil
		}
		more := bsoncore.NewDocumentBuilder().AppendInt64("getMore", batch.Cursor).AppendString("collection", batch.Collection).Build()
		cmd = Command{DB: batch.DB, Body: within(bson.Raw(more), lsid)}
	}
}

// within returns a command that belongs to a session: a cursor can be used only in the
// one that it was made in.
func within(body, lsid bson.Raw) bson.Raw {
	if lsid == nil {
		return body
	}
	return With(body, bsoncore.AppendDocumentElement(nil, "lsid", lsid))
}

// With returns a document with one more element, which is encoded already.
func With(doc bson.Raw, element []byte) bson.Raw {
	out := make([]byte, 0, len(doc)+len(element))
	out = append(append(append(out, doc[:len(doc)-1]...), element...), 0)
	return bson.Raw(bsoncore.UpdateLength(out, 0, int32(len(out)))) //nolint:gosec // A document is no larger.
}
