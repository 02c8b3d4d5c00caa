package applier

import (
	"bytes"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

// TestShares: collections with few operations get one lane each, one with many does not;
// once a thin one has many, it is spread again. Nothing changes for an ordered one, and the
// record of a dropped one goes.
func TestShares(t *testing.T) {
	r := newRig(t, 4, mongosim.Options{Members: 1})
	l := newLog(t)
	for i := range 20 {
		r.target.create(t, "db", fmt.Sprint("thin", i))
	}
	r.target.create(t, "db", "many")
	r.target.create(t, "db", "u")
	r.target.unique(t, "db", "u")
	settings := func(c *Config) { c.ShareOps, c.ShareRest = 128, 1 }
	n := 0
	insert := func(coll string) {
		l.add(insertOp("db."+coll, doc(n, n)))
		n++
	}
	for i := range 20 {
		insert(fmt.Sprint("thin", i))
		insert(fmt.Sprint("thin", i))
	}
	for range 100 {
		insert("many")
		insert("u")
	}
	l.end()
	insert("many") // a change is made before a batch
	a := r.apply(t, l.batches(), settings)
	lanes := oneLane(t, a.link)
	if len(lanes) != 21 || slices.Contains(lanes, "db.many") || !slices.Contains(lanes, "db.u") {
		t.Fatalf("collections with one lane: %v, want the thin ones and db.u", lanes)
	}

	at := l.optime()
	l.alone(commandOp("db", bson.D{{Key: "drop", Value: "thin7"}}))
	for range 200 {
		insert("thin3")
	}
	for range 30 {
		insert("thin4")
		insert("u")
	}
	l.end()
	insert("many")
	must.Succeed(t, a.link.Advance(t.Context(), checkpoint.Progress{Applied: at, FetchFrom: at}, a.tracker.positions(), checkpoint.Source{SetName: "rs0", RBID: 1}))
	b := r.apply(t, l.after(at), settings)
	lanes = oneLane(t, b.link)
	if len(lanes) != 19 || slices.Contains(lanes, "db.thin3") || slices.Contains(lanes, "db.thin7") || !slices.Contains(lanes, "db.u") {
		t.Fatalf("collections with one lane: %v, want neither db.thin3 nor db.thin7", lanes)
	}
	total := 0
	for _, coll := range []string{"many", "u", "thin3", "thin4"} {
		total += len(r.target.documents(t, oplog.Namespace("db."+coll)))
	}
	if want := 102 + 130 + 202 + 32; total != want {
		t.Errorf("%d documents, want %d", total, want)
	}
}

// reroutings returns a setting that counts the changes of lanes.
func reroutings(n *int) func(*Config) {
	return func(c *Config) {
		c.ShareOps, c.ShareRest = 128, 1
		c.Observer = func(e event.Event) {
			if e.Message() == rerouted {
				*n++
			}
		}
	}
}

// insertsTo adds inserts of documents that are numbered from n on.
func (l *sourceLog) insertsTo(coll string, times int, n *int) {
	for range times {
		l.add(insertOp("db."+coll, doc(*n, *n)))
		*n++
	}
}

// TestSharesStay: a change is made once, and none at a restart. A collection that was
// spread again is one like others: a unique index gives it one lane.
func TestSharesStay(t *testing.T) {
	r := newRig(t, 4, mongosim.Options{Members: 1})
	l := newLog(t)
	n := 0
	insert := func(coll string, times int) { l.insertsTo(coll, times, &n) }
	insertThin := func(times int) {
		for i := range 20 {
			insert(fmt.Sprint("thin", i), times)
		}
		l.end()
	}
	for i := range 20 {
		r.target.create(t, "db", fmt.Sprint("thin", i))
	}
	r.target.create(t, "db", "many")
	insert("many", 100)
	insertThin(2)
	insertThin(1)
	changes := 0
	a := r.apply(t, l.batches(), reroutings(&changes))
	if lanes := oneLane(t, a.link); len(lanes) != 20 || changes != 1 {
		t.Fatalf("collections with one lane: %v, after %d changes, want 20 after one", lanes, changes)
	}

	at := l.optime()
	must.Succeed(t, a.link.Advance(t.Context(), checkpoint.Progress{Applied: at, FetchFrom: at}, a.tracker.positions(), checkpoint.Source{SetName: "rs0", RBID: 1}))
	for range 6 {
		insertThin(1)
		insert("thin3", 200)
	}
	l.end()
	l.alone(commandOp("db", bson.D{{Key: "createIndexes", Value: "thin3"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "v", Value: 1}}}, {Key: "name", Value: "v_1"}, {Key: "unique", Value: true}},
	}}}))
	insert("thin3", 10)
	changes = 0
	var barriers atomic.Int64
	r.target.intercept(func(cmd mongo.Command) (error, bool) {
		if len(cmd.Docs) > 0 && bytes.Contains(cmd.Docs[0], []byte("barrier")) {
			barriers.Add(1)
		}
		return nil, true
	})
	b := r.apply(t, l.after(at), reroutings(&changes))
	// The two changes, and the barrier of the index. A change without contents would be 38 more.
	if n := barriers.Load(); n > 10 {
		t.Errorf("%d writes of the barrier", n)
	}
	if lanes := oneLane(t, b.link); len(lanes) != 20 || changes != 2 {
		t.Fatalf("collections with one lane: %v, after %d changes, want db.thin3 spread and ordered again", lanes, changes)
	}
	routes := must.Get(b.link.Routes(t.Context()))(t)
	if len(routes.Thin) != 19 || !slices.Equal(routes.OneLane, []oplog.Namespace{"db.thin3"}) {
		t.Errorf("recorded are %+v, want db.thin3 for its order", routes)
	}
}

