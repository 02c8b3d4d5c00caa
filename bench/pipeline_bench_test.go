package bench

import (
	"context"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/batcher"
	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
)

const (
	writers = 16
	// perReply is how many entries of some 200 bytes a server's largest reply has.
	perReply = 80_000
)

// log is a member that has n entries in memory and sends them as fast as it is
// asked.
type log struct {
	replies [][]byte
	next    int
	last    bson.Timestamp
}

func (*log) Host() string { return "memory:27017" }

// Call implements call.Caller.
func (l *log) Call(ctx context.Context, cmd call.Command) (bson.Raw, error) {
	switch name, _ := cmd.Body.IndexErr(0); name.Key() {
	case "find", "getMore":
	default:
		return bsoncore.BuildDocument(nil, bsoncore.AppendDoubleElement(nil, "ok", 1)), nil
	}
	if l.next == len(l.replies) {
		<-ctx.Done() // the log has ended; a server would wait too
		return nil, context.Cause(ctx)
	}
	l.next++
	return l.replies[l.next-1], nil
}

// newLog makes a log of n inserts, updates and deletes of small documents.
func newLog(n int) *log {
	l := &log{}
	var docs [][]byte
	for i := range n {
		l.last = bson.Timestamp{T: 1_700_000_000 + uint32(i/1000), I: uint32(i%1000) + 1}
		docs = append(docs, entry(i, l.last))
		if len(docs) == perReply || i == n-1 {
			l.replies = append(l.replies, reply(docs, len(l.replies) == 0))
			docs = docs[:0]
		}
	}
	for i := range l.replies { // the commit point is the end of the log from the start
		l.replies[i] = withMetadata(l.replies[i], l.last)
	}
	return l
}

func entry(i int, ts bson.Timestamp) []byte {
	id := bsoncore.AppendInt32Element(nil, "_id", int32(i%50_000))
	var op string
	var o, o2 []byte
	switch i % 4 {
	case 0:
		op, o = "i", bsoncore.AppendStringElement(id, "name", "somebody or other")
	case 1, 2:
		set := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "n", int32(i)))
		diff := bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "u", set))
		op, o, o2 = "u", bsoncore.AppendDocumentElement(bsoncore.AppendInt32Element(nil, "$v", 2), "diff", diff), id
	default:
		op, o = "d", id
	}
	e := bsoncore.AppendStringElement(nil, "op", op)
	e = bsoncore.AppendStringElement(e, "ns", []string{"shop.orders", "shop.people", "web.sessions", "web.pages"}[i%7%4])
	e = bsoncore.AppendBinaryElement(e, "ui", 4, make([]byte, 16))
	e = bsoncore.AppendDocumentElement(e, "o", bsoncore.BuildDocument(nil, o))
	if o2 != nil {
		e = bsoncore.AppendDocumentElement(e, "o2", bsoncore.BuildDocument(nil, o2))
	}
	e = bsoncore.AppendTimestampElement(e, "ts", ts.T, ts.I)
	e = bsoncore.AppendInt64Element(e, "t", 1)
	e = bsoncore.AppendInt64Element(e, "v", 2)
	e = bsoncore.AppendDateTimeElement(e, "wall", int64(ts.T)*1000)
	return bsoncore.BuildDocument(nil, e)
}

func reply(docs [][]byte, first bool) []byte {
	field := "nextBatch"
	if first {
		field = "firstBatch"
	}
	i, cursor := bsoncore.AppendDocumentStart(nil)
	cursor = bsoncore.AppendInt64Element(cursor, "id", 7)
	cursor = bsoncore.AppendStringElement(cursor, "ns", "local.oplog.rs")
	j, cursor := bsoncore.AppendArrayElementStart(cursor, field)
	for k, d := range docs {
		cursor = bsoncore.AppendDocumentElement(cursor, strconv.Itoa(k), d)
	}
	cursor, _ = bsoncore.AppendArrayEnd(cursor, j)
	cursor, _ = bsoncore.AppendDocumentEnd(cursor, i)
	return bsoncore.AppendDocumentElement(nil, "cursor", cursor)
}

