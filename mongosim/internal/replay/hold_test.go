package replay_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/replay"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// TestPreparedOutlivesOplog rolls the oplog over while a transaction waits for its
// decision: it has to be found again by the next user of the store.
func TestPreparedOutlivesOplog(t *testing.T) {
	store := storage.New(storage.Options{OplogBytes: 2000})
	write(t, store, func(w *storage.Writer) error {
		u := w.Begin(bson.Timestamp{})
		check(t, u.Create("db.c", collUUID, document(t, bson.D{}), idIndex(t)))
		check(t, u.Create(opwrite.TransactionsNS, oplog.UUID{8}, document(t, bson.D{}), idIndex(t)))
		u.Commit(begun)
		return nil
	})
	filler := func(n uint32) bson.Raw {
		return crudEntry(t, n, "i", bson.D{{Key: "_id", Value: int64(1000 + n)}, {Key: "s", Value: strings.Repeat("x", 300)}})
	}
	start, prepared := oplog.NewOpTime(2, 1, 1), oplog.NewOpTime(2, 20, 1)
	ops := func(id int32, more ...bson.E) bson.D {
		return append(bson.D{{Key: "applyOps", Value: bson.A{innerInsert(id)}}}, more...)
	}
	// Each entry comes alone, so that the oplog is cut after each of them, and by
	// another Applier, as after a restart.
	apply := func(raw bson.Raw) {
		t.Helper()
		a, err := replay.New(store, replay.Options{})
		check(t, err)
		_, err = a.Apply([]bson.Raw{raw})
		check(t, err)
		check(t, a.Close())
		write(t, store, func(w *storage.Writer) error {
			w.SetStable(w.Newest())
			return nil
		})
	}
	apply(groupEntry(t, 1, ops(1, bson.E{Key: "partialTxn", Value: true}), &oplog.OpTime{Term: -1}))
	for n := range uint32(10) {
		apply(filler(2 + n))
	}
	apply(groupEntry(t, 20, ops(2, bson.E{Key: "prepare", Value: true}, bson.E{Key: "count", Value: int64(2)}), &start))
	for n := range uint32(10) {
		apply(filler(21 + n))
	}
	apply(groupEntry(t, 40, bson.D{{Key: "commitTransaction", Value: int32(1)}, {Key: "commitTimestamp", Value: prepared.TS}}, &prepared))
	apply(filler(41))
	check(t, store.Read(func(r *storage.Reader) error {
		coll, _ := r.View(bson.Timestamp{}).Collection("db.c")
		for _, id := range []int32{1, 2} {
			if _, ok := coll.Get(bson.RawValue{Type: bson.TypeInt32, Value: []byte{byte(id), 0, 0, 0}}); !ok {
				t.Errorf("document %d is not there", id)
			}
		}
		if size := r.Oplog().Bytes(); size > 2000 {
			t.Errorf("the oplog has %d bytes once nothing is held", size)
		}
		return nil
	}))
}
