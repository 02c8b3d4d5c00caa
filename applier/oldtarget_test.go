package applier

import (
	"fmt"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
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

// TestModifiersOnANewTarget: a source before 5.0 logs modifiers ($v: 1), which the stage of newer targets for deltas
// refuses. Paths below the top level reach the target nevertheless, on a copy too, and so do names with a dollar.
func TestModifiersOnANewTarget(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"5.0", "6.0", "7.0", "8.0"} {
		for _, copied := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s copied=%t", dialect, copied), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 2, mongosim.Options{Members: 1, Dialect: dialect})
				r.target.run(t, "db", bson.D{{Key: "create", Value: "c"}})
				l := newLog(t)
				l.add(insertOp("db.c", bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: bson.D{{Key: "x", Value: 1}}}, {Key: "ref", Value: bson.D{{Key: "$id", Value: 1}}}}))
				l.add(modifiersOp(1, bson.D{{Key: "a.x", Value: 2}, {Key: "ref.$id", Value: 2}}))
				r.apply(t, l.batches(), func(c *Config) {
					c.Plan = must.Get(plan.Ask(t.Context(), r.target, "db"))(t)
					c.Plan.Coalesce = false
					if copied {
						c.CopiedUntil = l.optime()
					}
				})
				want := must.Marshal(t, bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: bson.D{{Key: "x", Value: 2}}}, {Key: "ref", Value: bson.D{{Key: "$id", Value: 2}}}})
				if docs := r.target.documents(t, "db.c"); len(docs) != 1 || docs[0].String() != want.String() {
					t.Errorf("documents: %s, want %s", docs, want)
				}
			})
		}
	}
}

// modifiersOp is an update of db.c in the form of servers before 5.0.
func modifiersOp(id any, set bson.D) bson.D {
	return bson.D{
		{Key: "op", Value: "u"},
		{Key: "ns", Value: "db.c"},
		{Key: "o", Value: bson.D{{Key: "$v", Value: 1}, {Key: "$set", Value: set}}},
		{Key: "o2", Value: bson.D{{Key: "_id", Value: id}}},
	}
}

// TestDollarNamesOnAnOldTarget: a target before 5.0 accepts names with a dollar inside of a document in inserts only. The
// inserts that a copy meets, and updates, must not be sent as replacements there.
func TestDollarNamesOnAnOldTarget(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"4.4", "5.0"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 2, mongosim.Options{Members: 1, Dialect: dialect})
			r.target.run(t, "db", bson.D{{Key: "create", Value: "c"}})
			query := bson.E{Key: "q", Value: bson.D{{Key: "$gt", Value: 5}}}
			// The copy has the first document already, as it is at its end.
			r.target.run(t, "db", bson.D{{Key: "insert", Value: "c"}, {Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: 1}, query, {Key: "n", Value: bson.D{{Key: "x", Value: 2}}}}}}})
			l := newLog(t)
			for id := 1; id <= 3; id++ {
				l.add(insertOp("db.c", bson.D{{Key: "_id", Value: id}, query, {Key: "n", Value: bson.D{{Key: "x", Value: 1}}}}))
			}
			l.add(modifiersOp(1, bson.D{{Key: "n.x", Value: 2}}))
			l.add(modifiersOp(2, bson.D{{Key: "n.x", Value: 3}}))
			l.add(deleteOp("db.c", 3))
			r.apply(t, l.batches(), func(c *Config) {
				c.Plan = must.Get(plan.Ask(t.Context(), r.target, "db"))(t)
				c.Plan.Coalesce = false
				c.CopiedUntil = l.optime()
			})
			docs := r.target.documents(t, "db.c")
			if len(docs) != 2 {
				t.Fatalf("documents: %s", docs)
			}
			slices.SortFunc(docs, func(a, b bson.Raw) int { return int(a.Lookup("_id").Int32() - b.Lookup("_id").Int32()) })
			for i, doc := range docs {
				want := must.Marshal(t, bson.D{{Key: "_id", Value: i + 1}, query, {Key: "n", Value: bson.D{{Key: "x", Value: i + 2}}}})
				if doc.String() != want.String() {
					t.Errorf("document %s, want %s", doc, want)
				}
			}
		})
	}
}

