package workload_test

import (
	"testing"

	"github.com/oplogrep/replicator/bench/workload"
)

func BenchmarkNext(b *testing.B) {
	for _, w := range workload.Presets() {
		b.Run(w.Name, func(b *testing.B) {
			if w.Size > 1<<14 {
				b.SetBytes(int64(w.Size))
			}
			b.ReportAllocs()
			g := newGenerator(b, w)
			for b.Loop() {
				if _, ok, err := g.Next(); err != nil {
					b.Fatal(err)
				} else if !ok {
					b.StopTimer()
					g = newGenerator(b, w)
					b.StartTimer()
				}
			}
		})
	}
}

func BenchmarkLog(b *testing.B) {
	for _, w := range workload.Presets() {
		b.Run(w.Name, func(b *testing.B) {
			b.ReportAllocs()
			var bytes, ops int64
			l := newLog(b, w)
			for b.Loop() {
				raw, n, ok, err := l.Next()
				if err != nil {
					b.Fatal(err)
				}
				if !ok {
					b.StopTimer()
					l = newLog(b, w)
					b.StartTimer()
				}
				bytes += int64(len(raw))
				ops += int64(n)
			}
			b.ReportMetric(float64(bytes)/float64(ops), "B/log-op")
			b.ReportMetric(float64(ops)/b.Elapsed().Seconds(), "ops/s")
		})
	}
}

func newGenerator(tb testing.TB, w workload.Workload) *workload.Generator {
	tb.Helper()
	g, err := workload.New(w)
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

func newLog(tb testing.TB, w workload.Workload) *workload.Log {
	tb.Helper()
	l, err := workload.NewLog(w, first)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}
