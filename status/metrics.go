package status

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/pipeline"
)

// states are all states of a link.
var states = []pipeline.State{
	pipeline.Starting, pipeline.InitialSync, pipeline.CatchingUp, pipeline.Steady,
	pipeline.Paused, pipeline.Stale, pipeline.Failed, pipeline.Stopped,
}

// collector makes metrics of a snapshot that is taken when they are asked for.
// What is not known is left out.
type collector struct {
	tracker *Tracker

	info, state, consistent, attempts            *prometheus.Desc
	lag, dataAge, unapplied, window, optime, ops *prometheus.Desc
}

func newCollector(t *Tracker) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("replicator_"+name, help, labels, nil)
	}
	return &collector{
		tracker:    t,
		info:       desc("info", "Always 1; the program's version and the link.", "version", "link"),
		state:      desc("state", "1 for the state that the link is in, 0 for the others.", "state"),
		consistent: desc("consistent", "1 if the target holds what the source held at some time, 0 while a copy is caught up with."),
		attempts:   desc("attempts_total", "How often the link was taken hold of since the start."),
		lag: desc("lag_seconds",
			"By how much the target is behind what the source had committed when it was heard of last."),
		dataAge:   desc("source_data_age_seconds", "How long ago the source was heard of last."),
		unapplied: desc("oldest_unapplied_seconds", "How long, at most, the oldest entry that is not applied has waited."),
		window:    desc("oplog_window_left_seconds", "How much of the source's oplog is older than the checkpoint."),
		optime:    desc("optime_seconds", "The timestamps that fetching, applying and committing have reached, in seconds since the epoch.", "kind"),
		ops:       desc("ops_applied_total", "Operations applied since the start."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.info, c.state, c.consistent, c.attempts, c.lag, c.dataAge, c.unapplied, c.window, c.optime, c.ops,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	s := c.tracker.Snapshot()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	maybe := func(d *prometheus.Desc, value *float64) {
		if value != nil {
			gauge(d, *value)
		}
	}
	gauge(c.info, 1, s.Version, s.Link)
	for _, state := range states {
		gauge(c.state, truth(s.State == string(state)), string(state))
	}
	gauge(c.consistent, truth(s.Consistent))
	out <- prometheus.MustNewConstMetric(c.attempts, prometheus.CounterValue, float64(s.Attempts))
	out <- prometheus.MustNewConstMetric(c.ops, prometheus.CounterValue, float64(s.Applier.OpsApplied))
	maybe(c.lag, s.LagSeconds)
	maybe(c.dataAge, s.Source.DataAgeSeconds)
	maybe(c.unapplied, s.AgeOfOldestUnappliedSeconds)
	maybe(c.window, s.OplogWindowLeftSeconds)
	for _, o := range []struct {
		kind string
		at   *OpTime
	}{
		{"fetched", s.OpTimes.Fetched},
		{"applied", s.OpTimes.Applied},
		{"durable", s.OpTimes.Durable},
		{"source", s.OpTimes.SourceCommitted},
	} {
		if o.at != nil {
			gauge(c.optime, float64(o.at.T), o.kind)
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