func withMetadata(body []byte, last bson.Timestamp) []byte {
	optime := func(dst []byte, name string) []byte {
		return bsoncore.AppendDocumentElement(dst, name, bsoncore.BuildDocument(nil,
			bsoncore.AppendInt64Element(bsoncore.AppendTimestampElement(nil, "ts", last.T, last.I), "t", 1)))
	}
	repl := bsoncore.AppendInt64Element(nil, "term", 1)
	repl = optime(repl, "lastOpCommitted")
	repl = bsoncore.AppendDateTimeElement(repl, "lastCommittedWall", int64(last.T)*1000)
	repl = optime(repl, "lastOpVisible")
	repl = bsoncore.AppendInt64Element(repl, "configVersion", 1)
	repl = bsoncore.AppendInt64Element(repl, "configTerm", 1)
	repl = bsoncore.AppendObjectIDElement(repl, "replicaSetId", bson.ObjectID{1})
	repl = bsoncore.AppendInt32Element(repl, "syncSourceIndex", -1)
	repl = bsoncore.AppendBooleanElement(repl, "isPrimary", true)
	query := optime(nil, "lastOpCommitted")
	query = bsoncore.AppendDateTimeElement(query, "lastCommittedWall", int64(last.T)*1000)
	query = optime(query, "lastOpApplied")
	query = bsoncore.AppendInt32Element(query, "rbid", 1)
	query = bsoncore.AppendInt32Element(query, "primaryIndex", 0)
	query = bsoncore.AppendInt32Element(query, "syncSourceIndex", -1)
	query = bsoncore.AppendStringElement(query, "syncSourceHost", "")
	body = bsoncore.AppendDocumentElement(body, "$replData", bsoncore.BuildDocument(nil, repl))
	body = bsoncore.AppendDocumentElement(body, "$oplogQueryData", bsoncore.BuildDocument(nil, query))
	return bsoncore.BuildDocument(nil, bsoncore.AppendDoubleElement(body, "ok", 1))
}

// BenchmarkPipeline takes entries from memory through everything that comes
// before a writer: parse, check, buffer, assemble, batch, hash, dispatch.
func BenchmarkPipeline(b *testing.B) {
	const n = 400_000
	l := newLog(n)
	bytes := 0
	for _, r := range l.replies {
		bytes += len(r)
	}
	b.SetBytes(int64(bytes))
	b.ReportAllocs()
	b.ResetTimer()
	start, runs := time.Now(), 0
	for b.Loop() {
		l.next = 0
		runs++
		if got := follow(b, l, n); got != n {
			b.Fatalf("%d operations of %d arrived", got, n)
		}
	}
	b.ReportMetric(float64(n*runs)/time.Since(start).Seconds(), "entries/s")
}

// follow runs the stages until n operations have been dispatched, and returns how
// many were.
func follow(b *testing.B, l *log, n int) int {
	queue, err := buffer.New(buffer.Config{})
	if err != nil {
		b.Fatal(err)
	}
	cut, err := batcher.New(batcher.Config{Release: queue.Release, ApplyAfter: oplog.OpTime{}})
	if err != nil {
		b.Fatal(err)
	}
	f, err := fetcher.New(fetcher.Config{}, fetcher.Deps{})
	if err != nil {
		b.Fatal(err)
	}
	fetched, queued := make(chan oplog.Reply), make(chan oplog.Reply)
	batches := make(chan batch.Batch, 1)
	head, stop := context.WithCancelCause(b.Context())
	defer stop(nil)
	g, ctx := errgroup.WithContext(b.Context())
	g.Go(func() error {
		defer close(fetched)
		from := oplog.OpTime{TS: bson.Timestamp{T: 1_700_000_000, I: 1}, Term: 1}
		_, err := f.Tail(head, l, from, true, func(ctx context.Context, r oplog.Reply) error {
			select {
			case fetched <- r:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		if head.Err() != nil {
			return nil
		}
		return err
	})
	g.Go(func() error { return queue.Run(ctx, fetched, queued) })
	g.Go(func() error { return cut.Run(ctx, queued, batches) })
	dispatched := 0
	g.Go(func() error {
		var lanes [writers][]*oplog.Op
		for cut := range batches {
			for i := range cut.Items {
				op := &cut.Items[i].Entry.Op
				lane := oplog.HashID(oplog.HashNamespace(op.NS), op.ID) % writers
				lanes[lane] = append(lanes[lane], op)
			}
			for i := range lanes {
				dispatched += len(lanes[i])
				lanes[i] = lanes[i][:0]
			}
			queue.Release(cut.Bytes)
			if dispatched >= n {
				stop(nil)
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	return dispatched
}
