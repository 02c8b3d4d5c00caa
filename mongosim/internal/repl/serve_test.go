package repl

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

type testCursor struct{ last bson.Timestamp }

// link is the Transport of one member. A cut link drops messages.
type link struct {
	c    *cluster
	from string
}

func (l link) Call(ctx context.Context, to string, cmd bson.Raw) (bson.Raw, error) {
	if l.c.delay > 0 {
		sleep(ctx, l.c.delay, nil)
	}
	if !l.c.open(l.from, to) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	tn := l.c.node(to)
	if tn == nil {
		return nil, errors.New("connection refused")
	}
	reply := tn.serve(ctx, cmd)
	if !l.c.open(to, l.from) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return reply, context.Cause(ctx)
}

// serve is the least of a command layer that members need.
func (tn *testNode) serve(ctx context.Context, cmd bson.Raw) bson.Raw {
	elems, _ := cmd.Elements()
	var body bson.Raw
	var err error
	switch elems[0].Key() {
	case "replSetHeartbeat":
		body, err = tn.Heartbeat(cmd)
	case "replSetRequestVotes":
		body, err = tn.RequestVotes(cmd)
	case "replSetUpdatePosition":
		err = tn.UpdatePosition(cmd)
	case "replSetStepUp":
		err = tn.StepUp(ctx)
	case "find":
		body, err = tn.find(cmd)
	case "getMore":
		body, err = tn.getMore(ctx, cmd)
	case "killCursors":
	default:
		err = servererr.New(servererr.CommandNotFound, "no such command: '%s'", elems[0].Key())
	}
	return document(func(dst []byte) []byte {
		if len(body) > 5 {
			dst = append(dst, body[4:len(body)-1]...)
		}
		ok := 1.0
		var refusal *servererr.Error
		if err != nil {
			ok = 0
			if !errors.As(err, &refusal) {
				refusal = servererr.New(servererr.InternalError, "%v", err)
			}
			dst = bsoncore.AppendStringElement(dst, "errmsg", refusal.Message)
			dst = bsoncore.AppendInt32Element(dst, "code", int32(refusal.Code))
		}
		v := tn.View()
		if _, asked := rawbson.Lookup(cmd, "$replData"); asked {
			dst = v.AppendReplData(dst)
		}
		if _, asked := rawbson.Lookup(cmd, "$oplogQueryData"); asked {
			dst = v.AppendOplogQueryData(dst)
		}
		return bsoncore.AppendDoubleElement(dst, "ok", ok)
	})
}

func cursorReply(id int64, batch string, docs []bson.Raw) bson.Raw {
	return document(func(dst []byte) []byte {
		i, dst := bsoncore.AppendDocumentElementStart(dst, "cursor")
		j, dst := bsoncore.AppendArrayElementStart(dst, batch)
		for k, d := range docs {
			dst = bsoncore.AppendDocumentElement(dst, strconv.Itoa(k), d)
		}
		dst = endDocument(dst, j)
		dst = bsoncore.AppendInt64Element(dst, "id", id)
		dst = bsoncore.AppendStringElement(dst, "ns", "local.oplog.rs")
		return endDocument(dst, i)
	})
}

const testBatch = 50

func (tn *testNode) find(cmd bson.Raw) (bson.Raw, error) {
	if !tn.View().State.Readable() {
		return nil, servererr.New(servererr.NotPrimaryOrSecondary, "node is not in primary or recovering state")
	}
	f := fields{doc: cmd}
	if f.has("term") {
		tn.SawTerm(f.int64("term"))
	}
	filter := fields{doc: f.document("filter")}
	limit := int(f.maybeInt64("limit", testBatch))
	var ts fields
	if filter.has("ts") {
		ts.doc = filter.document("ts")
	} else {
		ts.doc = emptyDocument()
	}
	var docs []bson.Raw
	_ = tn.store.Read(func(r *storage.Reader) error {
		seq := r.Oplog().From(bson.Timestamp{})
		if e, ok := rawbson.Lookup(ts.doc, "$gte"); ok {
			at, _ := e.Timestamp()
			seq = r.Oplog().From(at)
		} else if e, ok := rawbson.Lookup(ts.doc, "$lte"); ok {
			at, _ := e.Timestamp()
			seq = r.Oplog().Backward(at)
		}
		for e := range seq {
			if len(docs) == limit {
				break
			}
			docs = append(docs, e.Raw)
		}
		return nil
	})
	if !f.bool("tailable", false) {
		return cursorReply(0, "firstBatch", docs), nil
	}
	if len(docs) == 0 {
		return cursorReply(0, "firstBatch", nil), nil
	}
	last, err := readOpTime(docs[len(docs)-1])
	if err != nil {
		return nil, err
	}
	tn.mu.Lock()
	defer tn.mu.Unlock()
	tn.lastID++
	tn.cursors[tn.lastID] = &testCursor{last.TS}
	return cursorReply(tn.lastID, "firstBatch", docs), nil
}

func (tn *testNode) getMore(ctx context.Context, cmd bson.Raw) (bson.Raw, error) {
	f := fields{doc: cmd}
	id := f.int64("getMore")
	if f.has("term") {
		tn.SawTerm(f.int64("term"))
	}
	known := oplog.OpTime{}
	if f.has("lastKnownCommittedOpTime") {
		known = f.opTime("lastKnownCommittedOpTime")
	}
	timer := time.NewTimer(time.Duration(f.int64("maxTimeMS")) * time.Millisecond)
	defer timer.Stop()
	for {
		tn.mu.Lock()
		cur := tn.cursors[id]
		tn.mu.Unlock()
		if cur == nil {
			return nil, servererr.New(servererr.CursorNotFound, "cursor id %d not found", id)
		}
		changed, committed := tn.store.Changed(), tn.CommittedChanged()
		var docs []bson.Raw
		_ = tn.store.Read(func(r *storage.Reader) error {
			for e := range r.Oplog().From(cur.last) {
				if len(docs) == testBatch {
					break
				}
				if e.At.TS != cur.last {
					docs = append(docs, e.Raw)
				}
			}
			return nil
		})
		if len(docs) > 0 {
			last, err := readOpTime(docs[len(docs)-1])
			if err != nil {
				return nil, err
			}
			tn.mu.Lock()
			cur.last = last.TS
			tn.mu.Unlock()
			return cursorReply(id, "nextBatch", docs), nil
		}
		if tn.View().Committed.After(known) {
			return cursorReply(id, "nextBatch", nil), nil
		}
		select {
		case <-changed:
		case <-committed:
		case <-timer.C:
			return cursorReply(id, "nextBatch", nil), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
