package verify

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/idrange"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
)

const (
	// replyBytes is the size that replies are to have. A server returns no more than 16 MiB,
	// or one document.
	replyBytes = 4 << 20
	// mostBatch limits the documents of a reply, and firstBatch those if nothing is known.
	mostBatch, firstBatch = 20_000, 1000
)

// txnFor is how long a transaction is read on where another one can continue: commands that lock the collection wait
// for it, and clients' writes for those.
const txnFor = 2 * time.Second

// errLongTxn reports that the rest is to be read in another transaction.
var errLongTxn = errors.New("the transaction is not read on")

// errDisorder reports documents that did not come in the order of their _ids.
var errDisorder = errors.New("the documents did not come in the order of _id as it is known here")

// reading says how a stream reads a collection.
type reading struct {
	order order
	// piece selects documents, nil for all; last is the _id after which it begins, if it has a
	// Type.
	piece *idrange.Piece
	last  bson.RawValue
	// at is the time to read at; nil for the newest majority-committed data, which is not older than since.
	at    *bson.Timestamp
	since bson.Timestamp
	// limit is how many documents to read at most; 0 for all.
	limit int64
	// resumes: it can be read on after last, so a transaction is not kept for long.
	resumes bool
}

// stream reads the documents of one side, one reply ahead. It belongs to one goroutine.
type stream struct {
	side *side
	coll *listed
	how  reading
	pace *pacing
	// session and txn are those it reads in, nil outside of transactions.
	session *mongo.Session
	txn     *mongo.Txn
	// begun is when it was opened, long whether its transaction is not read on.
	begun time.Time
	long  bool

	docs   []bson.Raw
	next   int
	cursor int64
	name   string
	// ahead has the reply that is being fetched, nil if none is.
	ahead   chan fetched
	flights sync.WaitGroup
	stop    context.CancelCauseFunc
	ctx     context.Context //nolint:containedctx // It ends with the stream, not with a call.
	// key and before are the sort keys of the present document and of the one before it.
	key, before []byte
	keyed       bool
	// count and size are of the documents that it has passed.
	count, size int64
}

type fetched struct {
	batch mongo.Batch
	err   error
}

var errClosed = errors.New("the stream is closed")

func newStream(ctx context.Context, s *side, coll *listed, how reading, pace *pacing) *stream {
	st := &stream{side: s, coll: coll, how: how, pace: pace}
	st.ctx, st.stop = context.WithCancelCause(ctx)
	st.begun = time.Now()
	if how.at != nil && s.inTxn.Load() {
		st.session = s.takeSession()
		st.txn = st.session.Begin()
	}
	st.fetch(st.find())
	return st
}

// find returns the command that opens the cursor.
func (st *stream) find() *builder {
	cmd := st.side.find(st.coll)
	if st.how.piece != nil {
		body := bsoncore.Document(st.how.piece.AppendFilter(nil, st.how.last))
		e, rest, ok := bsoncore.ReadElement(body)
		if ok && len(rest) == 0 {
			cmd.AppendValue(e.Key(), e.Value())
		}
	}
	byID := document().AppendInt32("_id", 1).Build()
	naturally := document().AppendInt32("$natural", 1).Build()
	switch st.how.order {
	case inserted:
		cmd.AppendDocument("hint", naturally)
	case sorted:
		cmd.AppendDocument("sort", byID).AppendBoolean("allowDiskUse", true).
			AppendDocument("collation", document().AppendString("locale", "simple").Build())
	default:
		switch {
		case st.coll.hasID:
			// Of two indexes that give the order this one has every document.
			cmd.AppendDocument("sort", byID).AppendDocument("hint", byID)
		case st.coll.ns.IsBuckets():
			// Old servers keep them in this order without being able to sort by it.
			cmd.AppendDocument("hint", naturally)
		default: // clustered
			cmd.AppendDocument("sort", byID)
		}
	}
	if st.how.limit > 0 {
		cmd.AppendInt64("limit", st.how.limit)
	}
	cmd.AppendInt32("batchSize", st.batchSize())
	if st.txn == nil { // whose cursors live as long as it does
		cmd.AppendBoolean("noCursorTimeout", true)
	}
	concern := committed(st.how.since)
	if at := st.how.at; at != nil {
		concern = document().AppendString("level", "snapshot").AppendTimestamp("atClusterTime", at.T, at.I).Build()
	}
	return cmd.AppendDocument("readConcern", concern)
}

// committed is the read concern for majority-committed data that are not older than a time, zero for any: a primary that was just elected
// may not know yet that a majority has the last writes.
func committed(since bson.Timestamp) bsoncore.Document {
	concern := document().AppendString("level", "majority")
	if !since.IsZero() {
		concern.AppendTimestamp("afterClusterTime", since.T, since.I)
	}
	return concern.Build()
}

