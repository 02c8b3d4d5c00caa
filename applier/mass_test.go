package applier

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/oplog"
)

// massLog is what updateMany({}, {$set: {v: 5}}) logs for 40 documents, after so many other
// updates of each.
func massLog(t *testing.T, others int) (l *sourceLog, docs []bson.D) {
	l = newLog(t)
	for i := range 40 {
		docs = append(docs, doc(i, 0))
		for range others {
			l.add(setOp("db.a", i, i+100))
		}
	}
	for i := range 40 {
		l.add(setOp("db.a", i, 5))
	}
	return l, docs
}

// lists counts the statements of update commands on a collection, by their number of _ids.
func (g *simTarget) lists(coll string) func() []int {
	var mu sync.Mutex
	var sizes []int
	g.intercept(func(cmd mongo.Command) (error, bool) {
		mu.Lock()
		defer mu.Unlock()
		if name, _ := cmd.Body.Lookup("update").StringValueOK(); simcaller.Name(cmd) == "update" && name == coll {
			for _, doc := range cmd.Docs {
				sizes = append(sizes, int(documentsOf([]bson.Raw{doc})))
			}
		}
		return nil, false
	})
	return func() []int {
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(sizes)
		return sizes
	}
}

func TestMass(t *testing.T) {
	for _, c := range []struct {
		coalesce bool
		lists    []int
	}{
		{true, []int{20, 20}},
		// An update that follows another one of its document stays where it is.
		{false, slices.Repeat([]int{1}, 80)},
	} {
		l, docs := massLog(t, 1)
		r := prepared(t, 1, docs...)
		lists := r.target.lists("a")
		a := r.apply(t, l.batches(), func(cfg *Config) { cfg.Plan.Coalesce, cfg.Plan.MaxMass = c.coalesce, 25 })
		want := make([]bson.D, len(docs))
		for i := range want {
			want[i] = doc(i, 5)
		}
		wantDocs(t, r.target, "db.a", want...)
		if got := lists(); !slices.Equal(got, c.lists) {
			t.Errorf("statements for %v documents, want %v", got, c.lists)
		}
		documents := int64(0)
		for _, n := range c.lists {
			documents += int64(n)
		}
		listed := documents - int64(len(c.lists))
		if s := a.Stats(); s.Ops != 80 || s.Coalesced != 80-documents || s.Listed != listed {
			t.Errorf("%d operations, %d coalesced, %d listed, want 80, %d and %d", s.Ops, s.Coalesced, s.Listed, 80-documents, listed)
		}
	}
}

// A document that is not there: the divergence names it, and the others are updated.
func TestMassDivergence(t *testing.T) {
	l, docs := massLog(t, 0)
	r := prepared(t, 1, slices.Delete(slices.Clone(docs), 17, 18)...)
	err := r.fails(t, l, nil)
	d, ok := errors.AsType[*DivergenceError](err)
	if !ok || d.ID.AsInt64() != 17 || !strings.Contains(d.What, "found no document") {
		t.Fatalf("error %v, want a divergence of 17", err)
	}
	a := r.apply(t, l.after(start), func(c *Config) { c.ReportDivergence = true })
	if n := a.Stats().Divergences; n != 1 {
		t.Errorf("%d divergences, want 1", n)
	}
	wantMass(t, r)
}

// In a copy it may be gone: that is counted, and no divergence.
func TestMassCopied(t *testing.T) {
	l, docs := massLog(t, 0)
	r := prepared(t, 1, slices.Delete(slices.Clone(docs), 17, 18)...)
	lists := r.target.lists("a")
	a := r.apply(t, l.batches(), func(c *Config) { c.CopiedUntil = l.optime() })
	if n := a.Stats().Ignored; n != 1 {
		t.Errorf("%d ignored, want that of the missing document", n)
	}
	wantMass(t, r)
	if got := lists(); !slices.Equal(got, []int{40}) {
		t.Errorf("statements for %v documents, want one for 40", got)
	}
}

// wantMass checks that all documents but the missing one have the value of massLog.
func wantMass(t *testing.T, r *rig) {
	t.Helper()
	var want []bson.D
	for i := range 40 {
		if i != 17 {
			want = append(want, doc(i, 5))
		}
	}
	wantDocs(t, r.target, "db.a", want...)
}

// A document that refuses the update: the error names it.
func TestMassRefused(t *testing.T) {
	r := prepared(t, 1)
	l := newLog(t)
	for i := range 40 {
		d := bson.D{{Key: "_id", Value: i}, {Key: "in", Value: bson.D{{Key: "a", Value: 1}}}}
		if i == 23 { // not what the source has
			d = bson.D{{Key: "_id", Value: i}, {Key: "in", Value: 1}}
		}
		r.target.run(t, "db", bson.D{{Key: "insert", Value: "a"}, {Key: "documents", Value: bson.A{d}}})
		op := setOp("db.a", i, 0)
		op[2].Value = bson.D{{Key: "$v", Value: 2}, {Key: "diff", Value: bson.D{{Key: "sin", Value: bson.D{{Key: "u", Value: bson.D{{Key: "a", Value: 2}}}}}}}}
		l.add(op)
	}
	lists := r.target.lists("a")
	err := r.fails(t, l, nil)
	if e, ok := errors.AsType[*OpError](err); !ok || e.ID.AsInt64() != 23 {
		t.Fatalf("error %v, want one of 23", err)
	}
	if got := lists(); got[len(got)-1] != 40 || got[0] != 1 {
		t.Errorf("statements for %v documents, want one for 40, and one by one then", got)
	}
	for _, d := range r.target.documents(t, oplog.Namespace("db.a")) {
		if v, ok := d.Lookup("in", "a").AsInt64OK(); ok && v != 1 {
			t.Fatalf("%s: an update of the flush that failed", d)
		}
	}
}
