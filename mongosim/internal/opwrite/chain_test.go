package opwrite_test

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// TestChainOutlivesOplog rolls the oplog over while the set has committed only the
// first parts of a transaction, and then loses the last part, as a crash does.
func TestChainOutlivesOplog(t *testing.T) {
	store := storage.New(storage.Options{OplogBytes: 2000})
	uuids := byte(0)
	p, err := opwrite.New(opwrite.Config{
		Store: store, Dialect: recordedDialect, MaxApplyOpsBytes: 400,
		Term: func() (int64, error) { return 2, nil }, Now: func() time.Time { return time.UnixMilli(7000) },
		NewUUID: func() oplog.UUID { uuids++; return oplog.UUID{uuids} },
	})
	check(t, err)
	check(t, p.Write(func(b *opwrite.Batch) error { return b.StepUp() }))
	create(t, p, "db.c", nil)
	large := func(id int32) bson.Raw {
		return doc(t, bson.D{{Key: "_id", Value: id}, {Key: "s", Value: strings.Repeat("x", 300)}})
	}
	var first bson.Timestamp
	check(t, p.Write(func(b *opwrite.Batch) error {
		first = b.LastOpTime().TS
		first.I++
		txn := b.Begin(&opwrite.Session{LSID: lsid(t), TxnNumber: 1}, bson.Timestamp{})
		for id := range int32(3) {
			coll, _ := txn.View().Collection("db.c")
			_, err := txn.Insert(coll, []bson.Raw{large(id)}, nil)
			check(t, err)
		}
		_, err := txn.Commit(b)
		return err
	}))
	middle := first
	middle.I++
	stable := func(at bson.Timestamp) {
		check(t, store.Write(func(w *storage.Writer) error { w.SetStable(at); return nil }))
	}
	fill := func(from int32) {
		for id := range int32(10) {
			check(t, p.Write(func(b *opwrite.Batch) error {
				coll, _ := b.View().Collection("db.c")
				_, err := b.Insert(coll, []bson.Raw{large(from + id)}, nil)
				return err
			}))
		}
	}
	has := func() (found bool, size int64) {
		check(t, store.Read(func(r *storage.Reader) error {
			_, found = r.Oplog().At(first)
			size = r.Oplog().Bytes()
			return nil
		}))
		return found, size
	}
	stable(middle)
	fill(100)
	check(t, store.Write(func(w *storage.Writer) error { return w.RollbackTo(middle) }))
	if found, _ := has(); !found {
		t.Error("the first part of the chain is gone")
	}
	// A member elected now ends the transaction, and with it the need for its parts.
	check(t, p.Write(func(b *opwrite.Batch) error { return b.StepUp() }))
	fill(200)
	check(t, store.Read(func(r *storage.Reader) error { middle = r.Newest(); return nil }))
	stable(middle)
	if found, size := has(); found || size > 2000 {
		t.Errorf("the first part of the chain is there: %t; the oplog has %d bytes", found, size)
	}
}
