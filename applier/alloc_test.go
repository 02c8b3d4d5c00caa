package applier

import (
	"runtime"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/testkit/race"
	"github.com/oplogrep/replicator/oplog/batch"
)

// TestAllocations limits the allocations for an operation, from the batch to the command
// that writes it, without the connection.
func TestAllocations(t *testing.T) {
	race.Skip(t, "the race detector makes allocations of its own")
	for _, tc := range []struct {
		name string
		op   func(i int) bson.D
		most float64 // allocations for each operation
	}{
		{"insert", func(i int) bson.D { return insertOp("db.a", doc(i, i)) }, 0.05},
		{"update", func(i int) bson.D { return setOp("db.a", i, i) }, 0.05},
		{"delete", func(i int) bson.D { return deleteOp("db.a", i) }, 0.05},
	} {
		const n, rounds = 10_000, 5
		l := newLog(t)
		for i := range n {
			l.add(tc.op(i))
			if i%2500 == 2499 {
				l.end()
			}
		}
		batches := l.batches()
		a := fakeApplier(t, &nullTarget{}, 4, nil)
		in, out := make(chan batch.Batch), make(chan checkpoint.Applied)
		end := make(chan error, 1)
		go func() { end <- a.Run(t.Context(), in, out) }()
		var before, after runtime.MemStats
		for round := range rounds + 2 {
			if round == 2 { // reused memory is allocated by then
				runtime.ReadMemStats(&before)
			}
			for k := range batches {
				for i := range batches[k].Items {
					batches[k].Items[i].Entry.OpTime.TS.T += n
				}
				batches[k].Last.TS.T += n
				in <- batches[k]
				for applied := range out {
					if applied.Applied == batches[k].Last {
						break
					}
				}
			}
		}
		runtime.ReadMemStats(&after)
		close(in)
		for range out {
		}
		if err := <-end; err != nil {
			t.Fatal(err)
		}
		each := float64(after.Mallocs-before.Mallocs) / (n * rounds)
		t.Logf("%s: %.3f allocations for each operation", tc.name, each)
		if each > tc.most {
			t.Errorf("%s: %.2f allocations for each operation, at most %v", tc.name, each, tc.most)
		}
	}
}
