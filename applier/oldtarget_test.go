package applier

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestOddNamesOnAnOldTarget: a delta of fields that a server before 5.0 has no operators for, because
// of their names, is applied by reading the document. A link that mirrors back to an older cluster
// has such a target.
func TestOddNamesOnAnOldTarget(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"4.4", "5.0", "6.0"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 2, mongosim.Options{Members: 1, Dialect: dialect})
			r.target.run(t, "db", bson.D{{Key: "create", Value: "c"}})
			l := newLog(t)
			l.add(insertOp("db.c", bson.D{{Key: "_id", Value: 1}, {Key: "a.b", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "c.d", Value: 1}}))
			l.add(deltaOp("db.c", 1, bson.D{
				{Key: "d", Value: bson.D{{Key: "c.d", Value: false}}},
				{Key: "sa.b", Value: bson.D{{Key: "u", Value: bson.D{{Key: "x", Value: 2}}}}},
			}))
			r.apply(t, l.batches(), func(c *Config) {
				c.Plan = must.Get(plan.Ask(t.Context(), r.target, "db"))(t)
				c.Plan.Coalesce = false
			})
			want := must.Marshal(t, bson.D{{Key: "_id", Value: 1}, {Key: "a.b", Value: bson.D{{Key: "x", Value: 2}}}})
			if docs := r.target.documents(t, "db.c"); len(docs) != 1 || docs[0].String() != want.String() {
				t.Errorf("documents: %s, want %s", docs, want)
			}
		})
	}
}
