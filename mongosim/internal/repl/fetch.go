package repl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// oplogBatchSize is the batch size that the server asks its source for: as much
	// as fits.
	oplogBatchSize = 13981010
	findMaxTime    = time.Minute
	maxAwaitData   = 30 * time.Second
	networkBuffer  = 5 * time.Second
	probeTimeout   = 30 * time.Second
)

// metadata is the source's state in its replies.
type metadata struct {
	term         int64
	committed    moment
	applied      oplog.OpTime
	rbid         int64
	primaryIndex int64
	sourceIndex  int64
	isPrimary    bool
}

// page is one batch of a cursor.
type page struct {
	cursor int64
	docs   []bson.Raw
	meta   metadata
}

// refused is a source's refusal of a command.
type refused struct {
	code    int64
	message string
}

func (r *refused) Error() string { return fmt.Sprintf("%s (code %d)", r.message, r.code) }

// refusedAs reports whether an error is a source's refusal with the code.
func refusedAs(err error, code servererr.Code) bool {
	r, ok := errors.AsType[*refused](err)
	return ok && r.code == int64(code)
}

// ask sends a command that returns a cursor, and reads the batch.
func (n *Node) ask(ctx context.Context, host string, cmd bson.Raw, limit time.Duration) (page, error) {
	ctx, done := context.WithTimeout(ctx, limit)
	defer done()
	reply, err := n.cfg.Transport.Call(ctx, host, cmd)
	if err != nil {
		return page{}, err
	}
	if ok, code, message := okReply(reply); !ok {
		return page{}, &refused{code, message}
	}
	return parsePage(reply)
}

func parsePage(reply bson.Raw) (page, error) {
	f := fields{doc: reply}
	c := fields{doc: f.document("cursor")}
	meta := fields{doc: f.document("$replData")}
	query := fields{doc: f.document("$oplogQueryData")}
	if f.err != nil {
		return page{}, f.err
	}
	p := page{cursor: c.int64("id")}
	batch := "nextBatch"
	if c.has("firstBatch") {
		batch = "firstBatch"
	}
	it := rawbson.NewIter(c.array(batch))
	for it.Next() {
		doc, ok := it.Document()
		if !ok {
			c.fault(batch, "an array of documents")
			break
		}
		if err := rawbson.Validate(doc); err != nil {
			return page{}, err
		}
		p.docs = append(p.docs, doc)
	}
	p.meta = metadata{
		term: meta.int64("term"), isPrimary: meta.bool("isPrimary", false),
		committed: moment{query.opTime("lastOpCommitted"), query.wall("lastCommittedWall")},
		applied:   query.opTime("lastOpApplied"), rbid: query.int64("rbid"),
		primaryIndex: query.int64("primaryIndex"), sourceIndex: query.int64("syncSourceIndex"),
	}
	return p, errors.Join(it.Err(), c.err, meta.err, query.err)
}

// appendOplogQuery appends what all reads of a source's oplog carry.
func appendOplogQuery(dst []byte) []byte {
	dst = bsoncore.AppendInt32Element(dst, "$replData", 1)
	dst = bsoncore.AppendInt32Element(dst, "$oplogQueryData", 1)
	i, dst := bsoncore.AppendDocumentElementStart(dst, "$readPreference")
	dst = bsoncore.AppendStringElement(dst, "mode", "secondaryPreferred")
	dst = endDocument(dst, i)
	return bsoncore.AppendStringElement(dst, "$db", "local")
}

// tailCommand opens a tailable cursor on a source's oplog, from an entry on.
func tailCommand(from bson.Timestamp, term int64, limit time.Duration) bson.Raw {
	return document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "find", "oplog.rs")
		i, dst := bsoncore.AppendDocumentElementStart(dst, "filter")
		j, dst := bsoncore.AppendDocumentElementStart(dst, "ts")
		dst = bsoncore.AppendTimestampElement(dst, "$gte", from.T, from.I)
		dst = endDocument(endDocument(dst, j), i)
		dst = bsoncore.AppendInt32Element(dst, "batchSize", oplogBatchSize)
		dst = bsoncore.AppendBooleanElement(dst, "tailable", true)
		dst = bsoncore.AppendBooleanElement(dst, "awaitData", true)
		dst = bsoncore.AppendInt64Element(dst, "maxTimeMS", limit.Milliseconds())
		dst = bsoncore.AppendInt64Element(dst, "term", term)
		i, dst = bsoncore.AppendDocumentElementStart(dst, "readConcern")
		dst = bsoncore.AppendStringElement(dst, "level", "local")
		dst = bsoncore.AppendTimestampElement(dst, "afterClusterTime", 0, 1)
		return appendOplogQuery(endDocument(dst, i))
	})
}

// moreCommand asks a tailable cursor for more.
func moreCommand(cursor int64, await time.Duration, term int64, committed oplog.OpTime) bson.Raw {
	return document(func(dst []byte) []byte {
		dst = bsoncore.AppendInt64Element(dst, "getMore", cursor)
		dst = bsoncore.AppendStringElement(dst, "collection", "oplog.rs")
		dst = bsoncore.AppendInt32Element(dst, "batchSize", oplogBatchSize)
		dst = bsoncore.AppendInt64Element(dst, "maxTimeMS", await.Milliseconds())
		dst = bsoncore.AppendInt64Element(dst, "term", term)
		if !committed.IsNull() {
			dst = appendOpTime(dst, "lastKnownCommittedOpTime", committed)
		}
		return appendOplogQuery(dst)
	})
}

// scanCommand reads ts and t of at most limit entries, the oldest first or, up to
// a timestamp, the newest first.
func scanCommand(upTo bson.Timestamp, natural, limit int32) bson.Raw {
	return document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "find", "oplog.rs")
		i, dst := bsoncore.AppendDocumentElementStart(dst, "filter")
		if natural < 0 {
			var j int32
			j, dst = bsoncore.AppendDocumentElementStart(dst, "ts")
			dst = bsoncore.AppendTimestampElement(dst, "$lte", upTo.T, upTo.I)
			dst = endDocument(dst, j)
		}
		dst = endDocument(dst, i)
		i, dst = bsoncore.AppendDocumentElementStart(dst, "sort")
		dst = bsoncore.AppendInt32Element(dst, "$natural", natural)
		dst = endDocument(dst, i)
		i, dst = bsoncore.AppendDocumentElementStart(dst, "projection")
		dst = bsoncore.AppendInt32Element(dst, "ts", 1)
		dst = bsoncore.AppendInt32Element(dst, "t", 1)
		dst = endDocument(dst, i)
		dst = bsoncore.AppendInt64Element(dst, "limit", int64(limit))
		dst = bsoncore.AppendBooleanElement(dst, "singleBatch", true)
		i, dst = bsoncore.AppendDocumentElementStart(dst, "readConcern")
		return appendOplogQuery(endDocument(dst, i))
	})
}

// killCursor kills a cursor on the source. It does not wait for the answer.
func (n *Node) killCursor(ctx context.Context, host string, cursor int64) {
	if cursor == 0 {
		return
	}
	cmd := document(func(dst []byte) []byte {
		dst = bsoncore.AppendStringElement(dst, "killCursors", "oplog.rs")
		i, dst := bsoncore.AppendArrayElementStart(dst, "cursors")
		dst = bsoncore.AppendInt64Element(dst, "0", cursor)
		dst = endDocument(dst, i)
		return bsoncore.AppendStringElement(dst, "$db", "local")
	})
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), n.scaled(networkBuffer))
	n.background.Go(func() {
		defer done()
		_, _ = n.cfg.Transport.Call(ctx, host, cmd) // idle cursors time out
	})
}
