package bench

import (
	"fmt"
	"testing"
	"time"
)

// cloneWorkers is how many ranges a link copies at a time by default.
const cloneWorkers = 8

// BenchmarkClone copies a collection from one embedded set to another as a link
// does, and beside that, in turns, by bare loops of the driver. The ratio is that
// of our pace to that of as many bare loops as we have workers; to-one is to that of
// a single one.
func BenchmarkClone(b *testing.B) {
	for _, d := range []struct {
		name       string
		docs, size int
	}{{"160B", 100_000, 160}, {"1KB", 50_000, 1 << 10}, {"16KB", 4_000, 16 << 10}} {
		c := newCopying(b, d.docs, d.size)
		for _, workers := range []int{1, cloneWorkers} {
			b.Run(fmt.Sprintf("%s/workers=%d", d.name, workers), func(b *testing.B) { c.benchmark(b, workers) })
		}
	}
}

func (c *copying) benchmark(b *testing.B, workers int) {
	c.TB = b
	var ours, bare, one time.Duration
	rounds := 0
	for b.Loop() {
		ours += c.ours(workers)
		b.StopTimer()
		bare += c.bare(workers)
		if workers > 1 {
			one += c.bare(1)
		}
		rounds++
		b.StartTimer()
	}
	docs := float64(c.docs * rounds)
	b.ReportMetric(docs/ours.Seconds(), "docs/s")
	b.ReportMetric(docs*float64(c.size)/1e6/ours.Seconds(), "MB/s")
	b.ReportMetric(docs/bare.Seconds(), "bare-docs/s")
	b.ReportMetric(bare.Seconds()/ours.Seconds(), "ratio")
	if workers > 1 {
		b.ReportMetric(one.Seconds()/ours.Seconds(), "to-one")
	}
}
