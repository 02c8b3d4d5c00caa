package mongosim

import (
	"errors"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestCallsEndWithTheirRun: a call that has started when the member is killed has
// ended when Kill returns, and leaves no transaction in the way of the next run.
func TestCallsEndWithTheirRun(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	s := quick(t, Options{Members: 1, Seed: 1})
	m := s.Member(0)
	create := marshal(bson.D{{Key: "create", Value: "c"}, {Key: "$db", Value: "db"}})
	must[bson.Raw](t)(m.Call(ctx, create))
	for run := range 20 {
		var calls, begun sync.WaitGroup
		begun.Add(4)
		for caller := range 4 {
			calls.Go(func() {
				first := sync.OnceFunc(begun.Done)
				lsid := bson.D{{Key: "id", Value: bson.Binary{Subtype: 4, Data: append(make([]byte, 14), byte(run), byte(caller))}}}
				for n := int64(1); ; n++ {
					_, err := m.Call(ctx, marshal(bson.D{
						{Key: "insert", Value: "c"},
						{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: run*100 + caller}}}},
						{Key: "lsid", Value: lsid},
						{Key: "txnNumber", Value: n},
						{Key: "autocommit", Value: false},
						{Key: "startTransaction", Value: true},
						{Key: "$db", Value: "db"},
					}))
					first()
					if errors.Is(err, ErrDown) {
						return
					}
				}
			})
		}
		begun.Wait()
		succeed(t, m.Kill())
		calls.Wait()
		succeed(t, m.Start())
		must[*Member](t)(s.AwaitPrimary(ctx))
		for caller := range 4 {
			reply := must[bson.Raw](t)(m.Call(ctx, marshal(bson.D{
				{Key: "insert", Value: "c"},
				{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: run*100 + caller}}}},
				{Key: "maxTimeMS", Value: int64(500)},
				{Key: "$db", Value: "db"},
			})))
			if n, _ := reply.Lookup("n").AsInt64OK(); n != 1 {
				t.Fatalf("run %d, caller %d: %s", run, caller, reply)
			}
		}
	}
}
