package applier

import (
	"context"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog"
)

func (g *simTarget) create(t fataler, db, coll string) {
	t.Helper()
	g.run(t, db, bson.D{{Key: "create", Value: coll}})
}

// unique builds a unique index on the field v, as an operator could.
func (g *simTarget) unique(t fataler, db, coll string) {
	t.Helper()
	g.run(t, db, bson.D{{Key: "createIndexes", Value: coll}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "v", Value: 1}}}, {Key: "name", Value: "v_1"}, {Key: "unique", Value: true}},
	}}})
}

func (g *simTarget) notUnique(t fataler, db, coll string) {
	t.Helper()
	g.run(t, db, bson.D{{Key: "dropIndexes", Value: coll}, {Key: "index", Value: "v_1"}})
}

// endTransactions acquires the lease, so that transactions that an attempt left open are
// aborted.
func (r *rig) endTransactions(t fataler) *checkpoint.Link {
	t.Helper()
	link := must.Get(r.store.Acquire(context.Background(), r.term))(t)
	r.term = link.Term()
	return link
}

// isApart fails the test unless the lanes are apart.
func isApart(t fataler, link *checkpoint.Link) {
	t.Helper()
	st := link.State()
	if _, _, apart := st.Apart(); !apart {
		t.Fatalf("the lanes are not apart: %v", st.Lanes)
	}
}

// only returns the log with no-ops in place of the entries that are not kept.
func (l *sourceLog) only(keep func(entry int) bool) *sourceLog {
	part := newLog(l.t)
	for i, e := range l.entries {
		if keep(i) {
			part.entries = append(part.entries, e)
			continue
		}
		part.add(bson.D{{Key: "op", Value: "n"}, {Key: "ns", Value: ""}, {Key: "o", Value: bson.D{}}})
		part.entries[i].last = e.last
	}
	return part
}

// laneOf returns the lane of a document, or of a collection where id is nil.
func laneOf(t testing.TB, ns oplog.Namespace, id any, writers uint32) int {
	t.Helper()
	h := oplog.HashNamespace(ns)
	if id != nil {
		h = oplog.HashID(h, bsongen.Of(t, id))
	}
	return int(h % writers)
}

// ids returns the first n numbers for documents of a namespace whose lanes fit.
func ids(t testing.TB, ns oplog.Namespace, writers uint32, n int, fits func(lane int) bool) []int {
	t.Helper()
	var list []int
	for id := 0; len(list) < n; id++ {
		if fits(laneOf(t, ns, id, writers)) {
			list = append(list, id)
		}
	}
	return list
}

// oneLane returns the recorded collections with one lane.
func oneLane(t testing.TB, link *checkpoint.Link) []oplog.Namespace {
	t.Helper()
	r := must.Get(link.Routes(t.Context()))(t)
	all := slices.Concat(r.OneLane, r.Thin)
	for _, few := range r.Few {
		if few.Lanes == 1 {
			all = append(all, few.NS)
		}
	}
	return all
}

// TestUniqueIndexDropped: the hint for a unique index that refuses a document is to drop
// it. Operations that were routed to one lane still are, until that lane has reached the
// others.
func TestUniqueIndexDropped(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4, mongosim.Options{Members: 1})
	tg := r.target
	tg.create(t, "db", "u")
	tg.create(t, "db", "c")
	tg.unique(t, "db", "u")
	lane := laneOf(t, "db.u", nil, 4)
	l := newLog(t)
	for i, id := range ids(t, "db.c", 4, 50, func(of int) bool { return of != lane }) {
		l.add(insertOp("db.u", doc(i, i)))
		l.add(insertOp("db.c", doc(id, i)))
	}
	l.end()
	a := r.apply(t, l.only(func(i int) bool { return i == 0 || i%2 == 1 }).batches(), nil)
	if got := oneLane(t, a.link); !slices.Equal(got, []oplog.Namespace{"db.u"}) {
		t.Fatalf("%v are recorded to have one lane, want db.u", got)
	}
	isApart(t, r.endTransactions(t))
	tg.notUnique(t, "db", "u")

	l.add(insertOp("db.u", doc(1000, 1000)))
	l.end()
	b := r.apply(t, l.batches(), nil)
	if n := len(tg.documents(t, "db.c")); n != 50 {
		t.Errorf("db.c has %d documents, want 50", n)
	}
	if n := len(tg.documents(t, "db.u")); n != 51 {
		t.Errorf("db.u has %d documents, want 51; %d operations were skipped", n, b.Stats().Skipped)
	}
	// Later operations are routed by _id again.
	if got := oneLane(t, b.link); len(got) != 0 {
		t.Errorf("%v are recorded to have one lane still", got)
	}
	if at := must.Get(r.store.Acquire(t.Context(), r.term))(t).State().Barrier; at != (checkpoint.Position{OpTime: optimeOf(99), Op: checkpoint.AllOps}) {
		t.Errorf("the routing was changed after a barrier at %s", at)
	}
}

// TestUniqueIndexBuilt: the same for a collection that had several lanes before a unique
// index was built by hand.
func TestUniqueIndexBuilt(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4, mongosim.Options{Members: 1})
	tg := r.target
	tg.create(t, "db", "u")
	lane := laneOf(t, "db.u", nil, 4)
	l := newLog(t)
	for i := range 100 {
		l.add(insertOp("db.u", doc(i, i)))
	}
	l.end()
	r.apply(t, l.only(func(i int) bool { return laneOf(t, "db.u", i, 4) == lane }).batches(), nil)
	isApart(t, r.endTransactions(t))
	tg.unique(t, "db", "u")

	l.add(insertOp("db.u", doc(100, 100)))
	l.end()
	b := r.apply(t, l.batches(), nil)
	if n := len(tg.documents(t, "db.u")); n != 101 {
		t.Errorf("db.u has %d documents, want 101; %d operations were skipped", n, b.Stats().Skipped)
	}
	if got := oneLane(t, b.link); !slices.Equal(got, []oplog.Namespace{"db.u"}) {
		t.Errorf("%v are recorded to have one lane, want db.u", got)
	}
}

