package spool

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/internal/metric"
)

type metrics struct {
	full, readBytes, readEntries prometheus.Counter
	// leave removes the gauges: there is no spool any more.
	leave func()
}

// newMetrics registers the metrics of a spool. If an earlier spool has registered them,
// its counters continue, and the gauges are those of the new one.
func newMetrics(reg prometheus.Registerer, s *Spool) *metrics {
	const prefix = "replicator_spool_"
	var remove []func()
	gauge := func(name, help string, value func() float64) {
		remove = append(remove, metric.Computed(reg, prefix+name, help, func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return value()
		}))
	}
	gauge("bytes", "Bytes on disk.", func() float64 { return float64(s.bytes) })
	gauge("limit_bytes", "How many bytes may be on disk.", func() float64 { return float64(s.cfg.Limit) })
	gauge("entries", "Entries on disk.", func() float64 { return float64(s.entries) })
	gauge("oldest_entry_time_seconds", "When the oldest entry on disk was written at the source, in seconds since 1970, 0 if there is none.", func() float64 {
		first, _, _ := s.bounds()
		return float64(first.TS.T)
	})
	gauge("newest_entry_time_seconds", "When the newest entry on disk was written at the source, in seconds since 1970, 0 if there is none.", func() float64 {
		_, last, _ := s.bounds()
		return float64(last.TS.T)
	})
	gauge("newest_entry_age_seconds", "How long ago an entry was stored last, 0 if none was.", func() float64 {
		if s.newest.IsZero() {
			return 0
		}
		return time.Since(s.newest).Seconds()
	})
	gauge("memory_bytes", "Bytes of memory that were read back, or came in, and are not applied.", func() float64 { return float64(s.account.Stats().Buffered) })
	gauge("full_age_seconds", "How long there has been no room, 0 while there is.", func() float64 {
		if s.full.IsZero() {
			return 0
		}
		return time.Since(s.full).Seconds()
	})
	return &metrics{
		full:        metric.Counter(reg, prefix+"full_seconds_total", "How long the source was not read for lack of room on disk; counted when there is room again."),
		readBytes:   metric.Counter(reg, prefix+"read_back_bytes_total", "Bytes read back from disk."),
		readEntries: metric.Counter(reg, prefix+"read_back_entries_total", "Entries read back from disk."),
		leave: func() {
			for _, each := range remove {
				each()
			}
		},
	}
}
