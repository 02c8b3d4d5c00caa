package opwrite

import (
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// logImage logs the image that a retry of e will need as a no-op entry, and makes
// e point to it: the way of versions up to 5.0.
func (b *Batch) logImage(e *entry, kind Image, image bson.Raw, at oplog.OpTime) {
	note := entry{op: "n", ns: e.ns, ui: e.ui, o: image, session: e.session, stmts: e.stmts, prev: e.prev}
	b.log(&note, at)
	if kind == PreImage {
		e.preImage = at
	} else {
		e.postImage = at
	}
}

// image finds the image that belongs to the entry of a statement, if any.
func (b *Batch) image(s *Session, e *storage.OplogEntry) (storage.OplogEntry, error) {
	it := rawbson.NewIter(e.Raw)
	for it.Next() {
		switch it.Name() {
		case "preImageOpTime", "postImageOpTime":
			at, _ := readOpTime(&it.Elem)
			image, ok := b.w.Oplog().At(at.TS)
			if !ok || !image.At.Equal(at) {
				return image, incomplete(at)
			}
			return image, nil
		case "needsRetryImage":
			return b.keptImage(s, e)
		}
	}
	return storage.OplogEntry{}, nil
}

// keptImage reads config.image_collection.
func (b *Batch) keptImage(s *Session, e *storage.OplogEntry) (storage.OplogEntry, error) {
	if coll, ok := b.View().Collection(ImagesNS); ok {
		if kept, ok := coll.Get(documentValue(s.LSID)); ok {
			number, _ := rawbson.Lookup(kept.Doc, "txnNum")
			n, _ := number.Int64()
			at, _ := rawbson.Lookup(kept.Doc, "ts")
			ts, _ := at.Timestamp()
			image, _ := rawbson.Lookup(kept.Doc, "image")
			invalid, _ := rawbson.Lookup(kept.Doc, "invalidated")
			bad, _ := invalid.Bool()
			if doc, ok := image.Document(); ok && n == s.TxnNumber && ts == e.At.TS && !bad {
				start, raw := bsoncore.AppendDocumentStart(nil)
				raw = bsoncore.AppendStringElement(raw, "op", "n")
				raw = bsoncore.AppendStringElement(raw, "ns", "")
				raw = bsoncore.AppendDocumentElement(raw, "o", bsoncore.Document(doc))
				raw = appendOpTimeFields(raw, e.At)
				raw, _ = bsoncore.AppendDocumentEnd(raw, start)
				return storage.OplogEntry{At: e.At, Raw: raw}, nil
			}
		}
	}
	return storage.OplogEntry{}, servererr.New(servererr.IncompleteTransactionHistory,
		"image collection no longer contains the complete write history of this transaction, record with opTime { ts: Timestamp(%d, %d), t: %d } cannot be found",
		e.At.TS.T, e.At.TS.I, e.At.Term)
}
