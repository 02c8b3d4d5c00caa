package applier

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog/batch"
)

// BenchmarkApply is dispatch, hash and plan into a target that accepts everything
// at once.
func BenchmarkApply(b *testing.B) {
	for _, c := range []struct {
		name string
		op   func(i int) bson.D
	}{
		{"insert", func(i int) bson.D { return insertOp("db.a", doc(i, "some text that is not too short")) }},
		{"update", func(i int) bson.D { return setOp("db.a", i, "some text that is not too short") }},
		{"hot", func(i int) bson.D { return setOp("db.a", i%100, i) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			const n = 5000
			l := newLog(b)
			for i := range n {
				l.add(c.op(i))
			}
			one := l.batches()[0]
			a := fakeApplier(b, &nullTarget{}, 16, nil)
			in, out := make(chan batch.Batch), make(chan checkpoint.Applied)
			end := make(chan error, 1)
			go func() { end <- a.Run(b.Context(), in, out) }()
			// apply applies the next part of the log, which is the same except for its optimes.
			apply := func() {
				for i := range one.Items {
					one.Items[i].Entry.OpTime.TS.T += n
				}
				one.Last.TS.T += n
				in <- one
				for applied := range out {
					if applied.Applied == one.Last {
						break
					}
				}
			}
			// Memory that is reused is allocated before: otherwise a slower run, with fewer
			// iterations, would show more allocations for each.
			for range 5 {
				apply()
			}
			b.ReportAllocs()
			ops := 0
			for b.Loop() {
				apply()
				ops += n
			}
			close(in)
			for range out {
			}
			if err := <-end; err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(ops)/b.Elapsed().Seconds(), "ops/s")
		})
	}
}
