package command

import (
	"context"
	"errors"
	"maps"
	"os"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// serverStats is what a Server counts for serverStatus, and the parameters that
// were set. The zero value is ready but for started.
type serverStats struct {
	started time.Time
	// closed counts connections that have ended, awaiting those in an awaitable
	// hello.
	closed, awaiting atomic.Int64
	ops              [opKinds]atomic.Int64

	// mu guards what follows.
	mu         sync.Mutex
	parameters map[string]bson.RawValue
	commands   map[string]*tally
}

// tally counts the calls of one command.
type tally struct{ total, failed int64 }

// opKind is a kind of operation as opcounters tells them apart.
type opKind uint8

const (
	opInsert opKind = iota
	opQuery
	opUpdate
	opDelete
	opGetMore
	opCommand
	opKinds = iota
)

var opNames = [opKinds]string{"insert", "query", "update", "delete", "getmore", "command"}

// count takes account of a command that was carried out, or refused with err.
func (t *serverStats) count(r *request, err error) {
	if r.spec == nil {
		return
	}
	if !unauthorized(err) {
		t.countOps(r)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.commands == nil {
		t.commands = map[string]*tally{}
	}
	c := t.commands[r.spec.name]
	if c == nil {
		c = &tally{}
		t.commands[r.spec.name] = c
	}
	c.total++
	if err != nil {
		c.failed++
	}
}

func unauthorized(err error) bool {
	e, ok := errors.AsType[*servererr.Error](err)
	return ok && e.Code == servererr.Unauthorized
}

// countOps counts the operations of a command.
func (t *serverStats) countOps(r *request) {
	switch r.spec.name {
	case "insert":
		t.ops[opInsert].Add(int64(len(r.docs["documents"])))
	case "find":
		t.ops[opQuery].Add(1)
	case "update":
		t.ops[opUpdate].Add(int64(len(r.docs["updates"])))
	case "delete":
		t.ops[opDelete].Add(int64(len(r.docs["deletes"])))
	case "getMore":
		t.ops[opGetMore].Add(1)
	default:
		t.ops[opCommand].Add(1)
	}
}

// section is a part of serverStatus.
type section struct {
	name   string
	append func(r *request, buf []byte) []byte
}

// sections are the parts of serverStatus in the server's order: those whose
// numbers are measured here, or are true of a server that has no such thing.
var sections = []section{
	{"connections", (*request).appendConnections},
	{"defaultRWConcern", func(r *request, buf []byte) []byte { return r.srv.appendDefaultConcerns(buf) }},
	{"flowControl", (*request).appendFlowControl},
	{"logicalSessionRecordCache", (*request).appendSessionStats},
	{"opcounters", (*request).appendOpCounters},
	{"oplogTruncation", appendOplogTruncation},
	{"repl", (*request).appendReplStats},
	{"storageEngine", appendStorageEngine},
	{"transactions", (*request).appendTransactionStats},
	{"wiredTiger", (*request).appendEngineStats},
	{"mem", appendMemory},
	{"metrics", (*request).appendMetrics},
}

func runServerStatus(_ context.Context, r *request, out *reply) error {
	now := r.srv.cfg.Now()
	up := max(now.Sub(r.srv.stats.started), 0)
	buf := bsoncore.AppendStringElement(out.Buf, "host", r.srv.cfg.Host)
	buf = bsoncore.AppendStringElement(buf, "version", r.srv.cfg.Dialect.Version)
	buf = bsoncore.AppendStringElement(buf, "process", "mongod")
	buf = bsoncore.AppendInt64Element(buf, "pid", int64(os.Getpid()))
	buf = bsoncore.AppendDoubleElement(buf, "uptime", float64(int64(up.Seconds())))
	buf = bsoncore.AppendInt64Element(buf, "uptimeMillis", up.Milliseconds())
	buf = bsoncore.AppendInt64Element(buf, "uptimeEstimate", int64(up.Seconds()))
	buf = bsoncore.AppendDateTimeElement(buf, "localTime", now.UnixMilli())
	all, hasAll := rawbson.Lookup(r.cmd, "all")
	for _, s := range sections {
		e, given := rawbson.Lookup(r.cmd, s.name)
		if given && !e.Truth() || !given && hasAll && !all.Truth() {
			continue
		}
		i, b := bsoncore.AppendDocumentElementStart(buf, s.name)
		buf, _ = bsoncore.AppendDocumentEnd(s.append(r, b), i)
	}
	out.Buf = buf
	return nil
}

func (r *request) appendConnections(buf []byte) []byte {
	stats := &r.srv.stats
	made := r.srv.conns.Load()
	current := int32(max(made-stats.closed.Load(), 0))
	const most = 51_200 // the server's default on Linux
	buf = bsoncore.AppendInt32Element(buf, "current", current)
	buf = bsoncore.AppendInt32Element(buf, "available", most-current)
	buf = bsoncore.AppendInt32Element(buf, "totalCreated", int32(made))
	return bsoncore.AppendInt32Element(buf, "awaitingTopologyChanges", int32(stats.awaiting.Load()))
}

func (r *request) appendSessionStats(buf []byte) []byte {
	n := int32(len(r.srv.sessions.all()))
	buf = bsoncore.AppendInt32Element(buf, "activeSessionsCount", n)
	return bsoncore.AppendInt32Element(buf, "sessionCatalogSize", n)
}

func (r *request) appendOpCounters(buf []byte) []byte {
	for i := range opNames {
		buf = bsoncore.AppendInt64Element(buf, opNames[i], r.srv.stats.ops[i].Load())
	}
	return buf
}

// appendOplogTruncation tells that nothing has to be scanned to cut the oplog's
// beginning off, which happens with each append.
func appendOplogTruncation(_ *request, buf []byte) []byte {
	buf = bsoncore.AppendInt64Element(buf, "totalTimeProcessingMicros", 0)
	buf = bsoncore.AppendStringElement(buf, "processingMethod", "scanning")
	return bsoncore.AppendInt64Element(buf, "totalTimeTruncatingMicros", 0)
}

func (r *request) appendReplStats(buf []byte) []byte {
	v := r.srv.cfg.Node.View()
	buf = appendHello(buf, &v, true)
	return bsoncore.AppendInt32Element(buf, "rbid", int32(v.RBID))
}

func appendStorageEngine(_ *request, buf []byte) []byte {
	buf = bsoncore.AppendStringElement(buf, "name", storageEngine)
	buf = bsoncore.AppendBooleanElement(buf, "supportsCommittedReads", true)
	buf = bsoncore.AppendBooleanElement(buf, "supportsSnapshotReadConcern", true)
	buf = bsoncore.AppendBooleanElement(buf, "readOnly", false)
	return bsoncore.AppendBooleanElement(buf, "persistent", false)
}

func (r *request) appendTransactionStats(buf []byte) []byte {
	var open, prepared int64
	for _, s := range r.srv.sessions.all() {
		s.mu.Lock()
		if s.state == txnPrepared {
			prepared++
		}
		if s.state == txnPrepared || s.state == txnInProgress {
			open++
		}
		s.mu.Unlock()
	}
	buf = bsoncore.AppendInt64Element(buf, "currentOpen", open)
	return bsoncore.AppendInt64Element(buf, "currentPrepared", prepared)
}

// appendEngineStats tells of the cache, and that nobody waits for a ticket.
func (r *request) appendEngineStats(buf []byte) []byte {
	var used int64
	_ = r.srv.cfg.Store.Read(func(reader *storage.Reader) error { // counting does not fail
		v := reader.View(bson.Timestamp{})
		for _, db := range v.Databases() {
			for _, coll := range v.Collections(db) {
				used += coll.Bytes()
			}
		}
		used += reader.Oplog().Bytes()
		return nil
	})
	pressure := r.srv.pressureNow()
	i, buf := bsoncore.AppendDocumentElementStart(buf, "cache")
	buf, _ = bsoncore.AppendDocumentEnd(pressure.appendCache(buf, used), i)
	i, buf = bsoncore.AppendDocumentElementStart(buf, "concurrentTransactions")
	const tickets = 128 // the server's default
	for _, kind := range []struct {
		name string
		out  int32
	}{{"write", pressure.WriteTickets}, {"read", pressure.ReadTickets}} {
		j, sub := bsoncore.AppendDocumentElementStart(buf, kind.name)
		sub = bsoncore.AppendInt32Element(sub, "out", kind.out)
		sub = bsoncore.AppendInt32Element(sub, "available", tickets-kind.out)
		sub = bsoncore.AppendInt32Element(sub, "totalTickets", tickets)
		buf, _ = bsoncore.AppendDocumentEnd(sub, j)
	}
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	return buf
}

// memoryBytes is the memory that this process has from the system.
func memoryBytes() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/total:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}

func appendMemory(_ *request, buf []byte) []byte {
	megabytes := int32(memoryBytes() >> 20)
	buf = bsoncore.AppendInt32Element(buf, "bits", 64)
	buf = bsoncore.AppendInt32Element(buf, "resident", megabytes)
	buf = bsoncore.AppendInt32Element(buf, "virtual", megabytes)
	return bsoncore.AppendBooleanElement(buf, "supported", true)
}

func (r *request) appendMetrics(buf []byte) []byte {
	stats := &r.srv.stats
	i, buf := bsoncore.AppendDocumentElementStart(buf, "commands")
	stats.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(stats.commands)) {
		j, sub := bsoncore.AppendDocumentElementStart(buf, name)
		sub = bsoncore.AppendInt64Element(sub, "failed", stats.commands[name].failed)
		sub = bsoncore.AppendInt64Element(sub, "total", stats.commands[name].total)
		buf, _ = bsoncore.AppendDocumentEnd(sub, j)
	}
	stats.mu.Unlock()
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)

	i, buf = bsoncore.AppendDocumentElementStart(buf, "cursor")
	j, buf := bsoncore.AppendDocumentElementStart(buf, "open")
	buf = bsoncore.AppendInt64Element(buf, "total", r.srv.cursors.count())
	buf, _ = bsoncore.AppendDocumentEnd(buf, j)
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)

	// A secondary applies what it has fetched at once: its buffer is empty whenever
	// anybody looks.
	i, buf = bsoncore.AppendDocumentElementStart(buf, "repl")
	j, buf = bsoncore.AppendDocumentElementStart(buf, "buffer")
	buf = bsoncore.AppendInt64Element(buf, "count", 0)
	buf = bsoncore.AppendInt64Element(buf, "maxSizeBytes", 256<<20)
	buf = bsoncore.AppendInt64Element(buf, "sizeBytes", 0)
	buf, _ = bsoncore.AppendDocumentEnd(buf, j)
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	return buf
}

// count is the number of open cursors.
func (t *cursorTable) count() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int64(len(t.open))
}
