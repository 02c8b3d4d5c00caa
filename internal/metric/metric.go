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
