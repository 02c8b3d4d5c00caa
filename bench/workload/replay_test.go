package workload_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/testkit/memstore"
	"github.com/oplogrep/replicator/oplog"
)

var first = oplog.NewOpTime(1_700_000_000, 5, 3)

// agree compares the forms of a workload's operations: what the log
// makes of the documents is what a server makes of them for a client, and the server
// would have written that log.
func agree(t tb, w workload.Workload) {
	t.Helper()
	g, all := ops(t, w)
	if len(all) != w.Ops {
		t.Fatalf("%d operations, want %d", len(all), w.Ops)
	}
	before := collections(t, g)
	c := newClient(t, before)
	for i := range all {
		c.do(i, &all[i])
	}
	store := load(t, state(before))
	logged := entries(t, w, first)
	n := 0
	for _, e := range logged {
		n += e.ops
	}
	if n != w.Ops {
		t.Fatalf("the entries have %d operations, want %d", n, w.Ops)
	}
	if tolerated := replay(t, store, logged); tolerated != (memstore.Counters{}) {
		t.Fatalf("the log does not fit the documents: %v", tolerated)
	}
	want := load(t, c.state(before)).Snapshot()
	for _, difference := range memstore.Diff(want, store.Snapshot()) {
		t.Error(difference)
	}
}

func TestPresetsReplay(t *testing.T) {
	t.Parallel()
	for _, w := range workload.Presets() {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			agree(t, reduced(w))
		})
	}
}

// Whatever a workload is made of, its forms are the same work.
func TestAnyReplays(t *testing.T) {
	t.Parallel()
	weight := rapid.SampledFrom([]float64{0, 0, 1, 3})
	rapid.Check(t, func(r *rapid.T) {
		w := workload.Workload{
			Name: "any", Seed: rapid.Uint64().Draw(r, "seed"),
			Ops: rapid.IntRange(1, 250).Draw(r, "ops"), Documents: rapid.IntRange(0, 250).Draw(r, "documents"),
			Mix: workload.Mix{
				Insert: weight.Draw(r, "insert"), Update: weight.Draw(r, "update"),
				Delete: weight.Draw(r, "delete"), Replace: weight.Draw(r, "replace"),
			},
			Deltas: workload.Deltas{
				Set: weight.Draw(r, "set"), Many: weight.Draw(r, "many"), Nested: weight.Draw(r, "nested"),
				Array: weight.Draw(r, "array"), Unset: weight.Draw(r, "unset"), Dotted: weight.Draw(r, "dotted"), Text: weight.Draw(r, "text"),
			},
			Size: rapid.SampledFrom([]int{100, 130, 250, 2_000}).Draw(r, "size"), Spread: rapid.SampledFrom([]float64{0, 0.7}).Draw(r, "spread"),
			Namespaces: rapid.IntRange(0, 9).Draw(r, "namespaces"),
			Indexes:    rapid.IntRange(0, 4).Draw(r, "indexes"),
			Repeat:     rapid.IntRange(0, 5).Draw(r, "repeat"),
		}
		switch rapid.IntRange(0, 3).Draw(r, "choice") {
		case 1:
			w.Distinct = true
		case 2:
			w.Hot, w.HotShare = rapid.IntRange(1, 20).Draw(r, "hot"), 0.5
		case 3:
			w.Phases = true
		}
		if rapid.Bool().Draw(r, "txn") {
			w.TxnShare, w.TxnOps = rapid.SampledFrom([]float64{0.1, 0.9, 1}).Draw(r, "txnShare"), rapid.IntRange(0, 9).Draw(r, "txnOps")
		}
		if w.Validate() != nil {
			r.Skip()
		}
		agree(r, w)
	})
}
