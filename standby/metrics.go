package standby

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// leaseOpts are those of a metric of the link's lease.
func leaseOpts(link, name, help string) prometheus.Opts {
	return prometheus.Opts{
		Namespace: "replicator", Subsystem: "lease", Name: name, Help: help, ConstLabels: prometheus.Labels{"link": link},
	}
}

// renewalTimes returns a function to call after each renewal; it observes how long they take.
func renewalTimes(reg prometheus.Registerer, link string) func(took time.Duration, err error) {
	o := leaseOpts(link, "renewal_seconds", "Time to renew the link's lease.")
	took := metric.Register(reg, prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: o.Namespace, Subsystem: o.Subsystem, Name: o.Name, Help: o.Help, ConstLabels: o.ConstLabels,
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
	}))
	return func(d time.Duration, err error) {
		if err == nil {
			took.Observe(d.Seconds())
		}
	}
}

// RegisterMetrics registers the metrics of a link's lease that are computed at each scrape, in
// place of those of an earlier pipeline of the link.
func RegisterMetrics(reg prometheus.Registerer, link string, now func() monitor.Snapshot) {
	if reg == nil {
		return
	}
	replace := func(c prometheus.Collector) {
		reg.Unregister(c)
		metric.Register(reg, c)
	}
	gauge := func(name, help string, value func(s *monitor.Snapshot) float64) {
		replace(prometheus.NewGaugeFunc(prometheus.GaugeOpts(leaseOpts(link, name, help)), func() float64 {
			s := now()
			return value(&s)
		}))
	}
	counter := func(name, help string, value func(s *monitor.Snapshot) int64) {
		replace(prometheus.NewCounterFunc(prometheus.CounterOpts(leaseOpts(link, name, help)), func() float64 {
			s := now()
			return float64(value(&s))
		}))
	}
	gauge("leader", "1 while this process has the link's lease, 0 otherwise.", func(s *monitor.Snapshot) float64 {
		if s.Role() == monitor.RoleLeader {
			return 1
		}
		return 0
	})
	gauge("term", "The link's term, as far as this process knows: its own, or that of the process that leads.",
		func(s *monitor.Snapshot) float64 { return float64(s.Term) })
	gauge("seconds_left", "Time until this process stops using the link's lease unless it is renewed; 0 if it has none.",
		func(s *monitor.Snapshot) float64 { return s.Lease.Left.Seconds() })
	counter("takeovers_total", "Times that this process acquired the link's lease after another process had it.",
		func(s *monitor.Snapshot) int64 { return s.Lease.Takeovers })
	counter("fenced_writes_total", "Writes of this process that the target refused because another process had acquired the link's lease.",
		func(s *monitor.Snapshot) int64 { return s.Lease.Fenced })
	counter("renewal_failures_total", "Renewals of the link's lease that failed. They are repeated until the lease ends.",
		func(s *monitor.Snapshot) int64 { return s.Lease.Failures })
}
