package opwrite

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/oplog"
)

// nullOpTime is what prevOpTime is at the beginning of a chain.
var nullOpTime = oplog.OpTime{Term: oplog.UninitializedTerm}

// entry is an entry to be logged. Its zero fields are not written.
type entry struct {
	op string
	ns oplog.Namespace
	ui oplog.UUID
	o  bson.Raw
	o2 bson.Raw
	// session is set for retryable writes and transactions.
	session *Session
	// stmts are the statement's number or numbers, for retryable writes.
	stmts []int32
	// prev links the entry to one before, nullOpTime at the beginning of a chain.
	prev oplog.OpTime
	// preImage and postImage are the optimes of image entries (up to 5.0).
	preImage, postImage oplog.OpTime
	// image is kept in config.image_collection (since 6.0).
	image       Image
	fromMigrate bool
	multiOp     bool
}

// append appends the entry in the order of fields that the dialect has.
func (f *format) append(dst []byte, e *entry, at oplog.OpTime, wall time.Time) []byte {
	start, dst := bsoncore.AppendDocumentStart(dst)
	if e.session != nil {
		dst = bsoncore.AppendDocumentElement(dst, "lsid", bsoncore.Document(e.session.LSID))
		dst = bsoncore.AppendInt64Element(dst, "txnNumber", e.session.TxnNumber)
	}
	dst = f.appendOp(dst, e)
	dst = appendOpTimeFields(dst, at)
	if f.wallFirst {
		dst = bsoncore.AppendDateTimeElement(dst, "wall", wall.UnixMilli())
		dst = bsoncore.AppendInt64Element(dst, "v", 2)
	} else {
		dst = bsoncore.AppendInt64Element(dst, "v", 2)
		dst = bsoncore.AppendDateTimeElement(dst, "wall", wall.UnixMilli())
	}
	if !f.modern {
		if e.fromMigrate {
			dst = bsoncore.AppendBooleanElement(dst, "fromMigrate", true)
		}
		dst = appendStmts(dst, e.stmts)
	}
	dst = appendOpTime(dst, "prevOpTime", e.prev)
	if f.wallFirst {
		dst = appendOpTime(dst, "preImageOpTime", e.preImage)
	}
	dst = appendOpTime(dst, "postImageOpTime", e.postImage)
	if e.multiOp {
		dst = bsoncore.AppendInt32Element(dst, "multiOpType", 1)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst
}

// appendOp appends the fields that entries and elements of an applyOps share.
func (f *format) appendOp(dst []byte, e *entry) []byte {
	dst = bsoncore.AppendStringElement(dst, "op", e.op)
	dst = bsoncore.AppendStringElement(dst, "ns", string(e.ns))
	if !e.ui.IsZero() {
		dst = bsoncore.AppendBinaryElement(dst, "ui", bson.TypeBinaryUUID, e.ui[:])
	}
	dst = bsoncore.AppendDocumentElement(dst, "o", bsoncore.Document(e.o))
	if e.o2 != nil {
		dst = bsoncore.AppendDocumentElement(dst, "o2", bsoncore.Document(e.o2))
	}
	if !f.wallFirst {
		dst = appendOpTime(dst, "preImageOpTime", e.preImage)
	}
	if f.modern {
		if e.image != NoImage {
			dst = bsoncore.AppendStringElement(dst, "needsRetryImage", e.image.name())
		}
		dst = appendStmts(dst, e.stmts)
		if e.fromMigrate {
			dst = bsoncore.AppendBooleanElement(dst, "fromMigrate", true)
		}
	}
	return dst
}

// inner returns an element of an applyOps.
func (f *format) inner(e *entry) []byte {
	dst := make([]byte, 0, 96+len(e.ns)+len(e.o)+len(e.o2))
	start, dst := bsoncore.AppendDocumentStart(dst)
	dst = f.appendOp(dst, e)
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst
}

func appendStmts(dst []byte, stmts []int32) []byte {
	switch len(stmts) {
	case 0:
		return dst
	case 1:
		return bsoncore.AppendInt32Element(dst, "stmtId", stmts[0])
	}
	start, dst := bsoncore.AppendArrayElementStart(dst, "stmtId")
	for i, id := range stmts {
		dst = bsoncore.AppendInt32Element(dst, index(i), id)
	}
	dst, _ = bsoncore.AppendArrayEnd(dst, start)
	return dst
}

func appendOpTimeFields(dst []byte, at oplog.OpTime) []byte {
	dst = bsoncore.AppendTimestampElement(dst, "ts", at.TS.T, at.TS.I)
	return bsoncore.AppendInt64Element(dst, "t", at.Term)
}

// appendOpTime appends an optime; the zero value stands for none and is left out.
func appendOpTime(dst []byte, name string, at oplog.OpTime) []byte {
	if at == (oplog.OpTime{}) {
		return dst
	}
	start, dst := bsoncore.AppendDocumentElementStart(dst, name)
	dst = appendOpTimeFields(dst, at)
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	return dst
}