// TestInTurn: while the record is frozen, operations on a collection with a new unique
// index are still applied in the log's order.
func TestInTurn(t *testing.T) {
	t.Parallel()
	const writers = 8
	r := newRig(t, writers, mongosim.Options{Members: 1})
	tg := r.target
	tg.create(t, "db", "u")
	tg.create(t, "db", "c")
	lane := laneOf(t, "db.c", 1, writers)
	u := ids(t, "db.u", writers, 40, func(of int) bool { return of != lane })
	l := newLog(t)
	for i, id := range u {
		l.add(insertOp("db.u", doc(id, i)))
	}
	l.end()
	// Each value moves from one document to the next.
	for round := range 3 {
		l.add(setOp("db.u", u[0], -1-round))
		for i := range u[1:] {
			l.add(setOp("db.u", u[i+1], i))
		}
		for i := range u {
			l.add(setOp("db.u", u[len(u)-1-i], len(u)-1-i))
		}
	}
	last := len(l.entries)
	l.add(insertOp("db.c", doc(1, 1)))
	l.end()
	r.apply(t, l.only(func(i int) bool { return i < len(u) || i == last }).batches(), nil)
	isApart(t, r.endTransactions(t))
	tg.unique(t, "db", "u")
	r.apply(t, l.batches(), func(c *Config) { c.FlushDocs, c.CoalesceWindow = 1, 1 })
	for i, d := range tg.documents(t, "db.u") {
		id, _ := d.Lookup("_id").AsInt64OK()
		if v, _ := d.Lookup("v").AsInt64OK(); u[v] != int(id) {
			t.Fatalf("document %d: %s", i, d)
		}
	}
}

// TestRoutingIsStable: after a crash, and in another release, the lane of an operation
// shows whether it is in the target. A change of this table must raise Routing.
func TestRoutingIsStable(t *testing.T) {
	t.Parallel()
	if Routing != 1 || checkpoint.RoutingFew != 2 {
		t.Fatal("the table is of versions 1 and 2 of the routing")
	}
	coll := &catalog.Collection{Type: catalog.TypeCollection}
	for _, tc := range []struct {
		ns      oplog.Namespace
		id      any
		oneLane bool
		writers int
		want    int
		few     fewLanes
	}{
		{"a.b", int32(1), false, 16, 13, fewLanes{}},
		{"a.b", 1.0, false, 16, 13, fewLanes{}},
		{"a.b", int64(1), false, 7, 1, fewLanes{}},
		{"a.b", "x", false, 16, 4, fewLanes{}},
		{"a.b", bson.ObjectID{1, 2, 3}, false, 16, 4, fewLanes{}},
		{"a.b", bson.D{{Key: "k", Value: int32(5)}}, false, 16, 0, fewLanes{}},
		{"a.b", int32(1), true, 16, 6, fewLanes{}},
		{"a.b", "y", true, 16, 6, fewLanes{}},
		{"shop.orders", int32(1), false, 256, 118, fewLanes{}},
		{"shop.orders", int32(1), true, 256, 97, fewLanes{}},
		{"a.b", int32(1), false, 16, 0, fewLanes{2, 15}},
		{"a.b", int32(1), false, 16, 8, fewLanes{4, 7}},
		{"a.b", "x", false, 16, 4, fewLanes{8, 0}},
		{"a.b", int64(1), false, 7, 0, fewLanes{2, 6}},
		{"shop.orders", int32(1), false, 256, 62, fewLanes{128, 200}},
	} {
		a := fakeApplier(t, &nullTarget{}, tc.writers, nil)
		d := newDispatcher(a)
		d.routes.oneLane = map[oplog.Namespace]bool{}
		d.routes.known[tc.ns] = &route{
			source: tc.ns, inScope: true, target: tc.ns, collection: coll, isCollection: true, seed: oplog.HashNamespace(tc.ns), oneLane: tc.oneLane, few: tc.few,
		}
		raw := must.Get(bson.Marshal(append(bson.D{
			{Key: "ts", Value: optimeOf(1).TS}, {Key: "t", Value: int64(1)}, {Key: "v", Value: int64(2)}, {Key: "wall", Value: bson.DateTime(1)},
		}, insertOp(string(tc.ns), bson.D{{Key: "_id", Value: tc.id}})...)))(t)
		e := must.Get(oplog.ParseEntry(raw))(t)
		var o routed
		must.Succeed(t, d.route(t.Context(), &e.Op, checkpoint.Position{OpTime: e.OpTime}, false, &o))
		if o.lane != tc.want {
			t.Errorf("%s, _id %v, one lane %v: lane %d of %d, want %d", tc.ns, tc.id, tc.oneLane, o.lane, tc.writers, tc.want)
		}
		if want := oplog.HashID(oplog.HashNamespace(tc.ns), e.ID); o.op.hash != want {
			t.Errorf("%s, _id %v, one lane %v: the plan is given the hash %#x, want %#x", tc.ns, tc.id, tc.oneLane, o.op.hash, want)
		}
	}
}
