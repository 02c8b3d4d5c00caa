package fetcher

import (
	"testing"
	"time"
)

func TestBatchSize(t *testing.T) {
	const most = maxEntries
	var b batchSize
	step := func(what string, d time.Duration, n, bytes int, want int32) {
		t.Helper()
		b.took(d, n, bytes)
		if got := b.size(); got != want {
			t.Errorf("%s: got %d, want %d", what, got, want)
		}
	}
	step("a quick reply", 100*time.Millisecond, 20_000, 16<<20, most)
	step("one that waited for entries", 5*time.Second, 3, 900, most)
	step("one that took 160 s", 160*time.Second, 16_000, 16<<20, 100)
	step("one of the size that was asked for, in time", 1100*time.Millisecond, 100, 100<<10, 100)
	step("a quick one", 400*time.Millisecond, 100, 100<<10, 200)
	step("a quick one with less than was asked for", 400*time.Millisecond, 7, 7<<10, 200)
	step("the line is slower", 4*time.Second, 200, 1<<20, 50)
	step("one entry that takes long", 100*time.Second, 1, 16<<20, 1)
	for range 30 {
		b.took(10*time.Millisecond, int(b.size()), 1000)
	}
	if got := b.size(); got != most {
		t.Errorf("the line is quick again: %d", got)
	}
}
