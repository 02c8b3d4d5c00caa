package bench

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkClone copies a collection from one embedded set to another as a link
// does, and, alternately, by bare loops of the driver. The ratio is that
// of our pace to that of as many bare loops as we have workers; to-one is to that of
// a single one.
func BenchmarkClone(b *testing.B) {
	for _, d := range []struct {
		name       string
		docs, size int
	}{{"160B", 100_000, 160}, {"1KB", 50_000, 1 << 10}, {"16KB", 4_000, 16 << 10}} {
		p := startCopying(b, d.docs, d.size)
		for _, workers := range []int{1, cloneWorkers} {
			b.Run(fmt.Sprintf("%s/workers=%d", d.name, workers), func(b *testing.B) { p.benchmark(b, workers) })
		}
	}
}

func (p *copying) benchmark(b *testing.B, workers int) {
	var ours, bare, one time.Duration
	rounds := 0
	for b.Loop() {
		usage, err := p.ours(b.Context(), workers, false)
		if err != nil {
			b.Fatal(err)
		}
		ours += usage.Elapsed
		b.StopTimer()
		if usage, err = p.bare(b.Context(), workers); err != nil {
			b.Fatal(err)
		}
		bare += usage.Elapsed
		if workers > 1 {
			if usage, err = p.bare(b.Context(), 1); err != nil {
				b.Fatal(err)
			}
			one += usage.Elapsed
		}
		rounds++
		b.StartTimer()
	}
	docs := float64(sum(p.docs)) * float64(rounds)
	b.ReportMetric(docs/ours.Seconds(), "docs/s")
	b.ReportMetric(float64(sum(p.bytes))*float64(rounds)/1e6/ours.Seconds(), "MB/s")
	b.ReportMetric(docs/bare.Seconds(), "bare-docs/s")
	b.ReportMetric(bare.Seconds()/ours.Seconds(), "ratio")
	if workers > 1 {
		b.ReportMetric(one.Seconds()/ours.Seconds(), "to-one")
	}
}
