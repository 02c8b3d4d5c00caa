package applier

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestCappedResizedAtEnd: a document that has another size at the end of the copy too, because its source accepts such updates, ends the
// link there. It is written once the target accepts that, and nothing is lost.
func TestCappedResizedAtEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, mongosim.Options{Members: 1, Dialect: "5.0"})
	r.target.run(t, "db", bson.D{{Key: "create", Value: "p"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
	r.target.run(t, "db", bson.D{{Key: "insert", Value: "p"}, {Key: "documents", Value: bson.A{letters(1, "x", "y"), letters(2, "p", "q")}}})
	r.target.run(t, "db", bson.D{{Key: "create", Value: "q"}})
	l := newLog(t)
	l.add(deltaOp("db.p", 1, bson.D{{Key: "u", Value: bson.D{{Key: "a", Value: "longer"}}}}))
	until := l.optime()
	l.end()
	l.add(insertOp("db.q", bson.D{{Key: "_id", Value: 2}}))
	l.add(deltaOp("db.p", 1, bson.D{{Key: "u", Value: bson.D{{Key: "b", Value: "z"}}}}))
	run := func() error {
		a := must.Get(r.begin(t.Context(), func(c *Config) {
			r.commanded(t, c, nil)
			c.CopiedUntil = until
		}))(t)
		return a.run(t.Context(), l.batches(), 0)
	}
	for range 2 {
		if err := run(); !servererr.IsCappedSize(err) {
			t.Fatalf("it ended with: %v", err)
		}
		wantDocs(t, r.target, "db.p", letters(1, "x", "y"), letters(2, "p", "q"))
		wantDocs(t, r.target, "db.q")
	}
	// The document that is set aside gets the size that the target accepts.
	r.target.run(t, "replicator", bson.D{{Key: "update", Value: "oversized"}, {Key: "updates", Value: bson.A{bson.D{
		{Key: "q", Value: bson.D{}},
		{Key: "u", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "doc", Value: bson.Binary{Data: must.Marshal(t, letters(1, "u", "y"))}}}}}},
	}}}})
	must.Succeed(t, run())
	wantDocs(t, r.target, "db.p", letters(1, "u", "z"), letters(2, "p", "q"))
	wantDocs(t, r.target, "db.q", bson.D{{Key: "_id", Value: 2}})
	if left := r.target.documents(t, "replicator.oversized"); len(left) > 0 {
		t.Errorf("%s is left", left)
	}
}
