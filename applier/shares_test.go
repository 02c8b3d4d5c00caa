package applier

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

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
	link := r.endTransactions(t)
	lanes := oneLane(t, link)
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
	must.Succeed(t, link.Advance(t.Context(), checkpoint.Progress{Applied: at, FetchFrom: at}, a.tracker.positions(), checkpoint.Source{SetName: "rs0", RBID: 1}))
	r.apply(t, l.after(at), settings)
	lanes = oneLane(t, r.endTransactions(t))
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
	for i := range 10 {
		coll := fmt.Sprint("c", i)
		r.target.create(t, "db", coll)
		insert(coll, 10)
	}
	l.end()
	l.alone(commandOp("db", bson.D{{Key: "create", Value: "made"}}))
	for i := range 10 {
		insert(fmt.Sprint("c", i), 2)
	}
	l.end()
	insert("c0", 1)
	// Thin are those with at most 7: more than the operations after the command, which are an
	// eighth of all, and fewer than both together.
	a := r.apply(t, l.batches(), func(c *Config) { c.ShareOps, c.ShareRest = 120, 1 })
	if lanes := oneLane(t, a.link); len(lanes) != 0 {
		t.Fatalf("collections with 12 of 120 operations have one lane: %v", lanes)
	}
}

// TestShareLimits: with any number of lanes, and of operations, there is a distance between
// thin and many. With the usual number it is so large that a collection in the middle does
// not meet a limit by chance: a number varies by its root, so that of the roots, whose
// difference is twice the distance in standard deviations, varies by a half.
func TestShareLimits(t *testing.T) {
	for lanes := 2; lanes <= 256; lanes++ {
		for _, ops := range []int{1, 3, 10, 128, 300, 1200, defaultShareOps, shareOps(lanes), 10 * shareOps(lanes)} {
			few, many := thinLimit(ops, lanes), heavyLimit(ops, lanes)
			if few < 1 || few > max(1, ops/(4*lanes)) || many < 2*few {
				t.Errorf("%d lanes, %d operations: thin up to %d operations, many from %d on", lanes, ops, few, many)
			}
		}
		few, many := thinLimit(shareOps(lanes), lanes), heavyLimit(shareOps(lanes), lanes)
		if sigmas := math.Sqrt(float64(many)) - math.Sqrt(float64(few)); sigmas < 6 {
			t.Errorf("%d lanes: thin up to %d operations, many from %d on, %.1f standard deviations from the middle", lanes, few, many, sigmas)
		}
	}
	if ops := shareOps(16); ops != 16_384 {
		t.Errorf("with 16 lanes shares are compared after %d operations", ops)
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
	if change := r.byShare(s, 4, false); change.Len() != 0 {
		t.Errorf("100 of 1000 operations: %d collections change", change.Len())
	}
	s.ops = 800
	if change := r.byShare(s, 4, false); len(change.Thin) != 50 {
		t.Errorf("100 of 800 operations: %d collections change, want 50", change.Len())
	}
}

// TestSharesSettle: of collections with equal shares, in random order, each gets one lane, or a
// few, at most once, wherever the share is between the limits, and they change in few comparisons.
func TestSharesSettle(t *testing.T) {
	for _, lanes := range []int{2, 16, 32, 256} {
		for _, tt := range []struct {
			name        string
			quarters    float64 // the share of a collection, in quarters of a lane's share
			thin, never bool    // all or none has one lane
		}{
			{name: "a tenth of the limit", quarters: 0.1, thin: true},
			{name: "below the limit", quarters: 0.6, thin: true},
			{name: "at the limit", quarters: 1},
			{name: "in the middle", quarters: 1.5, never: true},
			{name: "at the upper limit", quarters: 2, never: true},
			{name: "a lane's share", quarters: 4, never: true},
			{name: "two lanes' share", quarters: 8, never: true},
		} {
			rnd := rand.New(rand.NewPCG(uint64(lanes), uint64(100*tt.quarters))) //nolint:gosec // a test's choice
			n := max(2, int(float64(4*lanes)/tt.quarters))
			r, all := spread(n)
			s := &shares{}
			times := 0
			few := map[checkpoint.FewLanes]int{} // without First
			for at := range max(10, 640/lanes) {
				for range shareOps(lanes) {
					s.count(all[rnd.IntN(n)])
				}
				change := r.compared(s, lanes, false, all)
				if change.Len() > 0 {
					times++
				}
				for _, f := range change.Few {
					if f.First, f.Lanes = 0, min(f.Lanes, 2); few[f] == 1 {
						t.Errorf("%d lanes, %s: comparison %d gives %s other lanes again", lanes, tt.name, at, f.NS)
					}
					few[f]++
				}
				if len(change.ByID) > 0 {
					t.Errorf("%d lanes, %s: comparison %d spreads %d again", lanes, tt.name, at, len(change.ByID))
				}
			}
			thin := 0
			for _, to := range all {
				if to.oneLane || to.few.n == 1 {
					thin++
				}
			}
			if times > 5 || tt.never && thin > 0 || tt.thin && (thin != n || times > 1) {
				t.Errorf("%d lanes, %s: %d of %d have one lane, %d a few, after changes in %d comparisons", lanes, tt.name, thin, n, len(r.few), times)
			}
		}
	}
}

// spread returns n collections with all lanes.
func spread(n int) (*routes, []*route) {
	r := &routes{
		known: map[oplog.Namespace]*route{}, oneLane: map[oplog.Namespace]bool{}, thin: map[oplog.Namespace]bool{},
		few: map[oplog.Namespace]fewLanes{},
	}
	all := make([]*route, n)
	for i := range all {
		ns := oplog.Namespace(fmt.Sprint("db.c", i))
		all[i] = &route{source: ns, target: ns, inScope: true, collection: &catalog.Collection{NS: ns}, seed: oplog.HashNamespace(ns)}
	}
	return r, all
}

// compared carries out a comparison.
func (r *routes) compared(s *shares, lanes int, resting bool, all []*route) checkpoint.Rerouting {
	change := r.byShare(s, lanes, resting)
	r.changed(change)
	for _, to := range all {
		to.oneLane, to.thin, to.few = r.oneLane[to.target], r.thin[to.target], r.few[to.target]
	}
	s.next()
	return change
}

// commandsOf returns how many commands a batch of 16,000 inserts takes that are equally divided among collections, once
// their shares have been compared.
func commandsOf(t *testing.T, colls int) (cmds int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		target := &nullTarget{}
		s := begin(t, fakeApplier(t, target, 16, nil))
		l := newLog(t)
		n := 0
		add := func(batches, ops int) {
			for range batches {
				for range ops {
					l.insertsTo(fmt.Sprint("c", n%colls), 1, &n)
				}
				l.end()
			}
		}
		add(5, 4_000)
		send(s, l.batches())
		synctest.Wait()
		before := len(target.docs)
		at := l.optime()
		add(1, 16_000)
		send(s, l.after(at))
		synctest.Wait()
		cmds = len(target.docs) - before
		close(s.in)
		for range s.out {
		}
		must.Succeed(t, <-s.end)
	})
	return cmds
}

// TestSharesOfMedium: 100 collections with equal shares in 16 lanes, with ten operations each in
// a lane's flush, have a command each in a batch, not 16. A lane's flush has 2,000 documents, so
// that a lane with many collections has several.
func TestSharesOfMedium(t *testing.T) {
	if cmds := commandsOf(t, 100); cmds > 100*3/2 {
		t.Errorf("16,000 inserts took %d commands", cmds)
	}
}
