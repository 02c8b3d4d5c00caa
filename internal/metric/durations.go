package metric

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// slots is the number of slots of a Durations: four for each doubling, from a millisecond
// to 2^30 of them, which are twelve days.
const slots = 116

// exported is the number of buckets of a Durations that a scrape shows: each doubling from
// a millisecond to 70 minutes.
const exported = 23

// Durations counts durations to the millisecond, in slots that are a quarter of a doubling
// wide: a percentile is wrong by less than a quarter. It is the one source of a Prometheus
// histogram and of percentiles over a sliding window: see [Distribution.Sub]. It is safe for
// concurrent use, and takes no lock.
type Durations struct {
	desc   *prometheus.Desc
	counts [slots]atomic.Uint64
	// sum is in milliseconds: in nanoseconds, a day of a link that lags by hours overflows.
	sum atomic.Int64
}

// NewDurations returns a Durations that is exported as the histogram of that name, in
// seconds.
func NewDurations(name, help string) *Durations {
	return &Durations{desc: prometheus.NewDesc(name, help, nil, nil)}
}

// Observe counts n events that took so long. Less than a millisecond, or less than nothing,
// counts as nothing.
func (d *Durations) Observe(took time.Duration, n int) {
	ms := max(0, took.Milliseconds())
	d.counts[slotOf(ms)].Add(uint64(n))
	d.sum.Add(ms * int64(n))
}

// slotOf returns the slot of a number of milliseconds.
func slotOf(ms int64) int {
	if ms < 4 {
		return int(ms)
	}
	e := bits.Len64(uint64(ms)) - 1
	return min(slots-1, 4*(e-1)+int(ms>>(e-2))&3)
}

// startOf returns the shortest duration that a slot counts, in milliseconds.
func startOf(slot int) int64 {
	if slot < 4 {
		return int64(slot)
	}
	e := slot/4 + 1
	return int64(4+slot%4) << (e - 2)
}

// Now returns the counts.
func (d *Durations) Now() *Distribution {
	var out Distribution
	for i := range out {
		out[i] = d.counts[i].Load()
	}
	return &out
}

// Describe implements prometheus.Collector.
func (d *Durations) Describe(out chan<- *prometheus.Desc) { out <- d.desc }

// Collect implements prometheus.Collector.
func (d *Durations) Collect(out chan<- prometheus.Metric) {
	now := d.Now()
	buckets := make(map[float64]uint64, exported)
	var n uint64
	next := 0
	for i := range exported {
		limit := int64(1) << i
		for next < slots && startOf(next) < limit {
			n += now[next]
			next++
		}
		buckets[float64(limit)/1000] = n
	}
	out <- prometheus.MustNewConstHistogram(d.desc, now.Total(), float64(d.sum.Load())/1000, buckets)
}

// Distribution is how often durations of each slot were counted.
type Distribution [slots]uint64

// Sub returns the counts after an earlier Distribution of the same Durations.
func (d *Distribution) Sub(before *Distribution) *Distribution {
	out := *d
	for i := range out {
		out[i] -= min(out[i], before[i])
	}
	return &out
}

// Total is how many events were counted.
func (d *Distribution) Total() uint64 {
	var n uint64
	for _, c := range d {
		n += c
	}
	return n
}

// Quantile returns the duration that a share q (0 to 1) of the events did not exceed, in
// seconds; false if there is none.
func (d *Distribution) Quantile(q float64) (seconds float64, ok bool) {
	total := d.Total()
	if total == 0 {
		return 0, false
	}
	rank := max(1, math.Ceil(q*float64(total)))
	var before float64
	for i, c := range d {
		n := float64(c)
		if before+n < rank {
			before += n
			continue
		}
		from, to := float64(startOf(i)), float64(startOf(i+1))
		return (from + (to-from)*(rank-before)/n) / 1000, true
	}
	return 0, false
}
