package applier

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/mongosim"
)

// A target that refuses deletes from capped collections also refuses an insert of the same part, because of
// an index of the copy. Once that is deferred, the rest of the part is planned again: the deletes of the
// first plan are not looked for in that one.
func TestCappedRefusedTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, mongosim.Options{Members: 1, FCV: "4.4"})
	for coll, most := range map[string]int{"a": 2, "b": 3} {
		r.target.run(t, "db", bson.D{{Key: "create", Value: coll}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}, {Key: "max", Value: most}})
	}
	r.target.run(t, "db", bson.D{{Key: "insert", Value: "a"}, {Key: "documents", Value: bson.A{doc(1, 0), doc(2, 0)}}})
	r.target.run(t, "db", bson.D{{Key: "insert", Value: "b"}, {Key: "documents", Value: bson.A{doc(1, 0), doc(2, 0), doc(9, 0)}}})
	r.target.run(t, "db", bson.D{{Key: "createIndexes", Value: "b"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "x", Value: 1}, {Key: "y", Value: 1}}}, {Key: "name", Value: "refuses"}},
	}}})
	l := newLog(t)
	for _, op := range []bson.D{
		insertOp("db.a", doc(3, 0)), deleteOp("db.a", 1), insertOp("db.a", doc(1, 1)),
		insertOp("db.b", doc(3, 0)), deleteOp("db.b", 1), insertOp("db.b", doc(1, 1)),
		insertOp("db.b", bson.D{{Key: "_id", Value: 5}, {Key: "x", Value: bson.A{1, 2}}, {Key: "y", Value: bson.A{1, 2}}}),
		// The next part begins here, as there is room for three of them.
		insertOp("db.b", doc(6, 0)), deleteOp("db.a", 2), deleteOp("db.b", 2), deleteOp("db.b", 9), deleteOp("db.b", 3),
		insertOp("db.b", doc(7, 0)), deleteOp("db.b", 1), insertOp("db.b", doc(8, 0)), deleteOp("db.b", 5),
	} {
		l.add(op)
	}
	r.apply(t, l.batches(), func(c *Config) {
		r.commanded(t, c, func(event.Event) {})
		c.CopiedUntil = l.optime()
	})
	wantDocs(t, r.target, "db.a", doc(3, 0), doc(1, 1))
	wantDocs(t, r.target, "db.b", doc(6, 0), doc(7, 0), doc(8, 0))
}
