package plan_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog"
)

// laneOps are operations on documents that one of 16 writers gets.
func laneOps(tb testing.TB, hashed bool) []plan.Op {
	const ns = oplog.Namespace("shop.orders")
	ops := make([]plan.Op, flushSize)
	for i, n := 0, uint32(0); i < len(ops); n++ {
		id := value(bson.ObjectID{1, 2, 3, 8: byte(n >> 24), 9: byte(n >> 16), 10: byte(n >> 8), 11: byte(n)})
		h := oplog.HashID(oplog.HashNamespace(ns), id)
		if h%16 != 5 {
			continue
		}
		op := &ops[i]
		op.Kind, op.NS, op.Target, op.Mode, op.ID = oplog.KindUpdate, ns, ns, plan.ModeExact, id
		op.O = bsongen.FromJSON(tb, fmt.Sprintf(`{"$v":2,"diff":{"u":{"count":%d}}}`, i))
		if hashed {
			op.Hash = h
		}
		i++
	}
	// Some documents twice: they must be found again.
	for i := range 50 {
		ops[len(ops)-1-i] = ops[i]
	}
	return ops
}

// TestHash: a hash that comes with the operations changes nothing in the plan.
func TestHash(t *testing.T) {
	build := func(hashed bool) plan.Plan {
		p, err := plan.NewPlanner(plan.Options{Coalesce: true}).Build(laneOps(t, hashed))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	want, got := build(false), build(true)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("without and with hashes (-, +):\n%s", diff)
	}
	statements := 0
	for _, w := range got.Writes {
		statements += len(w.Docs)
	}
	if statements != flushSize-50 {
		t.Errorf("%d statements for %d documents", statements, flushSize-50)
	}
}

// BenchmarkLane plans what one of 16 writers gets.
func BenchmarkLane(b *testing.B) {
	for _, hashed := range []bool{false, true} {
		b.Run(fmt.Sprintf("hashed=%t", hashed), func(b *testing.B) {
			ops := laneOps(b, hashed)
			p := plan.NewPlanner(plan.Options{Coalesce: true})
			for b.Loop() {
				if _, err := p.Build(ops); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/flushSize, "ns/entry")
		})
	}
}
