package fetcher

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/metric"
)

type metrics struct {
	entries, bytes, restarts prometheus.Counter
	full, empty              prometheus.Counter
	last, committed          prometheus.Gauge
}

// newMetrics registers the metrics of a Reader, or returns those that an earlier one has
// registered.
func newMetrics(reg prometheus.Registerer) *metrics {
	const prefix = "replicator_fetcher_"
	replies := metric.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "replies_total", Help: "Replies of cursors on the source's oplog that passed all checks.",
	}, []string{"kind"}))
	return &metrics{
		entries:   metric.Counter(reg, prefix+"entries_total", "Oplog entries passed on."),
		bytes:     metric.Counter(reg, prefix+"bytes_total", "Bytes of oplog entries passed on."),
		restarts:  metric.Counter(reg, prefix+"restarts_total", "Cursors on the source's oplog that were opened again."),
		full:      replies.WithLabelValues("entries"),
		empty:     replies.WithLabelValues("empty"),
		last:      metric.Gauge(reg, prefix+"last_entry_time_seconds", "When the last entry passed on was written, by its primary's clock."),
		committed: metric.Gauge(reg, prefix+"committed_time_seconds", "When the source's newest majority-committed entry was written."),
	}
}
