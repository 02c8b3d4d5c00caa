package pace

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/internal/metric"
)

type metrics struct {
	factor                  prometheus.Gauge
	bytesLimit, opsLimit    prometheus.Gauge
	limitWait, pressureWait prometheus.Counter
	slowed                  prometheus.Counter
	signs                   *prometheus.GaugeVec
}

// newMetrics registers the metrics of a Pacer. If an earlier Pacer has registered them,
// they are reused.
func newMetrics(reg prometheus.Registerer) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return metric.Register(reg, prometheus.NewGauge(prometheus.GaugeOpts{Name: "replicator_pace_" + name, Help: help}))
	}
	waited := metric.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "replicator_pace_wait_seconds_total", Help: "How long the workers of the copy waited, all together.",
	}, []string{"for"}))
	return &metrics{
		factor:       gauge("factor", "The part of its speed that pressure on the clusters leaves to the copy."),
		bytesLimit:   gauge("limit_bytes_per_second", "How many bytes may be copied in a second, 0 for no limit."),
		opsLimit:     gauge("limit_ops_per_second", "How many documents may be copied in a second, 0 for no limit."),
		limitWait:    waited.WithLabelValues("limit"),
		pressureWait: waited.WithLabelValues("pressure"),
		slowed: metric.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "replicator_pace_slowed_total", Help: "How often the copy was slowed down from full speed.",
		})),
		signs: metric.Register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "replicator_pace_pressure", Help: "1 where a cluster shows that it has enough to do, as of the last sample.",
		}, []string{"side"})),
	}
}

func (m *metrics) limits(bytesPerSecond, opsPerSecond int64) {
	m.bytesLimit.Set(float64(bytesPerSecond))
	m.opsLimit.Set(float64(opsPerSecond))
}

func (m *metrics) pressure(side clone.Side, shown bool) {
	value := 0.0
	if shown {
		value = 1
	}
	m.signs.WithLabelValues(string(side)).Set(value)
}