// TestDollarUpdatesOnAnOldTarget: a source from 5.0 on logs updates that write names with a dollar, or that become a pipeline or
// a replacement on such a document, and inserts in an applyOps replace one. A target before 5.0 must have them nevertheless, and
// an update of a missing document stays a divergence.
func TestDollarUpdatesOnAnOldTarget(t *testing.T) {
	t.Parallel()
	query := bson.E{Key: "q", Value: bson.D{{Key: "$gt", Value: 5}}}
	first := bson.D{{Key: "_id", Value: 1}, query, {Key: "l", Value: bson.A{1, 2, 3}}, {Key: "n", Value: 1}}
	written := bson.D{{Key: "_id", Value: 1}, {Key: "q", Value: bson.D{{Key: "$lt", Value: 6}}}, {Key: "l", Value: bson.A{1, 2, 3}}, {Key: "n", Value: 1}}
	schema := bson.D{{Key: "$ref", Value: "#/definitions/q"}} // the server takes it for a reference to a document, and an invalid one
	for _, tt := range []struct {
		name  string
		entry bson.D
		want  bson.D
	}{
		{"delta that writes one", deltaOp("db.c", 1, bson.D{{Key: "u", Value: bson.D{{Key: "q", Value: bson.D{{Key: "$lt", Value: 6}}}}}}), written},
		{"delta below one", deltaOp("db.c", 1, bson.D{{Key: "sq", Value: bson.D{{Key: "u", Value: bson.D{{Key: "$gt", Value: 7}}}}}}), bson.D{
			{Key: "_id", Value: 1}, {Key: "q", Value: bson.D{{Key: "$gt", Value: 7}}}, {Key: "l", Value: bson.A{1, 2, 3}}, {Key: "n", Value: 1},
		}},
		{"delta of an array's length", deltaOp("db.c", 1, bson.D{{Key: "sl", Value: bson.D{{Key: "a", Value: true}, {Key: "l", Value: 2}}}}), bson.D{
			{Key: "_id", Value: 1}, query, {Key: "l", Value: bson.A{1, 2}}, {Key: "n", Value: 1},
		}},
		{"delta of an odd name", deltaOp("db.c", 1, bson.D{{Key: "i", Value: bson.D{{Key: "a.b", Value: 1}}}}), append(slices.Clone(first), bson.E{Key: "a.b", Value: 1})},
		{"replacement", replaceOp("db.c", written), written},
		{"delta that writes a schema", deltaOp("db.c", 1, bson.D{{Key: "u", Value: bson.D{{Key: "q", Value: schema}}}}), bson.D{
			{Key: "_id", Value: 1}, {Key: "q", Value: schema}, {Key: "l", Value: bson.A{1, 2, 3}}, {Key: "n", Value: 1},
		}},
		{"replacement by a schema", replaceOp("db.c", bson.D{{Key: "_id", Value: 1}, {Key: "q", Value: schema}}), bson.D{{Key: "_id", Value: 1}, {Key: "q", Value: schema}}},
		{"insert in an applyOps", groupOp(insertOp("db.c", written)), written},
	} {
		for _, copied := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s copied=%t", tt.name, copied), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 2, mongosim.Options{Members: 1, Dialect: "4.4"})
				r.target.run(t, "db", bson.D{{Key: "create", Value: "c"}})
				l := newLog(t)
				l.add(insertOp("db.c", first))
				l.add(insertOp("db.c", bson.D{{Key: "_id", Value: 2}}))
				l.add(tt.entry)
				l.add(deleteOp("db.c", 2))
				r.apply(t, l.batches(), func(c *Config) {
					c.Plan = must.Get(plan.Ask(t.Context(), r.target, "db"))(t)
					c.Plan.Coalesce = false
					if copied {
						c.CopiedUntil = l.optime()
					}
				})
				want := must.Marshal(t, tt.want)
				if docs := r.target.documents(t, "db.c"); len(docs) != 1 || docs[0].String() != want.String() {
					t.Errorf("documents: %s, want %s", docs, want)
				}
			})
		}
	}
}

// TestNumberOfAnotherType: a replacement may change the type of a number in the _id, and its entry names the _id as it is
// afterwards. In a collection with a collation it is applied too where the operations are applied one by one.
func TestNumberOfAnotherType(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, mongosim.Options{Members: 1, Dialect: "4.4"})
	r.createFolded(t, "c", 2)
	query := bson.E{Key: "q", Value: bson.D{{Key: "$gt", Value: 5}}}
	l := newLog(t)
	l.add(insertOp("db.c", bson.D{{Key: "_id", Value: bson.D{{Key: "no", Value: 41}}}, {Key: "v", Value: 1}}))
	replaced := bson.D{{Key: "_id", Value: bson.D{{Key: "no", Value: 41.0}}}, query}
	l.add(replaceOp("db.c", replaced))
	r.apply(t, l.batches(), func(c *Config) {
		c.Plan = must.Get(plan.Ask(t.Context(), r.target, "db"))(t)
		c.Plan.Coalesce = false
	})
	want := must.Marshal(t, replaced)
	if docs := r.target.documents(t, "db.c"); len(docs) != 1 || docs[0].String() != want.String() {
		t.Errorf("documents: %s, want %s", docs, want)
	}
}

// TestRefusedName: lanes may meet the first of these documents at the same time. An operation that is refused again is not retried.
func TestRefusedName(t *testing.T) {
	t.Parallel()
	a := &Applier{}
	op := func(entry int) *plan.Op { return &plan.Op{At: checkpoint.Position{OpTime: optimeOf(entry)}} }
	for lane := range 2 {
		w := &writer{Applier: a}
		if !w.insertsAnew(op(lane)) || !w.insertsAnew(op(lane+2)) {
			t.Errorf("lane %d does not retry", lane)
		}
		if w.insertsAnew(op(lane + 2)) {
			t.Errorf("lane %d retries twice", lane)
		}
	}
}
