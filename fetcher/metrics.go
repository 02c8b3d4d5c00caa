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
	counter := func(name, help string) prometheus.Counter {
		return metric.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{Name: "replicator_fetcher_" + name, Help: help}))
	}
	gauge := func(name, help string) prometheus.Gauge {
		return metric.Register(reg, prometheus.NewGauge(prometheus.GaugeOpts{Name: "replicator_fetcher_" + name, Help: help}))
	}
	replies := metric.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "replicator_fetcher_replies_total", Help: "Replies of cursors on the source's oplog that passed all checks.",
	}, []string{"kind"}))
	return &metrics{
		entries:   counter("entries_total", "Oplog entries passed on."),
		bytes:     counter("bytes_total", "Bytes of oplog entries passed on."),
		restarts:  counter("restarts_total", "Cursors on the source's oplog that were opened again."),
		full:      replies.WithLabelValues("entries"),
		empty:     replies.WithLabelValues("empty"),
		last:      gauge("last_entry_time_seconds", "When the last entry passed on was written, by its primary's clock."),
		committed: gauge("committed_time_seconds", "When the source's newest majority-committed entry was written."),
	}
}
