package applier

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestDollarsInCapped: a document of a capped collection has a name with a dollar below the top level, and its other fields are updated. A
// target before 5.0 accepts no replacement and no pipeline on it, and deletes none, but it accepts what a client may send.
func TestDollarsInCapped(t *testing.T) {
	t.Parallel()
	query := bson.E{Key: "q", Value: bson.D{{Key: "$gt", Value: 5}}}
	document := func(n, a, b int) bson.D {
		return bson.D{{Key: "_id", Value: 1}, query, {Key: "n", Value: bson.D{{Key: "x", Value: n}}}, {Key: "l", Value: bson.A{a, b}}}
	}
	for name, tt := range map[string]struct {
		entry bson.D
		want  bson.D
	}{
		"modifiers":         {modifiersOp(1, bson.D{{Key: "n.x", Value: 2}}), document(2, 3, 4)},
		"delta of an array": {deltaOp("db.c", 1, bson.D{{Key: "sl", Value: bson.D{{Key: "a", Value: true}, {Key: "u1", Value: 5}}}}), document(1, 3, 5)},
		"replacement":       {replaceOp("db.c", document(2, 3, 4)), document(2, 3, 4)},
	} {
		for _, copied := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s copied=%t", name, copied), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 2, mongosim.Options{Members: 1, Dialect: "4.4"})
				r.target.run(t, "db", bson.D{{Key: "create", Value: "c"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
				l := newLog(t)
				l.add(insertOp("db.c", document(1, 3, 4)))
				l.add(insertOp("db.c", doc(2, 0)))
				l.add(tt.entry)
				l.add(setOp("db.c", 2, 7))
				r.apply(t, l.batches(), func(c *Config) {
					c.Plan = must.Get(plan.Ask(t.Context(), r.target, "db"))(t)
					if copied {
						c.CopiedUntil = l.optime()
					}
				})
				wantDocs(t, r.target, "db.c", tt.want, doc(2, 7))
			})
		}
	}
}

// TestFieldsBetween: only fields that a client's update changes in their places are set.
func TestFieldsBetween(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ from, to, want string }{
		{`{"_id": 1, "a": 1, "b": {"$x": 1}}`, `{"_id": 1, "a": 2, "b": {"$x": 1}}`, `{"$set": {"a": 2}}`},
		{`{"_id": 1, "a": 1, "b": 2}`, `{"_id": 1, "b": 3, "c": 4, "d": 5}`, `{"$set": {"b": 3, "c": 4, "d": 5}, "$unset": {"a": ""}}`},
		{`{"_id": 1, "a": 1}`, `{"_id": 1, "a": {"$numberLong": "1"}}`, `{"$set": {"a": {"$numberLong": "1"}}}`},
		{`{"_id": 1, "a": 1}`, `{"_id": 1}`, `{"$unset": {"a": ""}}`},
		{`{"_id": 1, "a": 1}`, `{"_id": 1, "a": 1, "d": 4, "c": 5}`, ""}, // in another order
		{`{"_id": 1, "a": 1, "b": 2}`, `{"_id": 1, "b": 2, "a": 1}`, ""},
		{`{"_id": 1, "a": 1}`, `{"a": 1, "_id": 1}`, ""},
		{`{"_id": 1, "a.b": 1}`, `{"_id": 1, "a.b": 2}`, ""},
		{`{"_id": 1, "a.b": 1}`, `{"_id": 1}`, ""},
		{`{"_id": 1, "$a": 1}`, `{"_id": 1, "$a": 2}`, ""},
		{`{"_id": 1}`, `{"_id": 1, "": 2}`, ""},
		{`{"_id": 1}`, `{"_id": 2}`, ""},
		{`{"_id": 1, "a": 1, "a": 2}`, `{"_id": 1, "a": 1, "a": 3}`, ""},
	} {
		u, ok := fieldsBetween(bsongen.FromJSON(t, tt.from), bsongen.FromJSON(t, tt.to))
		if want := tt.want != ""; ok != want {
			t.Errorf("%s to %s: %t, want %t", tt.from, tt.to, ok, want)
		} else if want && bson.Raw(u).String() != bsongen.FromJSON(t, tt.want).String() {
			t.Errorf("%s to %s: %s, want %s", tt.from, tt.to, u, tt.want)
		}
	}
}
