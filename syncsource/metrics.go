package syncsource

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/metric"
)

// metrics are the package's metrics. A Watcher and a Resolver with the same
// registry share them.
type metrics struct {
	changes, denials prometheus.Counter
	candidates       prometheus.Gauge
	ping, up         *prometheus.GaugeVec
}

// newMetrics registers the metrics, or returns those already registered. A nil
// registry is allowed.
func newMetrics(reg prometheus.Registerer) *metrics {
	const prefix = "replicator_syncsource_"
	return &metrics{
		changes:    metric.Counter(reg, prefix+"changes_total", "How often another member was chosen to read from."),
		denials:    metric.Counter(reg, prefix+"denials_total", "How often a member was denied for a while."),
		candidates: metric.Gauge(reg, prefix+"candidates", "How many members would have done when the source was last looked for."),
		ping: metric.Register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "member_ping_seconds", Help: "Moving average of the time that a member takes to answer.",
		}, []string{keyHost})),
		up: metric.Register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "member_up", Help: "1 if a member answers as it should, 0 if not.",
		}, []string{keyHost})),
	}
}
