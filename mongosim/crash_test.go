package mongosim

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// TestKillEndsTransactions kills a member whose transactions are open: those in
// progress are gone, those that were prepared continue, and neither blocks
// anything that they have not written.
func TestKillEndsTransactions(t *testing.T) {
	ctx := within(t)
	set := quick(t, Options{Members: 1})
	m := set.Primary()
	call := func(cmd bson.D) bson.Raw {
		t.Helper()
		reply := must[bson.Raw](t)(m.Call(ctx, marshal(cmd)))
		if ok, _ := reply.Lookup("ok").AsFloat64OK(); ok != 1 {
			t.Fatalf("%v: %v", cmd, reply)
		}
		return reply
	}
	inTxn := func(session byte, cmd bson.D, start bool) bson.D {
		if start {
			cmd = append(cmd, bson.E{Key: "startTransaction", Value: true})
		}
		return append(
			cmd,
			bson.E{Key: "lsid", Value: bson.D{{Key: "id", Value: oplog.UUID{session}.Binary()}}},
			bson.E{Key: "txnNumber", Value: int64(1)}, bson.E{Key: "autocommit", Value: false},
		)
	}
	insert := func(id int) bson.D {
		return bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: id}}}}, {Key: "$db", Value: "db"}}
	}
	call(insert(0))
	call(inTxn(1, insert(1), true))
	call(inTxn(2, insert(2), true))
	prepared := call(inTxn(2, bson.D{{Key: "prepareTransaction", Value: 1}, {Key: "$db", Value: "admin"}}, false))
	ts := prepared.Lookup("prepareTimestamp")

	succeed(t, m.Kill())
	succeed(t, m.Start())
	must[*Member](t)(set.AwaitPrimary(ctx))
	call(insert(1)) // that of the transaction is gone
	call(inTxn(2, bson.D{{Key: "commitTransaction", Value: 1}, {Key: "commitTimestamp", Value: ts}, {Key: "$db", Value: "admin"}}, false))
	reply := call(bson.D{{Key: "count", Value: "c"}, {Key: "$db", Value: "db"}})
	if n, _ := reply.Lookup("n").AsInt64OK(); n != 3 {
		t.Errorf("%d documents, want 3", n)
	}
}
