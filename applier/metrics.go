package applier

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/oplog"
)

type metrics struct {
	ops                                 [oplog.KindCommand + 1]prometheus.Counter
	flushes, coalesced, retries         prometheus.Counter
	listed, listedDeletes, reroutes     prometheus.Counter
	divergences, deletesEmpty, ignored  prometheus.Counter
	skipped, cuts, cutsDropped          prometheus.Counter
	flushSeconds, flushDocs, barrierSec prometheus.Histogram
	commitToApplied, cutStall           prometheus.Histogram
	window, keptBack, keptBackBytes     prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return metric.Register(reg, prometheus.NewCounter(prometheus.CounterOpts{Name: "replicator_applier_" + name, Help: help}))
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return metric.Register(reg, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "replicator_applier_" + name, Help: help, Buckets: buckets,
		}))
	}
	seconds := prometheus.ExponentialBuckets(0.001, 4, 8)
	m := &metrics{
		flushes:       counter("flushes_total", "Transactions and direct writes that were acknowledged."),
		coalesced:     counter("coalesced_ops_total", "Operations that needed no statement of their own."),
		listed:        counter("listed_ops_total", "Updates that were sent in the statement of an equal one, as one of a list of _ids."),
		listedDeletes: counter("listed_deletes_total", "Deletes that were sent in the statement of another one, as one of a list of _ids."),
		reroutes:      counter("reroutes_total", "How often collections got other lanes because of their share of the operations."),
		retries:       counter("retries_total", "Flushes that were tried again after a conflict."),
		divergences:   counter("divergences_total", "Operations that met what they cannot have met at the source."),
		deletesEmpty:  counter("deletes_empty_total", "Deletes that found no document."),
		ignored:       counter("ignored_ops_total", "Operations on documents or collections that are not there, where that is normal."),
		skipped:       counter("skipped_ops_total", "Operations that were in the target already."),
		cuts:          counter("cuts_total", "Consistent cuts that the majority of the target has confirmed."),
		cutsDropped:   counter("cuts_dropped_total", "Consistent cuts that the target has refused, that a failover has taken back, or that were not confirmed."),
		cutStall:      histogram("cut_stall_seconds", "How long handing out operations waited for a consistent cut, in seconds.", seconds),
		flushSeconds:  histogram("flush_seconds", "How long a flush takes, in seconds.", seconds),
		flushDocs:     histogram("flush_docs", "How many statements a flush has.", prometheus.ExponentialBuckets(1, 4, 8)),
		barrierSec:    histogram("barrier_wait_seconds", "How long what must be processed individually waits for the lanes, in seconds.", seconds),
		commitToApplied: histogram("commit_to_applied_seconds", "From the source's clock at the oldest operation of a flush until the flush was acknowledged, in seconds.",
			prometheus.ExponentialBuckets(0.001, 2, 19)),
		window: metric.Register(reg, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "replicator_applier_window_bytes", Help: "Operations handed to writers and not applied yet, in bytes.",
		})),
	}
	m.keptBack = metric.Register(reg, prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "replicator_applier_kept_back_ops", Help: "Operations and commits that wait for an index build of their collection.",
	}))
	m.keptBackBytes = metric.Register(reg, prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "replicator_applier_kept_back_bytes", Help: "The bytes of the operations that wait for an index build of their collection.",
	}))
	ops := metric.Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "replicator_applier_ops_total", Help: "Operations applied, by kind.",
	}, []string{"kind"}))
	for _, kind := range []oplog.Kind{oplog.KindInsert, oplog.KindUpdate, oplog.KindDelete, oplog.KindCommand} {
		m.ops[kind] = ops.WithLabelValues(kind.String())
	}
	return m
}

// count counts operations by kind.
func (a *Applier) count(ops []plan.Op) {
	var n [oplog.KindCommand + 1]int
	var bytes int64
	for i := range ops {
		n[ops[i].Kind]++
		bytes += sizeOf(&ops[i].Op)
	}
	for kind, n := range n {
		if n > 0 {
			a.metrics.ops[kind].Add(float64(n))
		}
	}
	s := &a.stats
	s.ops.Add(int64(len(ops)))
	s.bytes.Add(bytes)
	s.inserts.Add(int64(n[oplog.KindInsert]))
	s.updates.Add(int64(n[oplog.KindUpdate]))
	s.deletes.Add(int64(n[oplog.KindDelete]))
}

type stats struct {
	ops, flushes, coalesced, retries    atomic.Int64
	listed, listedDeletes, reroutes     atomic.Int64
	divergences, deletesEmpty           atomic.Int64
	ignored, skipped, commands, barrier atomic.Int64
	cuts                                atomic.Int64
	noCut                               atomic.Pointer[string]
	keptBack                            atomic.Pointer[[]KeptBack]
	// inserts, updates and deletes are those of ops, bytes their size in the log.
	inserts, updates, deletes, bytes atomic.Int64
	waitsFor                         atomic.Int32 // a subject
	// meter measures the dispatcher.
	meter *metric.Meter
}

