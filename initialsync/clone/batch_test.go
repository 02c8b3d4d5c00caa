package clone

import (
	"testing"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestBatchSize: documents after the end of a range are not requested, as its
// collection would otherwise be read several times.
func TestBatchSize(t *testing.T) {
	t.Parallel()
	const docs = 3000
	w := newWorldWith(t, "5.0", 1, mongosim.NoMoods("after a short batch more is asked for, and that is counted"))
	insertRaw(t, w.source, "d.c", numbered(t, 0, docs, 100)...)
	coll := w.collection("d.c")
	w.cfg.RangeBytes = coll.Bytes / 6
	w.begin(within(t))
	w.plan(within(t), coll)
	var asked int64
	w.source.intercept(func(cmd mongo.Command) (error, bool) {
		e, _ := rawbson.Lookup(cmd.Body, "batchSize")
		if n, ok := e.Int64(); ok && n < replyDocs {
			asked += n
		}
		return nil, false
	}, nil)
	if err := w.copyAll(within(t), coll); err != nil {
		t.Fatal(err)
	}
	w.source.intercept(nil, nil)
	w.check("d.c")
	// The last range has no end.
	ranges := must.Get(w.ranges(within(t)))(t)
	if len(ranges) < 6 || asked > docs || asked < docs/2 {
		t.Errorf("%d documents were asked for, in %d ranges, want at most %d", asked, len(ranges), docs)
	}
}