// TestSharesCountOnce: operations that are gathered for a barrier and put back are counted
// once, when they are handed out.
func TestSharesCountOnce(t *testing.T) {
	r := newRig(t, 4, mongosim.Options{Members: 1})
	l := newLog(t)
	for i := range 30 {
		r.target.create(t, "db", fmt.Sprint("thin", i))
	}
	r.target.create(t, "db", "spans")
	n := 0
	insert := func(coll string) bson.D {
		n++
		return insertOp("db."+coll, doc(n, n))
	}
	for i := range 30 {
		if i%3 == 0 {
			l.add(l.transactionOp(insert("spans"), insert("spans"), insert("spans"), insert("spans"), insert("spans")))
		}
		l.add(insert(fmt.Sprint("thin", i)))
	}
	l.end()
	l.add(insert("thin0")) // a change is made before a batch
	settings := func(ops int) func(*Config) { return func(c *Config) { c.ShareOps, c.ShareRest = ops, 1 } }
	a := r.apply(t, l.batches(), settings(n))
	if lanes := oneLane(t, a.link); len(lanes) != 0 || a.Stats().Ops != int64(n) {
		t.Fatalf("after %d operations, which is fewer than %d, collections with one lane: %v", n-1, n, lanes)
	}

	r = newRig(t, 4, mongosim.Options{Members: 1})
	for i := range 30 {
		r.target.create(t, "db", fmt.Sprint("thin", i))
	}
	r.target.create(t, "db", "spans")
	a = r.apply(t, l.batches(), settings(n-1))
	if lanes := oneLane(t, a.link); len(lanes) != 30 {
		t.Fatalf("after %d operations collections with one lane: %v, want the 30 thin ones", n-1, lanes)
	}
}

// TestSharesAfterCommand: operations before a command count, too, though namespaces are
// looked up again after it.
func TestSharesAfterCommand(t *testing.T) {
	r := newRig(t, 4, mongosim.Options{Members: 1})
	l := newLog(t)
	n := 0
	insert := func(coll string, times int) { l.insertsTo(coll, times, &n) }
	for i := range 20 {
		coll := fmt.Sprint("c", i)
		r.target.create(t, "db", coll)
		insert(coll, 5)
	}
	l.end()
	l.alone(commandOp("db", bson.D{{Key: "create", Value: "made"}}))
	for i := range 20 {
		insert(fmt.Sprint("c", i), 1)
	}
	l.end()
	insert("c0", 1)
	a := r.apply(t, l.batches(), func(c *Config) { c.ShareOps, c.ShareRest = 120, 1 })
	if lanes := oneLane(t, a.link); len(lanes) != 0 {
		t.Fatalf("collections with 6 of 120 operations have one lane: %v", lanes)
	}
}

// What few, thin and many mean: with any number of lanes there is a distance between them.
func TestShareLimits(t *testing.T) {
	for lanes := 2; lanes <= 256; lanes *= 2 {
		few, many := thinLimit(defaultShareOps, lanes), heavyLimit(defaultShareOps, lanes)
		if few < 1 || few > 2*lanes || many < 4*few {
			t.Errorf("%d lanes: thin up to %d operations, many from %d on", lanes, few, many)
		}
	}
	made := func(name string, ops int, one bool) *route {
		ns := oplog.Namespace(name)
		return &route{source: ns, target: ns, inScope: true, ops: ops, oneLane: one, collection: &catalog.Collection{NS: ns}}
	}
	// A few operations of thin collections are not worth a barrier.
	r := &routes{known: map[oplog.Namespace]*route{}, thin: map[oplog.Namespace]bool{}}
	s := &shares{ops: 1000}
	for i := range 50 {
		to := made(fmt.Sprint("db.c", i), 2, false)
		r.known[to.source], s.met = to, append(s.met, to)
	}
	if change := r.byShare(s, 4); change.Len() != 0 {
		t.Errorf("100 of 1000 operations: %d collections change", change.Len())
	}
	s.ops = 800
	if change := r.byShare(s, 4); len(change.Thin) != 50 {
		t.Errorf("100 of 800 operations: %d collections change, want 50", change.Len())
	}
}
