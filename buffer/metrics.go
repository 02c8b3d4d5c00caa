package buffer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/metric"
)

type metrics struct {
	waits, waited prometheus.Counter
}

// newMetrics registers the metrics of a Queue. If an earlier Queue has registered them,
// its counters continue, and the gauges are those of the new one.
func newMetrics(reg prometheus.Registerer, q *Queue) *metrics {
	const prefix = "replicator_buffer_"
	gauge := func(name, help string, value func(s Stats) float64) {
		metric.Computed(reg, prefix+name, help, func() float64 { return value(q.Stats()) })
	}
	gauge("bytes", "Bytes fetched and not applied.", func(s Stats) float64 { return float64(s.Buffered) })
	gauge("queued_bytes", "Bytes fetched and not sent on.", func(s Stats) float64 { return float64(s.Queued) })
	gauge("replies", "Replies fetched and not sent on.", func(s Stats) float64 { return float64(s.Replies) })
	gauge("limit_bytes", "How many bytes may be fetched and not applied.", func(s Stats) float64 { return float64(s.Limit) })
	gauge("oldest_age_seconds", "How long ago the oldest entry that is not applied was fetched.", func(s Stats) float64 { return age(s.Oldest) })
	return &metrics{
		waits:  metric.Counter(reg, prefix+"waits_total", "How often the source was not read for want of room."),
		waited: metric.Counter(reg, prefix+"wait_seconds_total", "How long the source was not read for want of room."),
	}
}

// age returns how many seconds ago t was, 0 for the zero time.
func age(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return time.Since(t).Seconds()
}
