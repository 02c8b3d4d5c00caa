package clone

import (
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

const (
	recordField = "$recordId"
	idField     = "_id"
)

func closeDocument(dst []byte, at int32) []byte {
	dst, _ = bsoncore.AppendDocumentEnd(dst, at)
	return dst
}

func closeArray(dst []byte, at int32) []byte {
	dst, _ = bsoncore.AppendArrayEnd(dst, at)
	return dst
}

// command completes a command body for the source: the session, and a read preference
// that allows a secondary.
func (c *Cloner) command(db string, start int32, body []byte) mongo.Command {
	body = bsoncore.AppendDocumentElement(body, "lsid", c.lsid)
	i, body := bsoncore.AppendDocumentElementStart(body, "$readPreference")
	body = closeDocument(bsoncore.AppendStringElement(body, "mode", "secondaryPreferred"), i)
	return mongo.Command{DB: db, Body: closeDocument(body, start)}
}

// find starts a find on a collection by its UUID.
func find(uuid oplog.UUID) (start int32, body []byte) {
	start, body = bsoncore.AppendDocumentStart(make([]byte, 0, 512))
	return start, bsoncore.AppendBinaryElement(body, "find", bson.TypeBinaryUUID, uuid[:])
}

// appendConcern appends the read concern. The read waits until the member has all
// entries up to after, without oplog holes.
func (c *Cloner) appendConcern(body []byte, after bson.Timestamp) []byte {
	i, body := bsoncore.AppendDocumentElementStart(body, "readConcern")
	body = bsoncore.AppendStringElement(body, "level", "majority")
	if after != (bson.Timestamp{}) {
		body = bsoncore.AppendTimestampElement(body, "afterClusterTime", after.T, after.I)
	}
	return closeDocument(body, i)
}

func appendNatural(body []byte, field string, direction int32) []byte {
	i, body := bsoncore.AppendDocumentElementStart(body, field)
	return closeDocument(bsoncore.AppendInt32Element(body, "$natural", direction), i)
}

// findCommand opens the reader's cursor: in natural order after the record resume, if
// that is not zero; by _id after the last one that was read.
func (r *reader) findCommand(resume int64) mongo.Command {
	start, body := find(r.coll.UUID)
	if r.order == natural {
		body = appendNatural(body, "hint", 1)
		body = bsoncore.AppendBooleanElement(body, "showRecordId", true)
		body = bsoncore.AppendBooleanElement(body, "$_requestResumeToken", true)
		if resume != 0 {
			i, b := bsoncore.AppendDocumentElementStart(body, "$_resumeAfter")
			body = closeDocument(bsoncore.AppendInt64Element(b, recordField, resume), i)
		}
	} else {
		p := &r.pieces[r.piece]
		body = p.AppendFilter(body, r.last)
		switch {
		case r.coll.NS.IsBuckets() && r.coll.IDIndex == nil:
			// Old servers keep them in this order without being able to sort by it.
			body = appendNatural(body, "hint", 1)
		default:
			i, b := bsoncore.AppendDocumentElementStart(body, "sort")
			body = closeDocument(bsoncore.AppendInt32Element(b, idField, 1), i)
			if r.coll.IDIndex != nil {
				i, b := bsoncore.AppendDocumentElementStart(body, "hint")
				body = closeDocument(bsoncore.AppendInt32Element(b, idField, 1), i)
			}
		}
	}
	// Without a batch size the first batch would be small.
	body = bsoncore.AppendInt32Element(body, "batchSize", r.most(resume))
	body = bsoncore.AppendBooleanElement(body, "noCursorTimeout", true)
	return r.command(r.coll.NS.DB(), start, r.appendConcern(body, r.cfg.After))
}

func (r *reader) getMoreCommand() mongo.Command {
	start, body := bsoncore.AppendDocumentStart(make([]byte, 0, 256))
	body = bsoncore.AppendInt64Element(body, "getMore", r.cursor)
	body = bsoncore.AppendStringElement(body, "collection", r.name)
	body = bsoncore.AppendInt32Element(body, "batchSize", r.most(r.seen))
	return r.command(r.coll.NS.DB(), start, body)
}

func (r *reader) killCommand() mongo.Command {
	start, body := bsoncore.AppendDocumentStart(make([]byte, 0, 256))
	body = bsoncore.AppendStringElement(body, "killCursors", r.name)
	i, body := bsoncore.AppendArrayElementStart(body, "cursors")
	body = closeArray(bsoncore.AppendInt64Element(body, "0", r.cursor), i)
	return r.command(r.coll.NS.DB(), start, body)
}

// cursorReply is the reply to a find, a getMore or an aggregate, as views.
type cursorReply struct {
	id    int64
	ns    oplog.Namespace
	batch bson.Raw
}

func parseCursor(reply bson.Raw) (cursorReply, error) {
	e, _ := rawbson.Lookup(reply, "cursor")
	doc, ok := e.Document()
	if !ok {
		return cursorReply{}, errors.New("read a reply: it has no cursor")
	}
	var c cursorReply
	hasID := false
	it := rawbson.NewIter(doc)
	for it.Next() {
		switch it.Name() {
		case "id":
			c.id, hasID = it.Int64()
		case "ns":
			ns, _ := it.Text()
			c.ns = oplog.Namespace(ns).Clone()
		case "firstBatch", "nextBatch":
			c.batch, _ = it.Array()
		}
	}
	switch {
	case it.Err() != nil:
		return cursorReply{}, it.Err()
	case !hasID || c.batch == nil:
		return cursorReply{}, errors.New("read a reply: its cursor has no id or no batch")
	}
	return c, nil
}

func coreValue(v bson.RawValue) bsoncore.Value {
	return bsoncore.Value{Type: bsoncore.Type(v.Type), Data: v.Value}
}
