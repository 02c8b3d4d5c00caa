package initialsync

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/metric"
)

// metrics are those of the copy.
type metrics struct {
	docs, bytes  prometheus.Counter
	ranges, step *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	name := func(noun, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "replicator", Subsystem: "initialsync", Name: noun, Help: help}
	}
	counter := func(noun, help string) prometheus.Counter {
		return metric.Register(reg, prometheus.NewCounter(prometheus.CounterOpts(name(noun, help))))
	}
	vec := func(noun, label, help string) *prometheus.GaugeVec {
		return metric.Register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts(name(noun, help)), []string{label}))
	}
	return &metrics{
		docs:   counter("docs_total", "Documents copied by this process."),
		bytes:  counter("bytes_total", "Bytes of documents copied by this process."),
		ranges: vec("ranges", "kind", "Parts of collections that are copied by themselves: those that are done, and that there are."),
		step:   vec("step", "step", "1 for the step that the copy is at."),
	}
}

func (m *metrics) entered(from, to Step) {
	if from != "" {
		m.step.WithLabelValues(string(from)).Set(0)
	}
	m.step.WithLabelValues(string(to)).Set(1)
}

func (m *metrics) show(done, all int) {
	m.ranges.WithLabelValues("done").Set(float64(done))
	m.ranges.WithLabelValues("total").Set(float64(all))
}
