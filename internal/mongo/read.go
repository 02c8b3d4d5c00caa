package mongo

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// PassesRead reports whether a read outside of a transaction can be retried after an
// error: if Passes does, or if the cursor was lost, because a retry opens another one.
func PassesRead(err error) bool {
	return Passes(err) || servererr.Classify(err) == servererr.Cursor
}

// RepeatsRead reports whether a read that has its own retries, such as one in a transaction, may succeed if it is repeated from its
// beginning: if PassesRead does, or if the server was lost, is not primary any more, or shuts down.
func RepeatsRead(err error) bool {
	switch servererr.Classify(err) {
	case servererr.Lost, servererr.NotPrimary, servererr.Leaving:
		return true
	default:
		return PassesRead(err)
	}
}

// Reads returns a Caller that retries reads with a single reply after transient errors.
// It is not for getMore, because an error closes the cursor: see ReadAll.
func Reads(c Caller) Caller { return Patient{Caller: c, Retry: Retry{Again: PassesRead}} }

// Twice returns a Caller that retries idempotent commands outside of transactions after
// transient errors.
func Twice(c Caller) Caller { return Patient{Caller: c, Retry: Retry{Again: Passes}} }

// ReadAll runs a command that returns a cursor, and returns all of its documents as views
// into the replies. After a transient error it starts again from the first document,
// whatever r.Again says. Body must have no session; lsid is that of the cursor, nil for
// none.
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
	err = eachOnce(ctx, c, lsid, db, body, func(batch []bson.Raw) error {
		docs = append(docs, batch...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return docs, nil
}

// ReadEach runs a command that returns a cursor, and calls each with the documents of each reply, which are
// views into it. After a transient error it starts again only if nothing was handed over. Body must have no session.
func (r Retry) ReadEach(ctx context.Context, c Caller, db string, body bson.Raw, each func(docs []bson.Raw) error) error {
	begun := false
	r.Again = func(err error) bool { return !begun && PassesRead(err) }
	return r.Do(ctx, func() error {
		return eachOnce(ctx, c, nil, db, body, func(docs []bson.Raw) error {
			begun = begun || len(docs) > 0
			return each(docs)
		})
	})
}

func eachOnce(ctx context.Context, c Caller, lsid bson.Raw, db string, body bson.Raw, each func(docs []bson.Raw) error) error {
	cmd := Command{DB: db, Body: within(body, lsid)}
	for {
		reply, err := c.Call(ctx, cmd)
		if err != nil {
			return err
		}
		batch, err := ReadBatch(reply)
		if err != nil {
			return err
		}
		if err := each(batch.Docs); err != nil {
			return err
		}
		if batch.Cursor == 0 {
			return nil
		}
		cmd = Command{DB: batch.DB, Body: within(bson.Raw(batch.GetMore().Build()), lsid)}
	}
}

// within adds a session to a command: a cursor can only be used in the session that
// created it.
func within(body, lsid bson.Raw) bson.Raw {
	if lsid == nil {
		return body
	}
	return With(body, bsoncore.AppendDocumentElement(nil, "lsid", lsid))
}

// With returns a document with one more element, given encoded.
func With(doc bson.Raw, element []byte) bson.Raw {
	out := make([]byte, 0, len(doc)+len(element))
	out = append(append(append(out, doc[:len(doc)-1]...), element...), 0)
	return bson.Raw(bsoncore.UpdateLength(out, 0, int32(len(out)))) //nolint:gosec // A document is not larger.
}
