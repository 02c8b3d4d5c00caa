package syncsource

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what the package counts. A Watcher and a Resolver with one registry
// share them.
type metrics struct {
	changes, denials prometheus.Counter
	candidates       prometheus.Gauge
	ping, up         *prometheus.GaugeVec
}

// newMetrics registers the metrics, or finds those that are registered. A nil
// registry is fine.
func newMetrics(reg prometheus.Registerer) *metrics {
	const prefix = "replicator_syncsource_"
	return &metrics{
		changes: register(reg, prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "changes_total", Help: "How often another member was chosen to read from.",
		})),
		denials: register(reg, prometheus.NewCounter(prometheus.CounterOpts{
			Name: prefix + "denials_total", Help: "How often a member was denied for a while.",
		})),
		candidates: register(reg, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "candidates", Help: "How many members would have done when the source was last looked for.",
		})),
		ping: register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "member_ping_seconds", Help: "Moving average of the time that a member takes to answer.",
		}, []string{keyHost})),
		up: register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "member_up", Help: "1 if a member answers as it should, 0 if not.",
		}, []string{keyHost})),
	}
}

// register registers c unless there is one already, which it returns. Whatever
// else is wrong with it is a mistake in this package.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	if reg == nil {
		return c
	}
	err := reg.Register(c)
	if known, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if same, ok := known.ExistingCollector.(C); ok {
			return same
		}
	}
	if err != nil {
		panic("syncsource: register a metric: " + err.Error())
	}
	return c
}
