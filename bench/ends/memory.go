package ends

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// defaultReply is the size of a server's largest reply.
	defaultReply = 16 << 20
	// memoryCursor is the id of the cursor of a log in memory.
	memoryCursor = 7
	// maxMetadata is more than a reply has in addition to the entries.
	maxMetadata = 1 << 10
)

// Memory is a member whose log is in memory and is sent as fast as it is
// requested. It is for one reader at a time. Its log begins with a no-op at
// First.
type Memory struct {
	// Entries and Ops are their numbers after First, Bytes the size of the entries;
	// Last is the newest one.
	Entries, Ops int
	Bytes        int64
	Last         oplog.OpTime

	// replies are complete; next is the one to send next.
	replies []bson.Raw
	next    int
}

// errEmptyLog is the error of a workload without an entry.
var errEmptyLog = errors.New("it has no entry")

// NewMemory makes a workload's log. A reply has perReply bytes at most, or one
// entry; zero means 16 MiB.
func NewMemory(w workload.Workload, perReply int) (*Memory, error) {
	if perReply == 0 {
		perReply = defaultReply
	}
	m := &Memory{}
	log, err := workload.NewLog(w, First)
	if err != nil {
		return nil, fmt.Errorf("make the log of %s: %w", w.Name, err)
	}
	r := newReply(perReply, true)
	r.add(firstEntry())
	for {
		entry, ops, ok, err := log.Next()
		if err != nil {
			return nil, fmt.Errorf("make the log of %s: %w", w.Name, err)
		}
		if !ok {
			break
		}
		if r.isFull(entry) {
			m.replies = append(m.replies, r.end())
			r = newReply(perReply, false)
		}
		r.add(entry)
		m.Entries++
		m.Ops += ops
		m.Bytes += int64(len(entry))
	}
	if m.Entries == 0 {
		return nil, fmt.Errorf("make the log of %s: %w", w.Name, errEmptyLog)
	}
	m.replies = append(m.replies, r.end())
	m.Last = log.Last()
	// The commit point is at the end of the log from the start.
	for i, body := range m.replies {
		m.replies[i] = withMetadata(body, m.Last)
	}
	return m, nil
}

// Call implements mongo.Caller: find and getMore on the log; anything else is ok. At
// the end of the log it waits until ctx is done.
func (m *Memory) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	it := rawbson.NewIter(cmd.Body)
	it.Next()
	if !it.Is("find") && !it.Is("getMore") {
		return okReply, nil
	}
	if m.next == len(m.replies) {
		<-ctx.Done() // the log has ended; a server would wait too
		return nil, context.Cause(ctx)
	}
	m.next++
	return m.replies[m.next-1], nil
}

// Rewind starts over: the next find returns the beginning of the log.
func (m *Memory) Rewind() { m.next = 0 }

var okReply = bson.Raw(bsoncore.BuildDocument(nil, bsoncore.AppendDoubleElement(nil, "ok", 1)))

// firstEntry is the no-op at First.
func firstEntry() bson.Raw {
	msg := bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "msg", "a log begins"))
	e := bsoncore.AppendStringElement(nil, "op", "n")
	e = bsoncore.AppendStringElement(e, "ns", "")
	e = bsoncore.AppendDocumentElement(e, "o", msg)
	e = bsoncore.AppendTimestampElement(e, "ts", First.TS.T, First.TS.I)
	e = bsoncore.AppendInt64Element(e, "t", First.Term)
	e = bsoncore.AppendInt64Element(e, "v", 2)
	e = bsoncore.AppendDateTimeElement(e, "wall", time.Unix(int64(First.TS.T), 0).UnixMilli())
	return bsoncore.BuildDocument(nil, e)
}

// reply is a reply being built, in memory allocated at its final size.
type reply struct {
	buf   []byte
	limit int
	// cursor and list are where the lengths of the two begin; n counts entries.
	cursor, list int32
	n            int
}

func newReply(limit int, first bool) *reply {
	field := "nextBatch"
	if first {
		field = "firstBatch"
	}
	r := &reply{limit: limit, buf: make([]byte, 4, 1<<16)}
	r.cursor, r.buf = bsoncore.AppendDocumentElementStart(r.buf, "cursor")
	r.buf = bsoncore.AppendInt64Element(r.buf, "id", memoryCursor)
	r.buf = bsoncore.AppendStringElement(r.buf, "ns", "local.oplog.rs")
	r.list, r.buf = bsoncore.AppendArrayElementStart(r.buf, field)
	return r
}

// isFull reports whether entry belongs in the next reply.
func (r *reply) isFull(entry bson.Raw) bool {
	return r.n > 0 && len(r.buf)+len(entry)+maxMetadata > r.limit
}

func (r *reply) add(entry bson.Raw) {
	r.buf = bsoncore.AppendDocumentElement(r.buf, strconv.Itoa(r.n), entry)
	r.n++
}

// end returns the reply without the member's metadata and its end, in memory with
// room for these.
func (r *reply) end() bson.Raw {
	r.buf, _ = bsoncore.AppendArrayEnd(r.buf, r.list)
	r.buf, _ = bsoncore.AppendDocumentEnd(r.buf, r.cursor)
	return append(make(bson.Raw, 0, len(r.buf)+maxMetadata), r.buf...)
}

// withMetadata ends a reply with the metadata of a member that has last and knows
// it to be committed.
func withMetadata(body bson.Raw, last oplog.OpTime) bson.Raw {
	wall := int64(last.TS.T) * 1000
	optime := func(dst []byte, name string) []byte {
		return bsoncore.AppendDocumentElement(dst, name, bsoncore.BuildDocument(nil,
			bsoncore.AppendInt64Element(bsoncore.AppendTimestampElement(nil, "ts", last.TS.T, last.TS.I), "t", last.Term)))
	}
	repl := bsoncore.AppendInt64Element(nil, "term", last.Term)
	repl = optime(repl, "lastOpCommitted")
	repl = bsoncore.AppendDateTimeElement(repl, "lastCommittedWall", wall)
	repl = optime(repl, "lastOpVisible")
	repl = bsoncore.AppendInt64Element(repl, "configVersion", 1)
	repl = bsoncore.AppendInt64Element(repl, "configTerm", 1)
	repl = bsoncore.AppendObjectIDElement(repl, "replicaSetId", bson.ObjectID{1})
	repl = bsoncore.AppendInt32Element(repl, "syncSourceIndex", -1)
	repl = bsoncore.AppendBooleanElement(repl, "isPrimary", true)
	query := optime(nil, "lastOpCommitted")
	query = bsoncore.AppendDateTimeElement(query, "lastCommittedWall", wall)
	query = optime(query, "lastOpApplied")
	query = bsoncore.AppendInt32Element(query, "rbid", 1)
	query = bsoncore.AppendInt32Element(query, "primaryIndex", 0)
	query = bsoncore.AppendInt32Element(query, "syncSourceIndex", -1)
	query = bsoncore.AppendStringElement(query, "syncSourceHost", "")
	body = bsoncore.AppendDocumentElement(body, "$replData", bsoncore.BuildDocument(nil, repl))
	body = bsoncore.AppendDocumentElement(body, "$oplogQueryData", bsoncore.BuildDocument(nil, query))
	body = append(bsoncore.AppendDoubleElement(body, "ok", 1), 0)
	binary.LittleEndian.PutUint32(body, uint32(len(body)))
	return body
}
