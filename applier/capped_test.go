package applier

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongosim"
)

// A primary logs the trimming of a capped collection as deletes. Where clients
// cannot delete from one, the target's own trimming stands for them.
func TestTrimmed(t *testing.T) {
	r := newRig(t, 4, mongosim.Options{Members: 1})
	r.target.run(t, "db", bson.D{{Key: "create", Value: "cap"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}, {Key: "max", Value: 3}})
	l := newLog(t)
	for i := range 8 {
		l.add(insertOp("db.cap", doc(int32(i), 0)))
		if i >= 3 {
			l.add(deleteOp("db.cap", int32(i-3)))
		}
	}
	l.add(deleteOp("db.cap", int32(6))) // this one the target has
	var kept []CappedKept
	r.apply(t, l.batches(), func(c *Config) {
		c.Observer = func(e event.Event) {
			if k, ok := e.(CappedKept); ok {
				kept = append(kept, k)
			}
		}
	})
	if diff := cmp.Diff(texts(r.target.documents(t, "db.cap")), texts([]bson.Raw{raw(t, doc(int32(5), 0)), raw(t, doc(int32(6), 0)), raw(t, doc(int32(7), 0))})); diff != "" {
		t.Error(diff)
	}
	if len(kept) != 1 || kept[0].Documents != 1 || kept[0].NS != "db.cap" {
		t.Errorf("told %v, want one document of db.cap", kept)
	}
}

func raw(t *testing.T, d bson.D) bson.Raw {
	t.Helper()
	return must[[]byte](t)(bson.Marshal(d))
}
