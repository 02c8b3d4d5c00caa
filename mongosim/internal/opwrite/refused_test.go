package opwrite_test

import (
	"errors"
	"math"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/mongosim/internal/opwrite"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
)

// TestBuildWaits starts an index build that a transaction is in the way of: nothing
// of it may be in the log, for it is tried again until the transaction has ended.
func TestBuildWaits(t *testing.T) {
	p, _ := newPath(t, opwrite.Dialect{Version: "5.0.7"})
	check(t, p.Write(func(b *opwrite.Batch) error { return b.StepUp() }))
	create(t, p, "db.c", nil)
	check(t, p.Write(func(b *opwrite.Batch) error {
		check(t, insert(t, b, 1, opwrite.Stmt{}))
		txn := b.Begin(&opwrite.Session{LSID: lsid(t), TxnNumber: 1}, bson.Timestamp{})
		coll, _ := txn.View().Collection("db.c")
		_, err := txn.Insert(coll, []bson.Raw{doc(t, bson.D{{Key: "_id", Value: int32(2)}})}, nil)
		check(t, err)
		before := b.LastOpTime()
		err = b.CreateIndexes(coll, []bson.Raw{doc(t, bson.D{
			{Key: "v", Value: int32(2)}, {Key: "key", Value: bson.D{{Key: "a", Value: int32(1)}}}, {Key: "name", Value: "a_1"},
		})})
		if !errors.Is(err, storage.ErrWriteConflict) || b.LastOpTime() != before {
			t.Errorf("%v, and the log ends at %s, not %s", err, b.LastOpTime(), before)
		}
		return txn.Abort(b)
	}))
}

// TestCommitTimestampAhead commits a prepared transaction at a time that no entry
// could come after.
func TestCommitTimestampAhead(t *testing.T) {
	p, _ := newPath(t, opwrite.Dialect{Version: "5.0.7"})
	create(t, p, "db.c", nil)
	check(t, p.Write(func(b *opwrite.Batch) error {
		txn := b.Begin(&opwrite.Session{LSID: lsid(t), TxnNumber: 1}, bson.Timestamp{})
		coll, _ := txn.View().Collection("db.c")
		_, err := txn.Insert(coll, []bson.Raw{doc(t, bson.D{{Key: "_id", Value: int32(2)}})}, nil)
		check(t, err)
		_, err = txn.Prepare(b)
		check(t, err)
		_, err = txn.CommitPrepared(b, bson.Timestamp{T: math.MaxUint32, I: math.MaxUint32})
		if r, ok := errors.AsType[*servererr.Error](err); !ok || r.Code != servererr.InvalidOptions {
			t.Errorf("committed at the end of time: %v", err)
		}
		if err := txn.Abort(b); err != nil { // the log continues
			t.Error(err)
		}
		return nil
	}))
}
