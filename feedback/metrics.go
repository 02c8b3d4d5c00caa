package feedback

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/metric"
)

type metrics struct {
	reports, failures prometheus.Counter
	seconds           prometheus.Histogram
	applied, durable  prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	const prefix = "replicator_feedback_"
	return &metrics{
		reports:  metric.Counter(reg, prefix+"reports_total", "Reports that the source took."),
		failures: metric.Counter(reg, prefix+"failures_total", "Reports that the source did not take, or did not answer."),
		seconds: metric.Register(reg, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + "report_seconds", Help: "Time until the source answered a report.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		})),
		applied: metric.Gauge(reg, prefix+"applied_timestamp_seconds", "Wall time of the last entry reported as applied, in seconds since the epoch."),
		durable: metric.Gauge(reg, prefix+"durable_timestamp_seconds", "Wall time of the last entry reported as durable, in seconds since the epoch."),
	}
}

// reported counts one report.
func (m *metrics) reported(j *job, took time.Duration, err error) {
	if err != nil {
		m.failures.Inc()
		return
	}
	m.reports.Inc()
	m.seconds.Observe(took.Seconds())
	m.applied.Set(float64(j.report.applied.wall) / 1000)
	m.durable.Set(float64(j.report.durable.wall) / 1000)
}
