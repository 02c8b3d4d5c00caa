package metric

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Register registers c with reg and returns it, or returns the collector of the
// same description that is registered already. A nil reg is fine: c is counted
// with and shown nowhere. It panics where reg has a metric of that name which is
// another one: that is a mistake in the program.
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
