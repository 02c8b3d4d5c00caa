package applier

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// TestCappedUpsertAgain: an upsert of an applyOps, and an insert that pushes its document
// out, are in the target, but the attempt ended before their lane recorded it. The upsert
// must not create the document again: that would push out another one.
func TestCappedUpsertAgain(t *testing.T) {
	r := prepared(t, 1)
	r.target.run(t, "db", bson.D{
		{Key: "create", Value: "cap"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}, {Key: "max", Value: 2},
	})
	l := newLog(t)
	l.add(insertOp("db.cap", doc(0, 0)))
	l.add(insertOp("db.cap", doc(1, 1)))
	l.add(groupOp(setOp("db.cap", 0, 2)))
	l.add(insertOp("db.cap", doc(2, 3)))
	l.end()

	last := 0
	r.target.intercept(serially(func(cmd mongo.Command) (error, bool) {
		for _, d := range cmd.Docs {
			if id, ok := d.Lookup("_id").AsInt64OK(); ok && cmd.Body.Lookup("insert").Type != 0 {
				last = int(id)
			}
		}
		if last == 2 && cmd.DB == "replicator" {
			return &mongo.LostError{Host: "x", Err: errors.New("gone")}, false
		}
		return nil, false
	}))
	a := must.Get(r.begin(t.Context(), nil))(t)
	if err := a.run(t.Context(), l.batches(), 0); err == nil {
		t.Fatal("it was not cut off")
	}
	r.target.intercept(nil)
	a = must.Get(r.begin(t.Context(), nil))(t)
	must.Succeed(t, a.run(t.Context(), l.batches(), 0))
	docs := r.target.documents(t, "db.cap")
	if len(docs) != 2 || docs[0].Lookup("_id").AsInt64() != 1 || docs[1].Lookup("_id").AsInt64() != 2 {
		t.Errorf("the capped collection has %v, want the documents 1 and 2", docs)
	}
}
