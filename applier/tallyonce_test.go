package applier

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestEasedIsCountedOnce: a part outside of transactions that an index refuses on a copy is applied again without the index. What it has
// done is counted once.
func TestEasedIsCountedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, mongosim.Options{Members: 1, Dialect: "7.0"})
	r.target.run(t, "db", bson.D{{Key: "create", Value: "p"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
	r.target.run(t, "db", bson.D{{Key: "createIndexes", Value: "p"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 1}}}, {Key: "name", Value: "a_1_b_1"}},
	}}})
	l := newLog(t)
	l.add(deleteOp("db.p", 7))
	l.add(insertOp("db.p", doc(1, 1)))
	l.add(insertOp("db.p", bson.D{{Key: "_id", Value: 2}, {Key: "a", Value: bson.A{1}}, {Key: "b", Value: bson.A{2}}}))
	until := l.optime()
	a := must.Get(r.begin(t.Context(), func(c *Config) {
		r.commanded(t, c, nil)
		c.CopiedUntil = until
	}))(t)
	must.Succeed(t, a.run(t.Context(), l.batches(), 0))
	if s := a.Stats(); s.DeletesEmpty != 1 || s.Ignored != 0 || s.Coalesced != 0 {
		t.Errorf("%d deletes were empty, %d operations ignored, %d coalesced: want 1, 0, 0", s.DeletesEmpty, s.Ignored, s.Coalesced)
	}
}
