package read

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/mood"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// maxBatchBytes is how much a reply may hold, in bytes; its first document may
	// be larger.
	maxBatchBytes = 16 << 20
	// firstBatchDocs is the default size of the first batch.
	firstBatchDocs = 101
)

// batch writes the documents of one reply.
type batch struct {
	buf   []byte
	base  int
	n     int64
	limit int64 // 0 is none
	spare bson.Raw
}

// elementBytes is what an element of an array has in addition to its value, at most.
const elementBytes = 1 + 20 + 1

// take adds a document and reports whether there is room for more. One that does
// not fit is put aside.
func (b *batch) take(doc bson.Raw) bool {
	if b.n > 0 && len(b.buf)-b.base+len(doc) > maxBatchBytes {
		b.spare = doc
		return false
	}
	if need := len(b.buf) + len(doc) + elementBytes; need > cap(b.buf) {
		// Twice as much each time: append is more careful with large ones, and
		// would copy them over and over.
		b.buf = slices.Grow(b.buf, min(need, maxBatchBytes)+len(doc)+elementBytes)
	}
	b.buf = append(b.buf, byte(bson.TypeEmbeddedDocument))
	b.buf = strconv.AppendInt(b.buf, b.n, 10)
	b.buf = append(append(b.buf, 0), doc...)
	b.n++
	return b.limit == 0 || b.n < b.limit
}

// openCursor returns the first batch of a new cursor and keeps it if there is
// more. limit is -1 for none, and 0 opens the cursor without reading. once
// requests the first batch only.
func openCursor(ctx context.Context, r *dispatch.Request, c *dispatch.Cursor, look dispatch.Looker, limit int64, once bool, out *dispatch.Reply) error {
	table := r.Server.Cursors
	ctx, err := table.Add(ctx, c)
	if err != nil {
		c.Close()
		return err
	}
	if limit != 0 && !once && r.Is(mood.Short) {
		limit = r.AtMost(max(limit, 0))
	}
	start := time.Now()
	b, cur := beginBatch(out.Buf, "firstBatch", max(limit, 0))
	end := false
	if limit != 0 {
		end, err = c.Feed.Fill(ctx, look, b.take)
	}
	if err != nil {
		table.Checkin(c, false)
		return err
	}
	c.Spare, c.Left = b.spare, c.Left-time.Since(start)
	keep := !once && (!end || c.Spare != nil)
	if c.Tailable && end {
		if keep, err = c.Any(look); err != nil {
			table.Checkin(c, false)
			return err
		}
	}
	out.Buf = cur.end(&b, c, keepID(c, keep))
	c.Conn = r.Conn.ID
	table.Checkin(c, keep)
	return nil
}

func keepID(c *dispatch.Cursor, keep bool) int64 {
	if keep {
		return c.ID
	}
	return 0
}

// openParts are the starts of the documents that a cursor reply consists of.
type openParts struct{ cursor, array int32 }

func beginBatch(buf []byte, field string, limit int64) (batch, openParts) {
	var p openParts
	p.cursor, buf = bsoncore.AppendDocumentElementStart(buf, "cursor")
	p.array, buf = bsoncore.AppendArrayElementStart(buf, field)
	return batch{buf: buf, base: len(buf), limit: limit}, p
}

// end writes the fields after the documents.
func (p openParts) end(b *batch, c *dispatch.Cursor, id int64) []byte {
	buf, _ := bsoncore.AppendArrayEnd(b.buf, p.array)
	if c.Token != nil {
		buf = bsoncore.AppendDocumentElement(buf, "postBatchResumeToken", c.Token())
	}
	buf = bsoncore.AppendInt64Element(buf, "id", id)
	buf = bsoncore.AppendStringElement(buf, "ns", string(c.NS))
	if c.Level == "snapshot" {
		buf = bsoncore.AppendTimestampElement(buf, "atClusterTime", c.At.T, c.At.I)
	}
	buf, _ = bsoncore.AppendDocumentEnd(buf, p.cursor)
	return buf
}

// plainCursor writes a cursor reply in the order of commands that have all at
// once: lists, and a find on what does not exist.
func plainCursor(buf []byte, ns oplog.Namespace, id int64, docs []bson.Raw) []byte {
	i, buf := bsoncore.AppendDocumentElementStart(buf, "cursor")
	buf = bsoncore.AppendInt64Element(buf, "id", id)
	buf = bsoncore.AppendStringElement(buf, "ns", string(ns))
	a, buf := bsoncore.AppendArrayElementStart(buf, "firstBatch")
	for n, doc := range docs {
		buf = bsoncore.AppendDocumentElement(buf, dispatch.ArrayKey(n), doc)
	}
	buf, _ = bsoncore.AppendArrayEnd(buf, a)
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	return buf
}

// ListCursor answers a command that lists things: all at once unless that is too
// much, or more than batchSize (-1: no limit).
func ListCursor(ctx context.Context, r *dispatch.Request, ns oplog.Namespace, docs []bson.Raw, batchSize int64, out *dispatch.Reply) error {
	if batchSize != 0 && r.Is(mood.Short) {
		batchSize = r.AtMost(max(batchSize, 0))
	}
	n, size := 0, 0
	for n < len(docs) && (batchSize < 0 || int64(n) < batchSize) {
		// With the element's type and name.
		if size += len(docs[n]) + len(dispatch.ArrayKey(n)) + 2; n > 0 && size > maxBatchBytes {
			break
		}
		n++
	}
	if n == len(docs) {
		out.Buf = plainCursor(out.Buf, ns, 0, docs)
		return nil
	}
	c := r.NewCursor(ns, &listFeed{docs: docs[n:]})
	c.Conn = r.Conn.ID
	if _, err := r.Server.Cursors.Add(ctx, c); err != nil {
		return err
	}
	r.Server.Cursors.Checkin(c, true)
	out.Buf = plainCursor(out.Buf, ns, c.ID, docs[:n])
	return nil
}

// listFeed passes on documents already in memory.
type listFeed struct{ docs []bson.Raw }

// Fill hands on documents: see [dispatch.Feed].
func (f *listFeed) Fill(_ context.Context, _ dispatch.Looker, take func(doc bson.Raw) bool) (bool, error) {
	for len(f.docs) > 0 {
		doc := f.docs[0]
		f.docs = f.docs[1:]
		if !take(doc) {
			break
		}
	}
	return len(f.docs) == 0, nil
}

// Close frees what the feed uses: see [dispatch.Feed].
func (f *listFeed) Close() {}

// executorError adds the server's context to an error of reading documents. The error
// of a dropped collection is found earlier, and stays as it is.
func executorError(err error, context string) error {
	e, ok := errors.AsType[*servererr.Error](err)
	if !ok || e.Code == servererr.QueryPlanKilled || e.Code == servererr.NotImplemented {
		return err
	}
	return e.Within(context)
}
