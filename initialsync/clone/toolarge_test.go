package clone

import (
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestTooLargeForCache: a document that does not fit the storage cache of the target is written again for a while, and
// named by the error that ends this.
func TestTooLargeForCache(t *testing.T) {
	t.Parallel()
	for title, c := range map[string]struct {
		capped bool
		times  int // 0: always
	}{
		"passes": {false, 5}, "stays": {false, 0}, "capped, passes": {true, 2}, "capped, stays": {true, 0},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			w := newWorldWith(t, "5.0", 1, mongosim.NoMoods("it has refusals of its own"))
			w.cfg.RetryFor = time.Minute
			if c.times == 0 {
				w.cfg.RetryFor = 100 * time.Millisecond
			}
			ctx := within(t)
			if c.capped {
				capped(t, w, 1<<20, 50)
			}
			insertRaw(t, w.source, "d.c", numbered(t, 7, 1, 10)...)
			coll := w.collection("d.c")
			w.begin(ctx)
			w.plan(ctx, coll)
			refused := 0
			w.target.intercept(func(cmd mongo.Command) (error, bool) {
				if name(cmd) != "insert" || cmd.DB != "d" || c.times > 0 && refused == c.times {
					return nil, false
				}
				refused++
				return servererr.New(servererr.TransactionTooLargeForCache, "no"), false
			}, nil)
			err := w.copyAll(ctx, coll)
			w.target.intercept(nil, nil)
			if c.times > 0 {
				must.Succeed(t, err)
				w.check("d.c")
				return
			}
			e, is := errors.AsType[*TooLargeError](err)
			if !is || e.NS != "d.c" || e.Document() != "the document with _id 7 to d.c" || e.Tried < w.cfg.RetryFor {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestTooLargeNamed: the document is named, too, if the target refuses a statement for it.
func TestTooLargeNamed(t *testing.T) {
	t.Parallel()
	e := &mongo.WriteError{Error: *servererr.New(servererr.TransactionTooLargeForCache, "no")}
	d := must.Get(inspect(must.Marshal(t, bson.D{{Key: "_id", Value: int32(3)}}), false))(t)
	err := refusal("d.c", e, &d)
	if large, is := errors.AsType[*TooLargeError](err); !is || large.Document() != "the document with _id 3 to d.c" || judge(err) != smaller {
		t.Errorf("%v", err)
	}
}
