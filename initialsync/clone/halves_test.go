package clone

import (
	"errors"
	"testing"

	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
)

// TestHalves: a flush that is too large is written in halves. An interruption between
// them loses only the second one: the record matches the data.
func TestHalves(t *testing.T) {
	t.Parallel()
	for _, order := range []order{natural, byID} {
		w := newWorldWith(t, "5.0", 1, mongosim.NoMoods("a short batch would make another flush"))
		w.cfg.FlushDocs = 40
		insertRaw(t, w.source, "d.c", numbered(t, 0, 40, 10)...)
		coll := w.collection("d.c")
		ctx := within(t)
		w.begin(ctx)
		ranges := []progress.Range{{UUID: coll.UUID, Spec: (&spec{order: order}).encode()}}
		must.Succeed(t, w.link.AddCollections(ctx, []progress.Collection{*coll}))
		must.Succeed(t, w.link.Lane(0).SaveCollection(ctx, coll, ranges))
		written := 0
		w.target.intercept(func(cmd mongo.Command) (error, bool) {
			_, inTxn := rawbson.Lookup(cmd.Body, "autocommit")
			switch {
			case name(cmd) != "insert" || !inTxn:
				return nil, false
			case len(cmd.Docs) > 20:
				return servererr.New(servererr.TransactionTooLarge, "no"), false
			}
			written++
			return when(written == 2, errInjected), false
		}, nil)
		if err := w.copyAll(ctx, coll); !errors.Is(err, errInjected) {
			t.Fatalf("%s: %v", order, err)
		}
		w.target.intercept(nil, nil)
		r := must.Get(w.ranges(ctx))(t)[0]
		if n := len(read(t, w.target.Caller, "d.c")); n != 20 || r.Docs != 20 || r.Done {
			t.Errorf("%s: %d documents are there, %d are noted, done %t", order, n, r.Docs, r.Done)
		}
		w.begin(ctx)
		must.Succeed(t, w.copyAll(ctx, coll))
		w.check("d.c")
	}
}

// TestSampleFails: a collection of which the server finds no sample is one range.
func TestSampleFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	insertRaw(t, w.source, "d.c", numbered(t, 0, 1000, 10)...)
	coll := w.collection("d.c")
	w.cfg.RangeBytes = coll.Bytes / 5
	if n := len(must.Get(w.cloner().Split(t.Context(), coll, "d.c", Since{}))(t)); n < 2 {
		t.Fatalf("%d ranges", n)
	}
	w.source.intercept(func(cmd mongo.Command) (error, bool) {
		return when(name(cmd) == "aggregate", servererr.New(28799, "$sample stage could not find a non-duplicate document after 100 while using a random cursor")), false
	}, nil)
	if n := len(must.Get(w.cloner().Split(t.Context(), coll, "d.c", Since{}))(t)); n != 1 {
		t.Errorf("%d ranges", n)
	}
	w.source.intercept(nil, nil)
}
