package opwrite

import (
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// The collections that every member keeps for itself and for its successors.
const (
	// TransactionsNS has the record of each session.
	TransactionsNS oplog.Namespace = "config.transactions"
	// IndexBuildsNS has the index builds in progress.
	IndexBuildsNS oplog.Namespace = "config.system.indexBuilds"
	// ImagesNS has the newest image of each session's findAndModify (since 6.0).
	ImagesNS oplog.Namespace = "config.image_collection"
)

// The states of a transaction in a session's record.
const (
	StateInProgress = "inProgress"
	StatePrepared   = "prepared"
	StateCommitted  = "committed"
	StateAborted    = "aborted"
)

// Record is the record of a session in config.transactions: {_id: lsid, txnNum,
// lastWriteOpTime, lastWriteDate[, startOpTime][, state]}.
type Record struct {
	// TxnNumber is that of the newest retryable write or transaction.
	TxnNumber int64
	// LastWrite is the newest entry of it, Wall the entry's wall time.
	LastWrite oplog.OpTime
	Wall      bson.DateTime
	// Start is the first entry of a transaction that is not decided yet, the zero
	// value for others.
	Start oplog.OpTime
	// State is empty for retryable writes.
	State string
}

// ReadRecord returns the record of a session, if it has one.
func ReadRecord(v storage.View, lsid bson.Raw) (Record, bool, error) {
	coll, ok := v.Collection(TransactionsNS)
	if !ok {
		return Record{}, false, nil
	}
	found, ok := coll.Get(documentValue(lsid))
	if !ok {
		return Record{}, false, nil
	}
	r, err := parseRecord(found.Doc)
	return r, err == nil, err
}

func parseRecord(doc bson.Raw) (Record, error) {
	var r Record
	seen := 0
	it := rawbson.NewIter(doc)
	for it.Next() {
		ok := true
		switch it.Name() {
		case "txnNum":
			r.TxnNumber, ok = it.Int64()
			seen |= 1
		case "lastWriteOpTime":
			r.LastWrite, ok = readOpTime(&it.Elem)
			seen |= 2
		case "lastWriteDate":
			var ms int64
			ms, ok = it.DateTime()
			r.Wall = bson.DateTime(ms)
		case "startOpTime":
			r.Start, ok = readOpTime(&it.Elem)
		case "state":
			r.State, ok = it.Text()
		}
		if !ok {
			return r, fmt.Errorf("opwrite: read a session's record: %s is %s", it.Name(), it.Raw())
		}
	}
	if err := it.Err(); err != nil {
		return r, fmt.Errorf("opwrite: read a session's record: %w", err)
	}
	if seen != 3 {
		return r, fmt.Errorf("opwrite: read a session's record: no number or optime in %s", doc)
	}
	return r, nil
}

func readOpTime(e *rawbson.Elem) (oplog.OpTime, bool) {
	doc, ok := e.Document()
	if !ok {
		return oplog.OpTime{}, false
	}
	ts, hasTS := rawbson.Lookup(doc, "ts")
	t, hasTerm := rawbson.Lookup(doc, "t")
	at := oplog.OpTime{Term: oplog.UninitializedTerm}
	var ok2 bool
	if at.TS, ok = ts.Timestamp(); !hasTS || !ok {
		return at, false
	}
	if hasTerm {
		if at.Term, ok2 = t.Int64(); !ok2 {
			return at, false
		}
	}
	return at, true
}

// WriteRecord stores the record of a session as part of a unit. It fails with
// NamespaceNotFound if there is no config.transactions.
func WriteRecord(u *storage.Unit, lsid bson.Raw, r *Record) error {
	doc := make([]byte, 0, 160+len(lsid))
	start, doc := bsoncore.AppendDocumentStart(doc)
	doc = bsoncore.AppendDocumentElement(doc, "_id", bsoncore.Document(lsid))
	doc = bsoncore.AppendInt64Element(doc, "txnNum", r.TxnNumber)
	doc = appendOpTime(doc, "lastWriteOpTime", r.LastWrite)
	doc = bsoncore.AppendDateTimeElement(doc, "lastWriteDate", int64(r.Wall))
	doc = appendOpTime(doc, "startOpTime", r.Start)
	if r.State != "" {
		doc = bsoncore.AppendStringElement(doc, "state", r.State)
	}
	doc, _ = bsoncore.AppendDocumentEnd(doc, start)
	return upsert(u, TransactionsNS, documentValue(lsid), doc)
}

// WriteImage stores an image of a session's findAndModify as part of a unit, with
// the timestamp of the entry that it belongs to. It fails with NamespaceNotFound
// if there is no config.image_collection.
func WriteImage(u *storage.Unit, s *Session, ts bson.Timestamp, kind Image, image bson.Raw) error {
	doc := make([]byte, 0, 160+len(s.LSID)+len(image))
	start, doc := bsoncore.AppendDocumentStart(doc)
	doc = bsoncore.AppendDocumentElement(doc, "_id", bsoncore.Document(s.LSID))
	doc = bsoncore.AppendInt64Element(doc, "txnNum", s.TxnNumber)
	doc = bsoncore.AppendTimestampElement(doc, "ts", ts.T, ts.I)
	doc = bsoncore.AppendStringElement(doc, "imageKind", kind.name())
	doc = bsoncore.AppendDocumentElement(doc, "image", bsoncore.Document(image))
	doc = bsoncore.AppendBooleanElement(doc, "invalidated", false)
	doc, _ = bsoncore.AppendDocumentEnd(doc, start)
	return upsert(u, ImagesNS, documentValue(s.LSID), doc)
}

func upsert(u *storage.Unit, ns oplog.Namespace, id bson.RawValue, doc bson.Raw) error {
	coll, ok := u.View().Collection(ns)
	if !ok {
		return servererr.New(servererr.NamespaceNotFound, "ns not found: %s", ns)
	}
	if old, ok := coll.Get(id); ok {
		return u.Update(coll.UUID, old.ID, doc)
	}
	_, err := u.Insert(coll.UUID, doc)
	return err
}

func documentValue(doc bson.Raw) bson.RawValue {
	return bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: doc}
}

func dateTime(t time.Time) bson.DateTime { return bson.DateTime(t.UnixMilli()) }
