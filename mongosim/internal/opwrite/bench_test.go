package opwrite_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// BenchmarkInsert inserts documents of some 100 bytes in batches of 1,000; the
// figures are for one document.
func BenchmarkInsert(b *testing.B) {
	for _, retryable := range []bool{false, true} {
		name := "plain"
		if retryable {
			name = "retryable"
		}
		b.Run(name, func(b *testing.B) {
			p, store := newPath(b, opwrite.Dialect{Version: "5.0.7"})
			create(b, p, "db.c", nil)
			session := &opwrite.Session{LSID: lsid(b)}
			docs := make([]bson.Raw, 1000)
			stmts := make([]opwrite.Stmt, len(docs))
			next := int64(0)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				if n%len(docs) != 0 {
					continue
				}
				session.TxnNumber++
				for i := range docs {
					docs[i] = numbered(docs[i], next)
					stmts[i] = opwrite.Stmt{Session: session, ID: int32(i)}
					next++
				}
				check(b, p.Write(func(w *opwrite.Batch) error {
					coll, _ := w.View().Collection("db.c")
					if !retryable {
						_, err := w.Insert(coll, docs, nil)
						return err
					}
					_, err := w.Insert(coll, docs, stmts)
					return err
				}))
				check(b, store.Write(func(w *storage.Writer) error {
					last, _ := w.Oplog().Last()
					w.SetStable(last.At.TS)
					return nil
				}))
			}
		})
	}
}

func numbered(dst bson.Raw, n int64) bson.Raw {
	start, doc := bsoncore.AppendDocumentStart(dst[:0])
	doc = bsoncore.AppendInt64Element(doc, "_id", n)
	doc = bsoncore.AppendStringElement(doc, "text", "the quick brown fox jumps over the lazy dog, and does it again")
	doc = bsoncore.AppendInt32Element(doc, "n", int32(n%7))
	doc, _ = bsoncore.AppendDocumentEnd(doc, start)
	return doc
}
