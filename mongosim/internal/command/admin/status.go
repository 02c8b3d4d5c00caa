package admin

import (
	"context"
	"maps"
	"os"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/command/dispatch"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// section is a part of serverStatus.
type section struct {
	name   string
	append func(r *dispatch.Request, buf []byte) []byte
}

// sections are the parts of serverStatus in the server's order: those whose
// numbers are measured here, or are true of a server that has no such thing.
var sections = []section{
	{"connections", appendConnections},
	{"defaultRWConcern", func(r *dispatch.Request, buf []byte) []byte { return appendDefaultConcerns(r.Server, buf) }},
	{"flowControl", (*dispatch.Request).AppendFlowControl},
	{"logicalSessionRecordCache", appendSessionStats},
	{"opcounters", appendOpCounters},
	{"oplogTruncation", appendOplogTruncation},
	{"repl", appendReplStats},
	{"storageEngine", appendStorageEngine},
	{"transactions", appendTransactionStats},
	{"wiredTiger", appendEngineStats},
	{"mem", appendMemory},
	{"metrics", appendMetrics},
}

func runServerStatus(_ context.Context, r *dispatch.Request, out *dispatch.Reply) error {
	now := r.Server.Config.Now()
	up := max(now.Sub(r.Server.Stats.Started), 0)
	buf := bsoncore.AppendStringElement(out.Buf, "host", r.Server.Config.Host)
	buf = bsoncore.AppendStringElement(buf, "version", r.Server.Config.Dialect.Version)
	buf = bsoncore.AppendStringElement(buf, "process", "mongod")
	buf = bsoncore.AppendInt64Element(buf, "pid", int64(os.Getpid()))
	buf = bsoncore.AppendDoubleElement(buf, "uptime", float64(int64(up.Seconds())))
	buf = bsoncore.AppendInt64Element(buf, "uptimeMillis", up.Milliseconds())
	buf = bsoncore.AppendInt64Element(buf, "uptimeEstimate", int64(up.Seconds()))
	buf = bsoncore.AppendDateTimeElement(buf, "localTime", now.UnixMilli())
	all, hasAll := rawbson.Lookup(r.Cmd, "all")
	for _, s := range sections {
		e, given := rawbson.Lookup(r.Cmd, s.name)
		if given && !e.Truth() || !given && hasAll && !all.Truth() {
			continue
		}
		i, b := bsoncore.AppendDocumentElementStart(buf, s.name)
		buf, _ = bsoncore.AppendDocumentEnd(s.append(r, b), i)
	}
	out.Buf = buf
	return nil
}

func appendConnections(r *dispatch.Request, buf []byte) []byte {
	stats := &r.Server.Stats
	made := r.Server.Conns.Load()
	current := int32(max(made-stats.Closed.Load(), 0))
	const most = 51_200 // the server's default on Linux
	buf = bsoncore.AppendInt32Element(buf, "current", current)
	buf = bsoncore.AppendInt32Element(buf, "available", most-current)
	buf = bsoncore.AppendInt32Element(buf, "totalCreated", int32(made))
	return bsoncore.AppendInt32Element(buf, "awaitingTopologyChanges", int32(stats.Awaiting.Load()))
}

func appendSessionStats(r *dispatch.Request, buf []byte) []byte {
	n := int32(len(r.Server.Sessions.All()))
	buf = bsoncore.AppendInt32Element(buf, "activeSessionsCount", n)
	return bsoncore.AppendInt32Element(buf, "sessionCatalogSize", n)
}

func appendOpCounters(r *dispatch.Request, buf []byte) []byte {
	for i := range dispatch.OpNames {
		buf = bsoncore.AppendInt64Element(buf, dispatch.OpNames[i], r.Server.Stats.Ops[i].Load())
	}
	return buf
}

// appendOplogTruncation reports no scans for truncating the oplog, which
// happens at each append.
func appendOplogTruncation(_ *dispatch.Request, buf []byte) []byte {
	buf = bsoncore.AppendInt64Element(buf, "totalTimeProcessingMicros", 0)
	buf = bsoncore.AppendStringElement(buf, "processingMethod", "scanning")
	return bsoncore.AppendInt64Element(buf, "totalTimeTruncatingMicros", 0)
}

func appendReplStats(r *dispatch.Request, buf []byte) []byte {
	v := r.Server.Config.Node.View()
	buf = appendHello(buf, &v, true)
	return bsoncore.AppendInt32Element(buf, "rbid", int32(v.RBID))
}

func appendStorageEngine(_ *dispatch.Request, buf []byte) []byte {
	buf = bsoncore.AppendStringElement(buf, "name", storageEngine)
	buf = bsoncore.AppendBooleanElement(buf, "supportsCommittedReads", true)
	buf = bsoncore.AppendBooleanElement(buf, "supportsSnapshotReadConcern", true)
	buf = bsoncore.AppendBooleanElement(buf, "readOnly", false)
	return bsoncore.AppendBooleanElement(buf, "persistent", false)
}

func appendTransactionStats(r *dispatch.Request, buf []byte) []byte {
	var open, prepared int64
	for _, s := range r.Server.Sessions.All() {
		s.Mu.Lock()
		if s.State == dispatch.TxnPrepared {
			prepared++
		}
		if s.State == dispatch.TxnPrepared || s.State == dispatch.TxnInProgress {
			open++
		}
		s.Mu.Unlock()
	}
	buf = bsoncore.AppendInt64Element(buf, "currentOpen", open)
	return bsoncore.AppendInt64Element(buf, "currentPrepared", prepared)
}

// appendEngineStats appends the state of the cache, and that no operation waits for a ticket.
func appendEngineStats(r *dispatch.Request, buf []byte) []byte {
	var used int64
	_ = r.Server.Config.Store.Read(func(reader *storage.Reader) error { // counting does not fail
		v := reader.View(bson.Timestamp{})
		for _, db := range v.Databases() {
			for _, coll := range v.Collections(db) {
				used += coll.Bytes()
			}
		}
		used += reader.Oplog().Bytes()
		return nil
	})
	pressure := r.Server.PressureNow()
	i, buf := bsoncore.AppendDocumentElementStart(buf, "cache")
	buf, _ = bsoncore.AppendDocumentEnd(pressure.AppendCache(buf, used), i)
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

func appendMemory(_ *dispatch.Request, buf []byte) []byte {
	megabytes := int32(dispatch.MemoryBytes() >> 20)
	buf = bsoncore.AppendInt32Element(buf, "bits", 64)
	buf = bsoncore.AppendInt32Element(buf, "resident", megabytes)
	buf = bsoncore.AppendInt32Element(buf, "virtual", megabytes)
	return bsoncore.AppendBooleanElement(buf, "supported", true)
}

func appendMetrics(r *dispatch.Request, buf []byte) []byte {
	stats := &r.Server.Stats
	i, buf := bsoncore.AppendDocumentElementStart(buf, "commands")
	stats.Mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(stats.Commands)) {
		j, sub := bsoncore.AppendDocumentElementStart(buf, name)
		sub = bsoncore.AppendInt64Element(sub, "failed", stats.Commands[name].Failed)
		sub = bsoncore.AppendInt64Element(sub, "total", stats.Commands[name].Total)
		buf, _ = bsoncore.AppendDocumentEnd(sub, j)
	}
	stats.Mu.Unlock()
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)

	i, buf = bsoncore.AppendDocumentElementStart(buf, "cursor")
	j, buf := bsoncore.AppendDocumentElementStart(buf, "open")
	buf = bsoncore.AppendInt64Element(buf, "total", r.Server.Cursors.Count())
	buf, _ = bsoncore.AppendDocumentEnd(buf, j)
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)

	// A secondary applies what it has fetched at once: its buffer is always empty.
	i, buf = bsoncore.AppendDocumentElementStart(buf, "repl")
	j, buf = bsoncore.AppendDocumentElementStart(buf, "buffer")
	buf = bsoncore.AppendInt64Element(buf, "count", 0)
	buf = bsoncore.AppendInt64Element(buf, "maxSizeBytes", 256<<20)
	buf = bsoncore.AppendInt64Element(buf, "sizeBytes", 0)
	buf, _ = bsoncore.AppendDocumentEnd(buf, j)
	buf, _ = bsoncore.AppendDocumentEnd(buf, i)
	return buf
}
