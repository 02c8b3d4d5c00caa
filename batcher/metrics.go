package batcher

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/oplog/txn"
)

type metrics struct {
	// outcomes counts entries since the last flush: updating shared counters for each
	// entry would cost more than the batching itself.
	outcomes [txn.Past + 1]int

	entries                          [txn.Past + 1]prometheus.Counter
	full, partial, individual, empty prometheus.Counter
	operations                       prometheus.Counter
	perBatch                         prometheus.Histogram
	keptBack                         prometheus.Counter
	chainBytes, oldestAge            prometheus.Gauge
}

// newMetrics registers the metrics, or returns those that an earlier Batcher
// registered.
func newMetrics(reg prometheus.Registerer) *metrics {
	entries := metric.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "replicator_batcher_entries_total",
		Help: "Oplog entries, by what came of them: pass, partial, committed, aborted, past.",
	}, []string{"outcome"}))
	batches := metric.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "replicator_batcher_batches_total",
		Help: "Batches, by why they ended: full, partial (nothing more was there), individual, empty (nothing to apply).",
	}, []string{"kind"}))
	m := &metrics{
		full: batches.WithLabelValues("full"), partial: batches.WithLabelValues("partial"),
		individual: batches.WithLabelValues("individual"), empty: batches.WithLabelValues("empty"),
		operations: metric.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "replicator_batcher_operations_total", Help: "Operations in batches.",
		})),
		perBatch: metric.Register(reg, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "replicator_batcher_batch_operations", Help: "Operations of a batch.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 9),
		})),
		keptBack: metric.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "replicator_batcher_kept_back_total", Help: "Entries that had to wait for the delay.",
		})),
		chainBytes: metric.Register(reg, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "replicator_batcher_transactions_bytes", Help: "Memory that parts of transactions take, in bytes.",
		})),
		oldestAge: metric.Register(reg, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "replicator_batcher_oldest_transaction_age_seconds",
			Help: "How much earlier than the newest entry the oldest open transaction began.",
		})),
	}
	for o := txn.Pass; o <= txn.Past; o++ {
		m.entries[o] = entries.WithLabelValues(o.String())
	}
	return m
}

// flush adds the entries counted since the last flush to the metrics.
func (m *metrics) flush() {
	for o, n := range m.outcomes {
		if n > 0 {
			m.entries[o].Add(float64(n))
			m.outcomes[o] = 0
		}
	}
}

// sent counts a batch.
func (m *metrics) sent(d *draft, chainBytes int64, isFull bool) {
	switch {
	case d.Individually:
		m.individual.Inc()
	case len(d.Items) == 0:
		m.empty.Inc()
	case isFull:
		m.full.Inc()
	default:
		m.partial.Inc()
	}
	m.operations.Add(float64(d.Weight))
	m.perBatch.Observe(float64(d.Weight))
	m.chainBytes.Set(float64(chainBytes))
	m.oldestAge.Set(float64(d.Last.TS.T) - float64(d.FetchFrom.TS.T))
}

// ended clears what describes a Run that goes on: the next one may be that of another process.
func (m *metrics) ended() {
	m.chainBytes.Set(0)
	m.oldestAge.Set(0)
}
