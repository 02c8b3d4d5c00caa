package applier

import (
	"context"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// The memory of operations without their documents, in bytes. There is memory for the window twice.
const (
	// opOverhead is for an operation of an entry, which takes 80 to 160 in a queue and usually 530 in a plan; one that is a delta of
	// an array, of one of many collections, 815. Anything above twice opOverhead comes from the quarter of the memory that is in no share.
	opOverhead = 256
	// ownOverhead is for an operation that is in no entry: of a transaction, or kept back.
	ownOverhead = 512
)

// window limits the bytes in the lanes. One goroutine acquires, any may release.
type window struct {
	limit int64
	used  atomic.Int64 // bytes
	freed chan struct{}
	gauge prometheus.Gauge
}

func newWindow(limit int64, gauge prometheus.Gauge) *window {
	return &window{limit: limit, freed: make(chan struct{}, 1), gauge: gauge}
}

// try takes n bytes if there is room, or if none are taken: something larger than the
// window passes alone.
func (w *window) try(n int64) bool {
	if used := w.used.Load(); used > 0 && used+n > w.limit {
		return false
	}
	w.used.Add(n)
	return true
}

// acquire takes n bytes, after waiting for room.
func (w *window) acquire(ctx context.Context, n int64) error {
	for !w.try(n) {
		select {
		case <-w.freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (w *window) release(n int64) {
	w.gauge.Set(float64(w.used.Add(-n)))
	signal(w.freed)
}