// subject is what the dispatcher waits for.
type subject int32

const (
	nothing subject = iota
	laneRoom
	idleLanes
	throttled
	resumption
	indexBuild
)

func (s subject) String() string {
	switch s {
	case laneRoom:
		return "room in the lanes"
	case idleLanes:
		return "the lanes to apply what they have"
	case throttled:
		return "its turn: applying is throttled"
	case resumption:
		return "the link to be resumed: it is paused"
	case indexBuild:
		return "an index build"
	default:
		return ""
	}
}

// wait records what the dispatcher waits for, nothing once it does not wait.
func (s *stats) wait(what subject) {
	s.waitsFor.Store(int32(what))
	switch what {
	case nothing:
		s.meter.Enter(metric.Busy)
	case laneRoom:
		s.meter.Enter(metric.Blocked)
	case idleLanes, indexBuild, throttled, resumption:
		s.meter.Enter(metric.Waiting)
	}
}

// KeptBack is a collection of the target that waits for its index build.
type KeptBack struct {
	NS oplog.Namespace
	// Commit is the entry whose build it waits for, Since when this attempt began to wait.
	Commit oplog.OpTime
	Since  time.Time
}

// waits records that a collection waits for an index build.
func (s *stats) waits(ns oplog.Namespace, commit oplog.OpTime) {
	list := []KeptBack{{NS: ns, Commit: commit, Since: time.Now()}}
	if before := s.keptBack.Load(); before != nil {
		list = append(list, *before...)
	}
	slices.SortFunc(list, func(a, b KeptBack) int { return cmp.Compare(a.NS, b.NS) })
	s.keptBack.Store(&list)
}

// Stats counts the work since the start.
type Stats struct {
	// Ops were applied, in Flushes; Coalesced of them needed no statement.
	Ops, Flushes, Coalesced int64
	// Inserts, Updates and Deletes are those of Ops by kind, Bytes is their size in the log.
	Inserts, Updates, Deletes, Bytes int64
	// Listed were sent in the statement of an equal update, as one of a list of _ids.
	Listed int64
	// ListedDeletes are the same of deletes.
	ListedDeletes int64
	// Reroutes is how often collections got other lanes because of their share of the
	// operations.
	Reroutes int64
	// Retries are flushes that were retried.
	Retries int64
	// Divergences were reported, and the run continued.
	Divergences int64
	// DeletesEmpty found nothing to delete.
	DeletesEmpty int64
	// Ignored met no document or collection, where that is normal.
	Ignored int64
	// Skipped were in the target already.
	Skipped int64
	// Commands were executed. Barriers is how often all lanes were waited for.
	Commands, Barriers int64
	// Cuts is how many consistent cuts were confirmed. NoCut is why the last one that was due
	// was not made, empty if it was.
	Cuts  int64
	NoCut string
	// WindowBytes are the bytes that writers have and that are not applied yet.
	WindowBytes int64
	// Writers is the number of writers.
	Writers int
	// WaitsFor is the reason why operations are not handed out at this moment, empty for none, or
	// for a command.
	WaitsFor string
	// Throttled reports whether that is the brake.
	Throttled bool
	// KeptBack are the collections that wait for an index build, sorted by name. The slice is
	// replaced and never modified.
	KeptBack []KeptBack
}

// Stats returns the counters so far.
func (a *Applier) Stats() Stats {
	s := &a.stats
	var kept []KeptBack
	if list := s.keptBack.Load(); list != nil {
		kept = *list
	}
	noCut := ""
	if why := s.noCut.Load(); why != nil {
		noCut = *why
	}
	return Stats{
		Cuts: s.cuts.Load(), NoCut: noCut,
		Ops: s.ops.Load(), Flushes: s.flushes.Load(), Coalesced: s.coalesced.Load(), Listed: s.listed.Load(), ListedDeletes: s.listedDeletes.Load(),
		Inserts: s.inserts.Load(), Updates: s.updates.Load(), Deletes: s.deletes.Load(), Bytes: s.bytes.Load(),
		Reroutes: s.reroutes.Load(), Retries: s.retries.Load(),
		Divergences: s.divergences.Load(), DeletesEmpty: s.deletesEmpty.Load(), Ignored: s.ignored.Load(),
		Skipped: s.skipped.Load(), Commands: s.commands.Load(), Barriers: s.barrier.Load(),
		WindowBytes: a.window.used.Load(), Writers: len(a.writers), KeptBack: kept,
		WaitsFor: subject(s.waitsFor.Load()).String(), Throttled: subject(s.waitsFor.Load()) == throttled,
	}
}
