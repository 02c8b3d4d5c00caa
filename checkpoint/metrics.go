package checkpoint

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/metric"
)

// metrics are those of one link.
type metrics struct {
	acquired, rewound, failed, retries prometheus.Counter
	seconds                            prometheus.Histogram
	applied                            prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer, link string) *metrics {
	name := func(noun, help string) prometheus.Opts {
		return prometheus.Opts{
			Namespace: "replicator", Subsystem: "checkpoint", Name: noun, Help: help,
			ConstLabels: prometheus.Labels{"link": link},
		}
	}
	counter := func(noun, help string) prometheus.Counter {
		return metric.Register(reg, prometheus.NewCounter(prometheus.CounterOpts(name(noun, help))))
	}
	gauge := func(noun, help string) prometheus.Gauge {
		return metric.Register(reg, prometheus.NewGauge(prometheus.GaugeOpts(name(noun, help))))
	}
	return &metrics{
		acquired: counter("acquisitions_total", "Times that this process acquired the link's lease, each under a new term."),
		rewound:  counter("rewinds_total", "Times that the target was found without what it had acknowledged."),
		failed:   counter("failures_total", "Checkpoints that could not be written."),
		retries:  counter("retries_total", "Times that something was tried again, as the target refused it for a reason that passes."),
		seconds: metric.Register(reg, prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "replicator", Subsystem: "checkpoint", Name: "write_seconds",
			Help:        "Time to write a checkpoint, until it is committed by a majority.",
			ConstLabels: prometheus.Labels{"link": link},
			Buckets:     prometheus.ExponentialBuckets(0.001, 2, 14),
		})),
		applied: gauge("timestamp_seconds", "Source time up to which the newest checkpoint has everything that is mirrored, in seconds since the epoch; 0 while the target is not consistent."),
	}
}

// advanced counts one Advance; reached is the position to report after it.
func (m *metrics) advanced(took time.Duration, reached Progress, err error) {
	if err != nil {
		m.failed.Inc()
		return
	}
	m.seconds.Observe(took.Seconds())
	m.applied.Set(float64(reached.AppliedWall) / 1000)
}
