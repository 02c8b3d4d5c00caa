package applier

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
)

// A primary logs the trimming of a capped collection as deletes. Where clients cannot
// delete from one, the target's own trimming replaces them.
func TestTrimmed(t *testing.T) {
	for _, fcv := range []string{"5.0", "4.4"} {
		t.Run(fcv, func(t *testing.T) { testTrimmed(t, mongosim.Options{Members: 1, FCV: fcv}) })
	}
}

func testTrimmed(t *testing.T, opts mongosim.Options) {
	r := newRig(t, 4, opts)
	r.target.run(t, "db", bson.D{{Key: "create", Value: "cap"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}, {Key: "max", Value: 3}})
	l := newLog(t)
	for i := range 8 {
		l.add(insertOp("db.cap", doc(int32(i), 0)))
		if i >= 3 {
			l.add(deleteOp("db.cap", int32(i-3)))
		}
	}
	l.add(deleteOp("db.cap", int32(6))) // the target has this one
	var kept []event.Event
	r.apply(t, l.batches(), func(c *Config) {
		c.Observer = func(e event.Event) {
			if strings.HasPrefix(e.Message(), "documents deleted from a capped collection stay") {
				kept = append(kept, e)
			}
		}
	})
	if diff := cmp.Diff(texts(r.target.documents(t, "db.cap")), texts([]bson.Raw{must.Marshal(t, doc(int32(5), 0)), must.Marshal(t, doc(int32(6), 0)), must.Marshal(t, doc(int32(7), 0))})); diff != "" {
		t.Error(diff)
	}
	if len(kept) != 1 || event.Attr(kept[0], keyOps).Int64() != 1 || event.Attr(kept[0], keyNS).String() != "db.cap" {
		t.Errorf("told %v, want one document of db.cap", kept)
	}
}

func TestAlreadyIn(t *testing.T) {
	ins := func(id int) *plan.Op {
		l := newLog(t)
		l.add(insertOp("db.c", doc(id, id)))
		e := l.batches()[0].Items[0].Entry
		return &plan.Op{Op: e.Op, Target: e.NS}
	}
	moved := ins(0) // its _id is not the first field
	moved.O = must.Marshal(t, bson.D{{Key: "a", Value: 1}, {Key: "_id", Value: 7}, {Key: "b", Value: 2}})
	for _, c := range []struct {
		name string
		ops  []*plan.Op
		have []bson.D // the newest first
		want int
	}{
		{"empty", []*plan.Op{ins(1), ins(2)}, nil, 0},
		{"none", []*plan.Op{ins(1), ins(2)}, []bson.D{doc(0, 0)}, 0},
		{"one", []*plan.Op{ins(1), ins(2)}, []bson.D{doc(1, 1), doc(0, 0)}, 1},
		{"all", []*plan.Op{ins(1), ins(2)}, []bson.D{doc(2, 2), doc(1, 1)}, 2},
		{"not all there", []*plan.Op{ins(1), ins(2), ins(3)}, []bson.D{doc(2, 2)}, 0},
		{"another one of that _id", []*plan.Op{ins(1), ins(2)}, []bson.D{doc(1, 7)}, 0},
		{"an older one in between", []*plan.Op{ins(1), ins(2), ins(3)}, []bson.D{doc(3, 3), doc(1, 1), doc(0, 0)}, 0},
		{"the _id put in front", []*plan.Op{ins(1), moved}, []bson.D{{{Key: "_id", Value: 7}, {Key: "a", Value: 1}, {Key: "b", Value: 2}}, doc(1, 1)}, 2},
		{"other fields in another order", []*plan.Op{moved}, []bson.D{{{Key: "_id", Value: 7}, {Key: "b", Value: 2}, {Key: "a", Value: 1}}}, 0},
	} {
		var have []bson.Raw
		for _, d := range c.have {
			have = append(have, must.Marshal(t, d))
		}
		if got := alreadyIn(c.ops, have); got != c.want {
			t.Errorf("%s: %d are in, want %d", c.name, got, c.want)
		}
	}
}

// A newer document of a copy is deleted before it is inserted, so that it gets the
// source's place in the order.
func TestCopiedInTheWay(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, mongosim.Options{Members: 1, Dialect: "7.0"})
	r.target.run(t, "db", bson.D{{Key: "create", Value: "cap"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
	r.target.run(t, "db", bson.D{{Key: "insert", Value: "cap"}, {Key: "documents", Value: bson.A{doc(1, 1), doc(2, 5), doc(3, 1)}}})
	l := newLog(t)
	for _, d := range []bson.D{doc(2, 2), doc(4, 2), doc(5, 2)} {
		l.add(insertOp("db.cap", d))
	}
	r.apply(t, l.batches(), func(c *Config) { c.CopiedUntil = l.optime() })
	var want []bson.Raw
	for _, d := range []bson.D{doc(1, 1), doc(3, 1), doc(2, 2), doc(4, 2), doc(5, 2)} {
		want = append(want, must.Marshal(t, d))
	}
	if diff := cmp.Diff(texts(want), texts(r.target.documents(t, "db.cap"))); diff != "" {
		t.Error(diff)
	}
}

// An attempt ends after its writes and before the lane records them: the delete of an
// older document must not be repeated on the newer one with its _id.
func TestCappedDoneAlready(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, mongosim.Options{Members: 1, Dialect: "7.0"})
	r.target.run(t, "db", bson.D{{Key: "create", Value: "cap"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}, {Key: "max", Value: 3}})
	r.target.run(t, "db", bson.D{{Key: "insert", Value: "cap"}, {Key: "documents", Value: bson.A{doc(1, 1), doc(2, 1), doc(3, 1)}}})
	l := newLog(t)
	for _, op := range []bson.D{
		insertOp("db.cap", doc(4, 1)), deleteOp("db.cap", 1), insertOp("db.cap", doc(1, 2)), deleteOp("db.cap", 2),
	} {
		l.add(op)
	}
	var wrote atomic.Bool
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if wrote.Load() {
			return &mongo.LostError{Host: "x", Err: errors.New("gone")}, false
		}
		wrote.Store(cmd.DB == "db" && simcaller.Name(cmd) == "insert")
		return nil, false
	})
	a := must.Get(r.begin(t.Context(), nil))(t)
	if err := a.run(t.Context(), l.batches(), 0); err == nil {
		t.Fatal("it was not cut off")
	}
	r.target.intercept(nil)
	r.apply(t, l.batches(), nil)
	wantDocs(t, r.target, "db.cap", doc(3, 1), doc(4, 1), doc(1, 2))
}