// batchSize is how many documents fit a reply.
func (st *stream) batchSize() int32 {
	docs, size := st.count, st.size
	if docs == 0 {
		docs, size = st.coll.docs, st.coll.bytes
	}
	if docs <= 0 || size <= 0 {
		return firstBatch
	}
	return int32(max(1, min(mostBatch, replyBytes/max(1, size/docs)))) //nolint:gosec // Limited.
}

// fetch begins to fetch a reply.
func (st *stream) fetch(cmd *builder) {
	db := st.coll.ns.DB()
	ahead := make(chan fetched, 1)
	st.ahead = ahead
	st.flights.Go(func() {
		var f fetched
		began := time.Now()
		var reply bson.Raw
		if reply, f.err = st.call(st.ctx, db, cmd); f.err == nil {
			f.batch, f.err = mongo.ReadBatch(reply)
			st.pace.took(st.side.name, time.Since(began), len(f.batch.Docs), len(reply))
		}
		ahead <- f
	})
}

// call sends a command once, in the transaction if there is one.
func (st *stream) call(ctx context.Context, db string, cmd *builder) (bson.Raw, error) {
	if st.txn == nil {
		return st.side.call(ctx, db, cmd)
	}
	reply, err := st.txn.Call(ctx, mongo.Command{DB: db, Body: bson.Raw(cmd.Build())})
	if err == nil {
		st.side.heard.Reply(reply)
	}
	return reply, err
}

// peek returns the present document, a view until the stream has gone on to the next reply, or
// nil after the last one.
func (st *stream) peek(ctx context.Context) (bson.Raw, error) {
	for st.next == len(st.docs) {
		if st.long {
			return nil, errLongTxn
		}
		if st.ahead == nil {
			return nil, nil
		}
		var f fetched
		select {
		case f = <-st.ahead:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		st.ahead = nil
		if f.err != nil {
			return nil, f.err
		}
		st.docs, st.next, st.cursor = f.batch.Docs, 0, f.batch.Cursor
		st.name = f.batch.Collection
		st.long = st.cursor != 0 && len(st.docs) > 0 && st.txn != nil && st.how.resumes && time.Since(st.begun) > txnFor
		if st.cursor != 0 && !st.long {
			st.fetch(document().AppendInt64("getMore", st.cursor).AppendString("collection", st.name).AppendInt32("batchSize", st.batchSize()))
		}
		if err := st.pace.wait(ctx, st.side.name, st.docs); err != nil {
			return nil, err
		}
	}
	return st.docs[st.next], nil
}

// advance moves to the next document.
func (st *stream) advance() {
	st.count++
	st.size += int64(len(st.docs[st.next]))
	if st.keyed {
		st.before, st.key = st.key, st.before[:0]
		st.keyed = false
	}
	st.next++
}

// load makes the key of the present document. It returns errDisorder if that is not after the
// one before it.
func (st *stream) load(doc bson.Raw) error {
	if st.keyed {
		return nil
	}
	return st.check(bsonorder.AppendKey(st.key[:0], idOf(doc), nil))
}

// loadLike is load for a document with the same _id as the present one of another stream.
func (st *stream) loadLike(other *stream) error {
	if st.keyed {
		return nil
	}
	return st.check(append(st.key[:0], other.key...))
}

func (st *stream) check(key []byte) error {
	st.key, st.keyed = key, true
	if len(st.before) > 0 && bytes.Compare(st.before, key) >= 0 {
		return errDisorder
	}
	return nil
}

// close ends the stream, its cursor and its transaction.
func (st *stream) close(ctx context.Context) {
	st.stop(errClosed)
	st.flights.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	st.closeCursor(ctx)
	if st.txn != nil {
		st.txn.Abort(ctx)
		st.side.giveBack(st.session)
	}
}

func (st *stream) closeCursor(ctx context.Context) {
	if st.ahead != nil {
		if f := <-st.ahead; f.err == nil {
			st.cursor = f.batch.Cursor
		}
		st.ahead = nil
	} else if st.next == len(st.docs) {
		return // it was read to its end, or has failed
	}
	if st.cursor == 0 {
		return
	}
	cmd := document().AppendString("killCursors", st.coll.ns.Collection()).AppendArray("cursors", bsoncore.NewArrayBuilder().AppendInt64(st.cursor).Build())
	_, _ = st.call(ctx, st.coll.ns.DB(), cmd)
}

func idOf(doc bson.Raw) bson.RawValue {
	e, _ := rawbson.Lookup(doc, "_id")
	return e.Raw()
}
