package applier

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/mongosim"
)

// TestCappedWholeNumbers: whole numbers above 2^53 as _ids, such as times in nanoseconds, are different _ids however close they are. They
// are written together, in order, not one by one with an announcement each.
func TestCappedWholeNumbers(t *testing.T) {
	t.Parallel()
	const first, count = int64(1 << 60), 60
	r := newRig(t, 2, mongosim.Options{Members: 1})
	r.target.run(t, "db", bson.D{{Key: "create", Value: "cap"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
	l := newLog(t)
	for i := range int64(count) {
		l.add(insertOp("db.cap", bson.D{{Key: "_id", Value: first + i}, {Key: "v", Value: i}}))
	}
	var ops []plan.Op
	for _, b := range l.batches() {
		for _, item := range b.Items {
			ops = append(ops, plan.Op{Op: item.Entry.Op, Target: item.Entry.NS, Collection: &catalog.Collection{Capped: true}})
		}
	}
	if n := fitting(ops); n != count {
		t.Errorf("%d of %d fit into one part", n, count)
	}
	r.apply(t, l.batches(), nil)
	docs := r.target.documents(t, "db.cap")
	if len(docs) != count {
		t.Fatalf("%d documents", len(docs))
	}
	for i, doc := range docs {
		if doc.Lookup("_id").Int64() != first+int64(i) {
			t.Errorf("document %d is %s", i, doc)
		}
	}
}
