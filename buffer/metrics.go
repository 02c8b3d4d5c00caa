package buffer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/metric"
)

type metrics struct {
	waits, waited prometheus.Counter
}

// newMetrics registers the metrics of a Queue. If an earlier Queue has registered them,
// its counters continue, and the gauges are those of the new one.
func newMetrics(reg prometheus.Registerer, q *Queue) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return metric.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{Name: "replicator_buffer_" + name, Help: help}))
	}
	if reg != nil {
		c := &collector{q}
		reg.Unregister(c) // of an earlier Queue
		_ = reg.Register(c)
	}
	return &metrics{
		waits:  counter("waits_total", "How often the source was not read for want of room."),
		waited: counter("wait_seconds_total", "How long the source was not read for want of room."),
	}
}

// collector reads the state on each scrape, as the age of the oldest reply changes
// without an event.
type collector struct{ queue *Queue }

var (
	heldDesc    = prometheus.NewDesc("replicator_buffer_bytes", "Bytes fetched and not applied.", nil, nil)
	queuedDesc  = prometheus.NewDesc("replicator_buffer_queued_bytes", "Bytes fetched and not sent on.", nil, nil)
	repliesDesc = prometheus.NewDesc("replicator_buffer_replies", "Replies fetched and not sent on.", nil, nil)
	limitDesc   = prometheus.NewDesc("replicator_buffer_limit_bytes", "How many bytes may be fetched and not applied.", nil, nil)
	ageDesc     = prometheus.NewDesc("replicator_buffer_oldest_age_seconds", "How long ago the oldest of what is not applied was fetched.", nil, nil)
)

// Describe sends the descriptions.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{heldDesc, queuedDesc, repliesDesc, limitDesc, ageDesc} {
		out <- d
	}
}

// Collect sends the values.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	s := c.queue.Stats()
	gauge := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	gauge(heldDesc, float64(s.Held))
	gauge(queuedDesc, float64(s.Queued))
	gauge(repliesDesc, float64(s.Replies))
	gauge(limitDesc, float64(s.Limit))
	age := 0.0
	if !s.Oldest.IsZero() {
		age = time.Since(s.Oldest).Seconds()
	}
	gauge(ageDesc, age)
}
