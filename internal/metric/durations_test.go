package metric

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"
)

// TestSlots: every millisecond is in the slot whose bounds it is within, and slots follow
// each other without a gap.
func TestSlots(t *testing.T) {
	t.Parallel()
	for i := 1; i < slots; i++ {
		if a, b := startOf(i-1), startOf(i); b <= a || i > 8 && float64(b-a) > 0.25*float64(a) {
			t.Errorf("slot %d begins at %d, the one before at %d", i, b, a)
		}
		if slotOf(startOf(i)) != i || slotOf(startOf(i)-1) != i-1 {
			t.Errorf("slot %d begins at %d, which is in %d, and %d in %d", i, startOf(i), slotOf(startOf(i)), startOf(i)-1, slotOf(startOf(i)-1))
		}
	}
	if slotOf(math.MaxInt64) != slots-1 {
		t.Errorf("the longest is in slot %d", slotOf(math.MaxInt64))
	}
}

// TestQuantiles: percentiles of a window are near those of a sorted list.
func TestQuantiles(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := NewDurations("x", "x")
		took := rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(math.Exp(rapid.Float64Range(0, 20).Draw(t, "log"))) * time.Millisecond
		})
		for range rapid.IntRange(0, 5).Draw(t, "before") {
			d.Observe(took.Draw(t, "earlier"), rapid.IntRange(1, 1000).Draw(t, "times"))
		}
		before := d.Now()
		var list []time.Duration
		for range rapid.IntRange(0, 30).Draw(t, "n") {
			one, n := took.Draw(t, "took"), rapid.IntRange(1, 3).Draw(t, "times")
			d.Observe(one, n)
			for range n {
				list = append(list, one)
			}
		}
		slices.Sort(list)
		window := d.Now().Sub(before)
		if window.Total() != uint64(len(list)) {
			t.Fatalf("%d events, want %d", window.Total(), len(list))
		}
		for _, q := range []float64{0, 0.5, 0.95, 0.99, 1} {
			got, ok := window.Quantile(q)
			if ok != (len(list) > 0) {
				t.Fatalf("quantile %v of %d: %v", q, len(list), ok)
			}
			if !ok {
				continue
			}
			want := list[max(1, int(math.Ceil(q*float64(len(list)))))-1].Seconds()
			if math.Abs(got-want) > 0.26*want+0.001 {
				t.Fatalf("quantile %v: %v s, want %v of %v", q, got, want, list)
			}
		}
	})
}

// TestHistogram: a scrape shows the counts, with a sum in seconds, and negative durations as
// zero.
func TestHistogram(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	d := Register(reg, NewDurations("eggs_seconds", "Eggs."))
	if Register(reg, NewDurations("eggs_seconds", "Eggs.")) != d {
		t.Error("another attempt counts on its own")
	}
	d.Observe(-time.Hour, 2)
	d.Observe(3*time.Millisecond, 5)
	d.Observe(1500*time.Millisecond, 10)
	d.Observe(48*time.Hour, 1)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	h := families[0].GetMetric()[0].GetHistogram()
	if h.GetSampleCount() != 18 || math.Abs(h.GetSampleSum()-(0.015+15+48*3600)) > 1e-9 || len(h.GetBucket()) != exported {
		t.Errorf("%v", h)
	}
	for _, b := range h.GetBucket() {
		var want uint64
		for limit, n := range map[float64]uint64{0: 2, 0.003: 5, 1.5: 10} {
			if limit <= b.GetUpperBound() {
				want += n
			}
		}
		if b.GetCumulativeCount() != want {
			t.Errorf("up to %v s: %d, want %d", b.GetUpperBound(), b.GetCumulativeCount(), want)
		}
	}
}

// BenchmarkObserve is the cost of a flush, or of the operations of one millisecond in it.
func BenchmarkObserve(b *testing.B) {
	d := NewDurations("x", "x")
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			d.Observe(40*time.Millisecond, 100)
		}
	})
}
