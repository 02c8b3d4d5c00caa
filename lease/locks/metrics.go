package locks

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/metric"
)

// metrics count the locks of a process, of one kind: those of its Managers, or of its Elects.
// No label has the name of a lock: there may be any number of them.
type metrics struct {
	held                    prometheus.Gauge
	waited, signed          prometheus.Histogram
	acquired, busy, failed  prometheus.Counter
	lost, expired, unsigned prometheus.Counter
}

// The kinds of locks.
const (
	kindSlow   = "slow"
	kindEnding = "ending"
)

func newMetrics(reg prometheus.Registerer, kind string) *metrics {
	labels := func(more ...string) prometheus.Labels {
		l := prometheus.Labels{"kind": kind}
		for i := 0; i < len(more); i += 2 {
			l[more[i]] = more[i+1]
		}
		return l
	}
	counter := func(name, help string, more ...string) prometheus.Counter {
		return metric.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "replicator", Subsystem: "locks", Name: name, Help: help, ConstLabels: labels(more...),
		}))
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return metric.Register(reg, prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "replicator", Subsystem: "locks", Name: name, Help: help, ConstLabels: labels(), Buckets: buckets,
		}))
	}
	const attempts = "Attempts to acquire a named lock: acquired, busy (something else has it), or failed."
	const lost = "Named locks that this process had and no longer has, though it did not unlock them: released by hand, or expired."
	return &metrics{
		held: metric.Register(reg, prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "replicator", Subsystem: "locks", Name: "held", Help: "Named locks that this process has.", ConstLabels: labels(),
		})),
		waited:   histogram("wait_seconds", "Time until a named lock was acquired.", prometheus.ExponentialBuckets(0.001, 4, 12)),
		signed:   histogram("renewal_seconds", "Time that a sign of life took: a ping for the slow locks of the process, a renewal of each of the others.", prometheus.ExponentialBuckets(0.001, 2, 16)),
		acquired: counter("attempts_total", attempts, "result", "acquired"),
		busy:     counter("attempts_total", attempts, "result", "busy"),
		failed:   counter("attempts_total", attempts, "result", "failed"),
		lost:     counter("lost_total", lost, "reason", "released"),
		expired:  counter("lost_total", lost, "reason", "expired"),
		unsigned: counter("renewal_failures_total", "Signs of life that failed. They are repeated until the locks end."),
	}
}

// tried counts an attempt that began then.
func (m *metrics) tried(began time.Time, err error) {
	switch {
	case err == nil:
		m.acquired.Inc()
		m.held.Inc()
		m.waited.Observe(time.Since(began).Seconds())
	case errors.Is(err, ErrBusy):
		m.busy.Inc()
	default:
		m.failed.Inc()
	}
}

// ended counts a lock that the process no longer has.
func (m *metrics) ended(why error) {
	m.held.Dec()
	switch {
	case errors.Is(why, ErrLost):
		m.lost.Inc()
	case errors.Is(why, ErrExpired):
		m.expired.Inc()
	}
}

// sign counts a sign of life that was sent then.
func (m *metrics) sign(sent time.Time, err error) {
	switch {
	case err == nil:
		m.signed.Observe(time.Since(sent).Seconds())
	case !errors.Is(err, ErrLost): // which is an answer
		m.unsigned.Inc()
	}
}
