package applier

import (
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/ddl"
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

// TestCappedInTheWay: a source from 5.3 on deletes a document of a capped collection, and inserts one of that _id again. A target that
// deletes none has the older one of the copy, or that which the log inserts now: the collection has to be copied again. The document
// stays: a new one in its place would be trimmed too early.
func TestCappedInTheWay(t *testing.T) {
	t.Parallel()
	for _, o := range []mongosim.Options{{Dialect: "4.4"}, {Dialect: "5.0"}, {Dialect: "5.0", FCV: "4.4"}, {Dialect: "6.0"}} {
		t.Run(o.Dialect+" "+o.FCV, func(t *testing.T) {
			t.Parallel()
			o.Members = 1
			r := newRig(t, 1, o)
			r.target.run(t, "db", bson.D{{Key: "create", Value: "a"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
			r.target.run(t, "db", bson.D{{Key: "insert", Value: "a"}, {Key: "documents", Value: bson.A{doc(1, 0), doc(2, 0)}}})
			l := newLog(t)
			l.add(deleteOp("db.a", 1))
			l.add(insertOp("db.a", doc(1, 1)))
			set := func(c *Config) { c.CopiedUntil = l.optime() }
			if o.Dialect == "6.0" {
				r.apply(t, l.batches(), set)
				wantDocs(t, r.target, "db.a", doc(2, 0), doc(1, 1))
				return
			}
			err := r.fails(t, l, set)
			again, ok := errors.AsType[*ddl.ResyncError](err)
			if !ok || again.NS != "db.a" || again.OpTime != optimeOf(1) || !strings.Contains(err.Error(), "_id 1 is in the way") {
				t.Fatal(err)
			}
			wantDocs(t, r.target, "db.a", doc(1, 0), doc(2, 0))
		})
	}
}
