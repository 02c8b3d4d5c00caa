package plan_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/testkit/bsongen"
	"github.com/oplogrep/replicator/oplog"
)

// equalSeeds returns two namespaces with one hash.
func equalSeeds(t *testing.T) (a, b oplog.Namespace) {
	seen := map[uint32]oplog.Namespace{}
	for i := range 2_000_000 {
		ns := oplog.Namespace(fmt.Sprint("shop.orders", i))
		h := oplog.HashNamespace(ns)
		if other, ok := seen[h]; ok {
			return other, ns
		}
		seen[h] = ns
	}
	t.Fatal("no two namespaces have one hash")
	return "", ""
}

// TestSpaces: of hundreds of namespaces in turns, two of them with one hash, each gets its own documents,
// in their order, whether their hashes come with the operations or not.
func TestSpaces(t *testing.T) {
	const spaces, each = 300, 3
	names := make([]oplog.Namespace, spaces)
	for i := range names {
		names[i] = oplog.Namespace(fmt.Sprint("db.c", i))
	}
	names[17], names[250] = equalSeeds(t)
	build := func(seeded bool) plan.Plan {
		ops := make([]plan.Op, spaces*each)
		for i := range ops {
			op := &ops[i]
			op.Kind, op.Mode = oplog.KindInsert, plan.ModeExact
			op.NS, op.Target = names[i%spaces], oplog.Namespace([]byte(names[i%spaces])) // not the same string
			op.O = bsongen.FromJSON(t, fmt.Sprintf(`{"_id":%d}`, i/spaces))
			op.ID = value(int32(i / spaces))
			if seeded {
				op.Seed = oplog.HashNamespace(op.Target)
			}
		}
		p, err := plan.NewPlanner(plan.Options{Coalesce: true}).Build(ops)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	want, got := build(false), build(true)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("without and with hashes (-, +):\n%s", diff)
	}
	if len(got.Writes) != spaces {
		t.Fatalf("%d commands for %d namespaces", len(got.Writes), spaces)
	}
	for i, w := range got.Writes {
		if w.NS != names[i] || len(w.Docs) != each {
			t.Errorf("command %d is for %s, with %d documents; want %s", i, w.NS, len(w.Docs), names[i])
		}
		for k, of := range w.Ops {
			if len(of) != 1 || of[0] != i+k*spaces {
				t.Errorf("%s: document %d is of the operations %d", w.NS, k, of)
			}
		}
	}
}

// BenchmarkSpaces plans a flush of inserts with few of them in each of many namespaces.
func BenchmarkSpaces(b *testing.B) {
	const spaces = flushSize * 3 / 8
	ops := benchOps(b, oplog.KindInsert, benchCases[0].o, flushSize, false)
	names := make([]oplog.Namespace, spaces) // one string for each, as the dispatcher has it
	for i := range names {
		names[i] = oplog.Namespace(fmt.Sprint("db.c", 100_000+i))
	}
	for i := range ops {
		op := &ops[i]
		op.Target = names[i*7919%spaces]
		op.NS, op.Seed = op.Target, oplog.HashNamespace(op.Target)
	}
	p := plan.NewPlanner(plan.Options{Coalesce: true})
	for b.Loop() {
		if _, err := p.Build(ops); err != nil {
			b.Fatal(err)
		}
	}
}
