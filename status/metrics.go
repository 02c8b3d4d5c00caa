package status

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// states are all states of a link.
var states = []monitor.State{
	monitor.Starting, monitor.Standby, monitor.InitialSync, monitor.CatchingUp, monitor.Steady,
	monitor.Stale, monitor.Failed, monitor.Stopped,
}

// collector makes metrics from a snapshot taken at each scrape. Unknown values
// are left out.
type collector struct {
	tracker *Tracker

	info, verdict, state, consistent, attempts   *prometheus.Desc
	lag, dataAge, unapplied, window, optime, ops *prometheus.Desc

	rollover, consistentAt, cutAge                  *prometheus.Desc
	copyPhase, copyNumber, collections, docs, bytes *prometheus.Desc
	docRate, byteRate, left, failedIndexes, indexes *prometheus.Desc
	leftOut, lacking, keptBack, deferred            *prometheus.Desc
	exact, delay, paused, cutInterval               *prometheus.Desc
	trend, busy, bottleneck, clock                  *prometheus.Desc
	foreign, watching                               *prometheus.Desc
	verifiedAge, verifiedColls, verifies            *prometheus.Desc
	differences                                     *prometheus.Desc
}

func newCollector(t *Tracker) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("replicator_"+name, help, labels, nil)
	}
	return &collector{
		tracker:    t,
		info:       desc("info", "Always 1; the program's version and the link.", "version", "link"),
		verdict:    desc("verdict", "1 for the verdict on the link, 0 for the others; docs/troubleshooting.md has a section for each.", "name", "level"),
		state:      desc("state", "1 for the state that the link is in, 0 for the others.", "state"),
		consistent: desc("consistent", "1 if the target equals the source as of some time; 0 during a copy, and while the oplog is applied to it."),
		attempts:   desc("attempts_total", "Number of attempts: how often the lease was acquired since the start."),
		lag: desc("lag_seconds",
			"How far the target lags what the source had committed when it last answered."),
		dataAge:   desc("source_data_age_seconds", "Time since the source last answered."),
		unapplied: desc("oldest_unapplied_seconds", "Maximum time that the oldest unapplied entry has waited."),
		window:    desc("oplog_window_left_seconds", "Length of the source's oplog before the checkpoint."),
		rollover:  desc("oplog_rollover_seconds", "Time until the source's oldest entry passes the checkpoint, at its current pace."),
		consistentAt: desc("consistent_optime_seconds",
			"The timestamp as of which a copy became consistent, in seconds since the epoch."),
		cutAge: desc("cut_age_seconds",
			"Time since the newest consistent cut, which is known to be majority-committed on the target."),
		foreign:       desc("foreign_writes_total", "Writes to mirrored namespaces of the target that the link has not made, since it was made, by kind.", "kind"),
		watching:      desc("guard_watching", "1 while the target's oplog is watched for foreign writes, 0 while it is not."),
		verifiedAge:   desc("verified_age_seconds", "Time since that of the source as of which everything was compared last; missing while something is not verified."),
		verifiedColls: desc("verified_collections", "Collections that count (counted), that are verified, that could not be compared (unchecked), and that count from the next comparison on (new).", "kind"),
		differences:   desc("verify_differences", "Differences between source and target that the last comparison of each collection has found, by kind.", "kind"),
		verifies:      desc("verify_continuous", "1 if the link verifies itself, 0 if it does not."),
		copyPhase:     desc("copy_phase", "1 for the current phase of the copy, 0 for the others.", "phase"),
		copyNumber:    desc("copy_number", "Number of the copy: more than 1 if copying started again."),
		collections:   desc("copy_collections", "Collections copied (done), and in total (total). Only while documents are copied.", "kind"),
		docs:          desc("copy_docs", "Documents copied (done), those that an earlier process has copied too, and in total by the source's estimate (total). Only while documents are copied.", "kind"),
		bytes:         desc("copy_bytes", "Bytes copied (done), those that an earlier process has copied too, and in total by the source's estimate (total). Only while documents are copied.", "kind"),
		docRate:       desc("copy_docs_per_second", "Documents copied per second, recently."),
		byteRate:      desc("copy_bytes_per_second", "Bytes copied per second, recently."),
		left:          desc("copy_seconds_left", "Time left for the documents at that rate."),
		indexes:       desc("copy_indexes", "Indexes built (done), and in total (total). Only while documents are copied.", "kind"),
		failedIndexes: desc("copy_failed_indexes", "Indexes that could not be built."),
		leftOut:       desc("left_out_collections", "Collections left out, of which the target is not consistent: being copied again (copying), or not possible to copy again (failed).", "kind"),
		lacking:       desc("lacking", "Views, indexes and options of collections of the source that the target lacks: it refuses them, or they are invalid at the source.", "kind"),
		optime:        desc("optime_seconds", "Timestamps in seconds since the epoch: of the newest entry that the source has committed (source) and of the newest one that was fetched (fetched), and up to which everything that is mirrored is applied and durable, missing while the target is not consistent; log is how far the log was applied, without collections that are left out.", "kind"),
		ops:           desc("ops_applied_total", "Operations applied since the start."),
		keptBack:      desc("kept_back_collections", "Collections of which operations wait for an index build of the target, while all others continue."),
		deferred:      desc("deferred", "Indexes and collections of the target that get options of the source at cutover only, such as unique or expireAfterSeconds, or that do not exist until then.", "kind"),
		exact:         desc("exact_timestamp_seconds", "The time as of which the target is known to be what the source was, by this process's clock, in seconds since the epoch."),
		delay:         desc("delay_seconds", "By how much the target lags the source on purpose (--delay); part of the lag."),
		cutInterval:   desc("cut_interval_seconds", "Minimum time between two consistent cuts, 0 if they are made on request only."),
		paused:        desc("paused", "1 while an operator has paused the link, 0 otherwise; missing while this process does not know."),
		trend:         desc("lag_trend_ratio", "How many seconds the lag grows in a second, over the last two minutes; negative if it shrinks."),
		busy:          desc("stage_busy_ratio", "Share of the last ten seconds that a stage worked, 0 to 1; applier: the mean of its writers, the target's time included; buffer: without room; syncsource: without a member to read from.", "stage"),
		bottleneck:    desc("bottleneck", "1 for the stage that sets the pace, while something waits to be applied; 0 for the others.", "stage"),
		clock:         desc("source_clock_ahead_seconds", "How far the clock of the source's primary is ahead of that of this process."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.info, c.verdict, c.state, c.consistent, c.attempts, c.lag, c.dataAge, c.unapplied, c.window, c.optime, c.ops,
		c.rollover, c.consistentAt, c.cutAge, c.copyPhase, c.copyNumber, c.collections, c.docs, c.bytes,
		c.docRate, c.byteRate, c.left, c.indexes, c.failedIndexes, c.leftOut, c.lacking,
		c.keptBack, c.deferred, c.exact, c.delay, c.paused, c.cutInterval,
		c.trend, c.busy, c.bottleneck, c.clock, c.foreign, c.watching,
		c.verifiedAge, c.verifiedColls, c.verifies, c.differences,
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
	for i := range conditions {
		name := conditions[i].name
		gauge(c.verdict, truth(s.Verdict.Name == name), name, string(conditions[i].level))
	}
	gauge(c.consistent, truth(s.Consistent))
	c.collectSettings(&s, gauge)
	c.collectCollections(&s, gauge)
	out <- prometheus.MustNewConstMetric(c.attempts, prometheus.CounterValue, float64(s.Attempts))
	out <- prometheus.MustNewConstMetric(c.ops, prometheus.CounterValue, float64(s.Applier.OpsApplied))
	maybe(c.lag, s.LagSeconds)
	if s.ExactAt != nil {
		gauge(c.exact, float64(s.ExactAt.UnixMilli())/1000)
	}
	maybe(c.dataAge, s.Source.DataAgeSeconds)
	maybe(c.unapplied, s.AgeOfOldestUnappliedSeconds)
	maybe(c.window, s.OplogWindowLeftSeconds)
	maybe(c.rollover, s.OplogRolloverSeconds)
	if s.ConsistentAt != nil {
		gauge(c.consistentAt, float64(s.ConsistentAt.T))
	}
	maybe(c.trend, s.LagTrend)
	maybe(c.clock, s.Latency.ClockAheadSeconds)
	for i := range s.Stages {
		stage := &s.Stages[i]
		if stage.Busy != nil {
			gauge(c.busy, *stage.Busy, stage.Name)
		}
		gauge(c.bottleneck, truth(s.Bottleneck != nil && s.Bottleneck.Stage == stage.Name), stage.Name)
	}
	if s.Cut != nil {
		gauge(c.cutAge, s.Cut.AgeSeconds)
	}
	if g := s.Guard; g != nil && g.watches() {
		gauge(c.watching, truth(g.Watching))
		c.collectForeign(g, out)
	}
	c.collectVerified(s.Verified, gauge, maybe)
	c.collectCopy(s.Copy, gauge, maybe)
	for _, o := range []struct {
		kind string
		at   *OpTime
	}{
		{"fetched", s.OpTimes.Fetched},
		{"applied", s.OpTimes.Applied},
		{"durable", s.OpTimes.Durable},
		{"log", s.OpTimes.LogApplied},
		{"source", s.OpTimes.SourceCommitted},
	} {
		if o.at != nil {
			gauge(c.optime, float64(o.at.T), o.kind)
		}
	}
}

// collectSettings makes metrics of the settings.
func (c *collector) collectSettings(s *Snapshot, gauge func(*prometheus.Desc, float64, ...string)) {
	gauge(c.delay, s.DelaySeconds)
	gauge(c.cutInterval, s.CutIntervalSeconds)
	if s.Control != nil && s.Control.known {
		gauge(c.paused, truth(s.Control.Paused != nil))
	}
}

// collectVerified makes metrics of the verification.
func (c *collector) collectVerified(v *Verified, gauge func(*prometheus.Desc, float64, ...string), maybe func(*prometheus.Desc, *float64)) {
	if v == nil {
		return
	}
	maybe(c.verifiedAge, v.AgeSeconds)
	gauge(c.verifies, truth(v.Continuous))
	gauge(c.verifiedColls, float64(v.Collections), "counted")
	gauge(c.verifiedColls, float64(v.Verified), "verified")
	gauge(c.verifiedColls, float64(len(v.Unchecked)+v.MoreUnchecked), "unchecked")
	gauge(c.verifiedColls, float64(v.New), "new")
	for _, kind := range differenceKinds {
		gauge(c.differences, float64(v.Kinds[kind]), kind)
	}
}

// collectForeign makes metrics of foreign writes, once those of before are known: a counter that begins
// with 0 until then would seem to count them again.
func (c *collector) collectForeign(g *Guard, out chan<- prometheus.Metric) {
	if g.Examined == nil {
		return
	}
	counts := g.metricCounts()
	for _, kind := range metricKinds {
		out <- prometheus.MustNewConstMetric(c.foreign, prometheus.CounterValue, float64(counts[kind]), kind)
	}
}

// collectCollections makes metrics of collections that the target does not have as the source
// has them.
func (c *collector) collectCollections(s *Snapshot, gauge func(*prometheus.Desc, float64, ...string)) {
	const indexes = "indexes"
	failed := s.failedCollections()
	gauge(c.leftOut, float64(len(s.LeftOut)-len(failed)), "copying")
	gauge(c.leftOut, float64(len(failed)), "failed")
	gauge(c.lacking, float64(len(s.LackingViews)), "views")
	gauge(c.lacking, float64(len(s.LackingIndexes)), indexes)
	gauge(c.lacking, float64(len(s.LackingOptions)), "options")
	gauge(c.keptBack, float64(len(s.KeptBack)))
	if d := s.Deferred; d != nil {
		gauge(c.deferred, float64(d.Indexes), indexes)
		gauge(c.deferred, float64(d.Collections), "collections")
	}
}

// phases are all phases of a copy.
var phases = []checkpoint.CopyPhase{checkpoint.Copying, checkpoint.Replaying, checkpoint.Copied}

// collectCopy makes metrics of a copy. Once it is complete the progress is left
// out.
func (c *collector) collectCopy(of *Copy, gauge func(*prometheus.Desc, float64, ...string), maybe func(*prometheus.Desc, *float64)) {
	if of == nil {
		return
	}
	for _, phase := range phases {
		gauge(c.copyPhase, truth(of.Phase == string(phase)), string(phase))
	}
	gauge(c.copyNumber, float64(of.Number))
	p := of.Progress
	if p == nil {
		return
	}
	const done, total = "done", "total"
	gauge(c.collections, float64(p.Collections), done)
	gauge(c.collections, float64(p.TotalCollections), total)
	gauge(c.docs, float64(p.Docs), done)
	gauge(c.docs, float64(p.TotalDocs), total)
	gauge(c.bytes, float64(p.Bytes), done)
	gauge(c.bytes, float64(p.TotalBytes), total)
	gauge(c.docRate, p.DocsPerSecond)
	gauge(c.byteRate, p.BytesPerSecond)
	maybe(c.left, p.SecondsLeft)
	gauge(c.indexes, float64(p.Indexes), done)
	gauge(c.indexes, float64(p.TotalIndexes), total)
	gauge(c.failedIndexes, float64(len(p.FailedIndexes)))
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
