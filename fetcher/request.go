package fetcher

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

const (
	oplogDB         = "local"
	oplogCollection = "oplog.rs"
)

// command completes a body with the session, the request for metadata, and a read
// preference that a secondary accepts.
func (t *tail) command(start int32, body []byte) mongo.Command {
	body = bsoncore.AppendDocumentElement(body, "lsid", t.lsid)
	body = bsoncore.AppendInt32Element(body, "$replData", 1)
	body = bsoncore.AppendInt32Element(body, "$oplogQueryData", 1)
	i, body := bsoncore.AppendDocumentElementStart(body, "$readPreference")
	body = bsoncore.AppendStringElement(body, "mode", "secondaryPreferred")
	body, _ = bsoncore.AppendDocumentEnd(body, i)
	body, _ = bsoncore.AppendDocumentEnd(body, start)
	return mongo.Command{DB: oplogDB, Body: body}
}

// from is the filter of the entries from at on.
func from(at bson.Timestamp) bsoncore.Document {
	bound := bsoncore.NewDocumentBuilder().AppendTimestamp("$gte", at.T, at.I).Build()
	return bsoncore.NewDocumentBuilder().AppendDocument("ts", bound).Build()
}

// filter is the filter of the entries to read, from at on.
func (t *tail) filter(at bson.Timestamp) bsoncore.Document {
	if t.cfg.Without == nil {
		return from(at)
	}
	// The bound of ts is apart, so that the member seeks to it.
	start := bsoncore.NewDocumentBuilder().AppendTimestamp("ts", at.T, at.I).Build()
	others := bsoncore.NewDocumentBuilder().
		AppendArray("$nor", bsoncore.NewArrayBuilder().AppendDocument(bsoncore.Document(t.cfg.Without)).Build()).Build()
	return bsoncore.NewDocumentBuilder().
		AppendDocument("ts", bsoncore.NewDocumentBuilder().AppendTimestamp("$gte", at.T, at.I).Build()).
		AppendArray("$or", bsoncore.NewArrayBuilder().AppendDocument(start).AppendDocument(others).Build()).
		Build()
}

// appendMajority appends the read concern majority: the member shows nothing that could
// be rolled back.
func appendMajority(body []byte) []byte {
	i, body := bsoncore.AppendDocumentElementStart(body, "readConcern")
	body = bsoncore.AppendStringElement(body, "level", "majority")
	body, _ = bsoncore.AppendDocumentEnd(body, i)
	return body
}

func (t *tail) findCommand(at bson.Timestamp, maxTimeMS int64) mongo.Command {
	start, body := bsoncore.AppendDocumentStart(make([]byte, 0, 512))
	body = bsoncore.AppendStringElement(body, "find", oplogCollection)
	body = bsoncore.AppendDocumentElement(body, "filter", t.filter(at))
	body = bsoncore.AppendBooleanElement(body, "tailable", true)
	body = bsoncore.AppendBooleanElement(body, "awaitData", true)
	body = bsoncore.AppendInt32Element(body, "batchSize", t.batch.size())
	body = bsoncore.AppendInt64Element(body, "maxTimeMS", maxTimeMS)
	return t.command(start, appendMajority(body))
}

func (t *tail) getMoreCommand() mongo.Command {
	start, body := bsoncore.AppendDocumentStart(make([]byte, 0, 512))
	body = bsoncore.AppendInt64Element(body, "getMore", t.cursor)
	body = bsoncore.AppendStringElement(body, "collection", oplogCollection)
	body = bsoncore.AppendInt32Element(body, "batchSize", t.batch.size())
	body = bsoncore.AppendInt64Element(body, "maxTimeMS", t.cfg.AwaitTime.Milliseconds())
	if known := t.meta.Committed; !known.IsNull() && t.cfg.Without == nil {
		// The member replies as soon as the commit point moves, too: with each of the entries that are not read.
		body = appendOpTime(body, "lastKnownCommittedOpTime", known)
	}
	return t.command(start, body)
}

func appendOpTime(body []byte, name string, at oplog.OpTime) []byte {
	i, body := bsoncore.AppendDocumentElementStart(body, name)
	body = bsoncore.AppendTimestampElement(body, "ts", at.TS.T, at.TS.I)
	body = bsoncore.AppendInt64Element(body, "t", at.Term)
	body, _ = bsoncore.AppendDocumentEnd(body, i)
	return body
}

func (t *tail) killCommand() mongo.Command {
	start, body := bsoncore.AppendDocumentStart(make([]byte, 0, 256))
	body = bsoncore.AppendStringElement(body, "killCursors", oplogCollection)
	i, body := bsoncore.AppendArrayElementStart(body, "cursors")
	body = bsoncore.AppendInt64Element(body, "0", t.cursor)
	body, _ = bsoncore.AppendArrayEnd(body, i)
	return t.command(start, body)
}

func (t *tail) endCommand() mongo.Command {
	start, body := bsoncore.AppendDocumentStart(make([]byte, 0, 128))
	i, body := bsoncore.AppendArrayElementStart(body, "endSessions")
	body = bsoncore.AppendDocumentElement(body, "0", t.lsid)
	body, _ = bsoncore.AppendArrayEnd(body, i)
	body, _ = bsoncore.AppendDocumentEnd(body, start)
	return mongo.Command{DB: "admin", Body: body}
}
