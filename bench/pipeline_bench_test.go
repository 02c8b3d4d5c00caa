package bench

import (
	"testing"
	"time"

	"github.com/oplogrep/replicator/bench/workload"
)

// BenchmarkPipeline takes entries of some 200 bytes from memory through everything
// that comes before a writer: parse, check, buffer, assemble, batch, hash, dispatch.
func BenchmarkPipeline(b *testing.B) {
	c := Config{
		Source: memoryEnd,
		Workload: workload.Workload{
			Name: "small", Seed: 1, Ops: 400_000, Documents: 50_000, Size: 90,
			Mix: workload.Mix{Insert: 1, Update: 2, Delete: 1},
		},
	}
	c.setDefaults()
	s, err := openSource(b.Context(), c)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(s.bytes)
	b.ReportAllocs()
	b.ResetTimer()
	start, runs := time.Now(), int64(0)
	for b.Loop() {
		s.rewind()
		runs++
		if err := s.discard(b.Context()); err != nil { // all have to arrive
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(s.ops*runs)/time.Since(start).Seconds(), "entries/s")
	b.ReportMetric(float64(s.bytes)/float64(s.ops), "bytes/entry")
}
