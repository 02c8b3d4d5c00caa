package applier

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/internal/testkit/simcaller"
	"github.com/oplogrep/replicator/mongosim"
)

// commits counts the transactions that write to db.a, and the operations of each.
func commits(g *simTarget) *[]int {
	var sizes []int
	now := map[string]int{}
	var mu sync.Mutex // guards both
	g.intercept(func(cmd mongo.Command) (error, bool) {
		mu.Lock()
		defer mu.Unlock()
		session := cmd.Body.Lookup("lsid").String()
		switch name := simcaller.Name(cmd); {
		case name == "commitTransaction" && now[session] > 0:
			sizes = append(sizes, now[session])
			now[session] = 0
		case cmd.DB == "db" && cmd.Sequence != "" && cmd.Body.Lookup("autocommit").Type != 0:
			now[session] += len(cmd.Docs)
		}
		return nil, false
	})
	return &sizes
}

func manyInserts(from, to int) (ops, docs []bson.D) {
	for i := from; i < to; i++ {
		ops, docs = append(ops, insertOp("db.a", doc(i, i))), append(docs, doc(i, i))
	}
	return ops, docs
}

// A transaction that spans lanes is one transaction of the target, and so are several in
// a row; relaxed, it is distributed over the lanes.
func TestTransactionSpansLanes(t *testing.T) {
	for _, relaxed := range []bool{false, true} {
		t.Run(fmt.Sprintf("relaxed=%t", relaxed), func(t *testing.T) {
			r := prepared(t, 4)
			l := newLog(t)
			one, want := manyInserts(0, 50)
			two, more := manyInserts(50, 80)
			l.add(l.transactionOp(one...))
			l.add(insertOp("db.a", doc("between", 1)))
			l.add(l.transactionOp(two...))
			l.add(insertOp("db.a", doc("after", 1)))
			sizes := commits(r.target)
			r.apply(t, l.batches(), func(c *Config) { c.Relaxed = relaxed })
			r.target.intercept(nil)
			wantDocs(t, r.target, "db.a", append(append(want, more...), doc("between", 1), doc("after", 1))...)
			if diff := cmp.Diff([]int{81, 1}, *sizes); (diff == "") == relaxed {
				t.Errorf("sizes of transactions: %v", *sizes)
			}
		})
	}
}

// A transaction larger than the window is never in memory as a whole, whether its bytes or
// its operations are too many.
func TestLargeTransaction(t *testing.T) {
	for _, window := range []int64{2000, 20_000} {
		largeTransaction(t, window)
	}
}

func largeTransaction(t *testing.T, window int64) {
	t.Helper()
	r := prepared(t, 4)
	l := newLog(t)
	ops, want := manyInserts(0, 100)
	l.add(l.transactionOp(ops...))
	told := 0
	sizes := commits(r.target)
	r.apply(t, l.batches(), func(c *Config) {
		c.WindowBytes, c.FlushDocs = window, 30
		c.Observer = func(e event.Event) {
			if e.Message() == notAtomic && event.Attr(e, keyOps).Int64() == 100 {
				told++
			}
		}
	})
	r.target.intercept(nil)
	wantDocs(t, r.target, "db.a", want...)
	if diff := cmp.Diff([]int{30, 30, 30, 10}, *sizes); diff != "" || told != 1 {
		t.Errorf("sizes of transactions: %v, told %d times", *sizes, told)
	}
}

func TestTransactionWithCommands(t *testing.T) {
	r := prepared(t, 4)
	l := newLog(t)
	l.add(insertOp("db.a", doc(1, 0)))
	l.alone(l.transactionOp(
		setOp("db.a", 1, 1),
		commandOp("db", bson.D{{Key: "create", Value: "b"}}),
		insertOp("db.b", doc(1, 2)),
		commandOp("out", bson.D{{Key: "create", Value: "b"}}),
		insertOp("db.a", doc(3, 3)),
	))
	a := r.apply(t, l.batches(), nil)
	wantDocs(t, r.target, "db.a", doc(1, 1), doc(3, 3))
	wantDocs(t, r.target, "db.b", doc(1, 2))
	if diff := cmp.Diff([]string{"create db.b 1"}, a.commands.applied); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
	// All of it is in the target, and nothing is applied again.
	a = r.apply(t, l.batches(), nil)
	if s := a.Stats(); s.Ops != 0 || s.Commands != 0 || s.Skipped != 6 {
		t.Errorf("stats %+v, want all 6 skipped", s)
	}
}

func TestDirectTransaction(t *testing.T) {
	r := prepared(t, 4)
	r.target.run(t, "db", bson.D{{Key: "create", Value: "cap"}, {Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}})
	l := newLog(t)
	l.add(l.transactionOp(
		insertOp("db.a", doc(1, 1)), insertOp("db.cap", doc(1, 1)), insertOp("db.cap", doc(2, 1)), insertOp("db.a", doc(2, 1)),
	))
	told := 0
	r.apply(t, l.batches(), func(c *Config) {
		c.Observer = func(e event.Event) {
			if e.Message() == notAtomic {
				told++
			}
		}
	})
	wantDocs(t, r.target, "db.a", doc(1, 1), doc(2, 1))
	wantDocs(t, r.target, "db.cap", doc(1, 1), doc(2, 1))
	if told != 1 {
		t.Errorf("told %d times", told)
	}
}

// A write that is marked as to be processed individually goes after the barrier.
func TestIndividualWrite(t *testing.T) {
	r := newRig(t, 4, mongosim.Options{Members: 1})
	r.target.run(t, "db", bson.D{{Key: "create", Value: "system.js"}})
	l := newLog(t)
	l.alone(insertOp("db.system.js", doc("f", 1)))
	r.apply(t, l.batches(), nil)
	wantDocs(t, r.target, "db.system.js", doc("f", 1))
}

func TestMetricsTwice(t *testing.T) {
	reg := prometheus.NewRegistry()
	newMetrics(reg).flushes.Inc()
	newMetrics(reg).flushes.Inc()
	families, err := reg.Gather()
	must.Succeed(t, err)
	for _, f := range families {
		if f.GetName() == "replicator_applier_flushes_total" && f.GetMetric()[0].GetCounter().GetValue() != 2 {
			t.Errorf("two attempts counted %s, want 2", f)
		}
	}
}

// A transaction of one lane is not split by the limits of a flush.
func TestTransactionOfOneLane(t *testing.T) {
	r := prepared(t, 1)
	l := newLog(t)
	before, want := manyInserts(0, 5)
	one, more := manyInserts(5, 55)
	for _, op := range before {
		l.add(op)
	}
	l.add(l.transactionOp(one...))
	l.add(setOp("db.a", 0, 0))
	sizes := commits(r.target)
	r.apply(t, l.batches(), func(c *Config) { c.FlushDocs = 10 })
	r.target.intercept(nil)
	wantDocs(t, r.target, "db.a", append(want, more...)...)
	if diff := cmp.Diff([]int{5, 50, 1}, *sizes); diff != "" {
		t.Errorf("sizes of transactions: %v", *sizes)
	}
}
