package meter

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/oplogrep/replicator/bench/result"
)

const (
	// longest is the largest latency that is distinguished from larger ones.
	longest = time.Hour
	// digits is the number of significant digits of a latency: a tenth of a
	// percent.
	digits = 3
)

// Histogram collects latencies, by many goroutines. Its memory does not depend on
// how many there are; it is exact to 1 %. The zero value is empty.
type Histogram struct {
	// mu guards the rest. counts is nil before the first one.
	mu     sync.Mutex
	counts *hdrhistogram.Histogram
	sum    float64 // seconds
	most   time.Duration
}

// Record adds a latency. A negative one, the result of clock skew, counts as
// zero.
func (h *Histogram) Record(d time.Duration) {
	d = max(d, 0)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.counts == nil {
		h.counts = hdrhistogram.New(1, int64(longest), digits)
	}
	_ = h.counts.RecordValue(int64(min(d, longest))) // it is in range
	h.sum += d.Seconds()
	h.most = max(h.most, d)
}

// Latency returns a summary.
func (h *Histogram) Latency() result.Latency {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.counts == nil {
		return result.Latency{}
	}
	at := func(percentile float64) float64 {
		d := time.Duration(h.counts.ValueAtPercentile(percentile))
		return min(d, h.most).Seconds()
	}
	n := h.counts.TotalCount()
	return result.Latency{
		Count: n, P50: at(50), P90: at(90), P99: at(99), P999: at(99.9),
		Max: h.most.Seconds(), Mean: h.sum / float64(n),
	}
}
