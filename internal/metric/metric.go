package metric

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Register registers c with reg and returns it, or returns the collector of the
// same description that is registered already. With a nil reg it returns c,
// which is then not exported. It panics if reg has a different metric of that
// name, which is a bug.
func Register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
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
		panic("metric: one name for two metrics: " + err.Error())
	}
	return c
}

// Counter registers a counter.
func Counter(reg prometheus.Registerer, name, help string) prometheus.Counter {
	return Register(reg, prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help}))
}

// Gauge registers a gauge.
func Gauge(reg prometheus.Registerer, name, help string) prometheus.Gauge {
	return Register(reg, prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help}))
}

// Computed registers a gauge whose value is computed on each scrape. It replaces the one
// of an earlier stage. The result removes it.
func Computed(reg prometheus.Registerer, name, help string, value func() float64) (remove func()) {
	if reg == nil {
		return func() {}
	}
	gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	reg.Unregister(gauge)
	Register(reg, gauge)
	return func() { reg.Unregister(gauge) }
}
