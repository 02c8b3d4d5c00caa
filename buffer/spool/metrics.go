package spool

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/metric"
)

type metrics struct {
	full, readBytes, readEntries prometheus.Counter
	reg                          prometheus.Registerer
	gauges                       *collector
}

// newMetrics registers the metrics of a spool. If an earlier spool has registered them,
// its counters continue, and the gauges are those of the new one.
func newMetrics(reg prometheus.Registerer, s *Spool) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return metric.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{Name: "replicator_spool_" + name, Help: help}))
	}
	m := &metrics{
		full:        counter("full_seconds_total", "How long the source was not read for lack of room on disk; counted when there is room again."),
		readBytes:   counter("read_back_bytes_total", "Bytes read back from disk."),
		readEntries: counter("read_back_entries_total", "Entries read back from disk."),
		reg:         reg, gauges: &collector{s},
	}
	if reg != nil {
		reg.Unregister(m.gauges) // of an earlier spool
		_ = reg.Register(m.gauges)
	}
	return m
}

// leave unregisters the gauges: there is no spool any more.
func (m *metrics) leave() {
	if m.reg != nil {
		m.reg.Unregister(m.gauges)
	}
}

// collector reads the state on each scrape.
type collector struct{ spool *Spool }

var (
	bytesDesc   = prometheus.NewDesc("replicator_spool_bytes", "Bytes on disk.", nil, nil)
	limitDesc   = prometheus.NewDesc("replicator_spool_limit_bytes", "How many bytes may be on disk.", nil, nil)
	entriesDesc = prometheus.NewDesc("replicator_spool_entries", "Entries on disk.", nil, nil)
	heldDesc    = prometheus.NewDesc("replicator_spool_held_bytes", "Bytes of memory that were read back, or came in, and are not applied.", nil, nil)
	fullDesc    = prometheus.NewDesc("replicator_spool_full_age_seconds", "How long there has been no room, 0 while there is.", nil, nil)
)

// Describe sends the descriptions.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{bytesDesc, limitDesc, entriesDesc, heldDesc, fullDesc} {
		out <- d
	}
}

// Collect sends the values.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	s := c.spool
	s.mu.Lock()
	bytes, entries, held, since := s.bytes, s.entries, s.account.Stats().Held, s.full
	s.mu.Unlock()
	full := 0.0
	if !since.IsZero() {
		full = time.Since(since).Seconds()
	}
	gauge := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	gauge(bytesDesc, float64(bytes))
	gauge(limitDesc, float64(s.cfg.Limit))
	gauge(entriesDesc, float64(entries))
	gauge(heldDesc, float64(held))
	gauge(fullDesc, full)
}
