package status

import (
	"fmt"
	"slices"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// Latency are percentiles of the time from the source's clock at an operation until the
// target's primary had acknowledged it, of the operations of the last minute. They are nil if
// there was none, or the clock of the source's primary is not known.
type Latency struct {
	P50Seconds *float64 `json:"p50Seconds"`
	P95Seconds *float64 `json:"p95Seconds"`
	P99Seconds *float64 `json:"p99Seconds"`
	// Samples is how many operations they are of.
	Samples uint64 `json:"samples"`
	// ClockAheadSeconds is how far the clock of the source's primary is ahead of that of this
	// process; it is wrong by ClockWithinSeconds at most. Both are nil while it is not known.
	ClockAheadSeconds  *float64 `json:"clockAheadSeconds"`
	ClockWithinSeconds *float64 `json:"clockWithinSeconds"`
}

// Rates are of the last ten seconds, nil while they are not known. Bytes are those of
// operations in the log.
type Rates struct {
	InsertsPerSecond  *float64 `json:"insertsPerSecond"`
	UpdatesPerSecond  *float64 `json:"updatesPerSecond"`
	DeletesPerSecond  *float64 `json:"deletesPerSecond"`
	CommandsPerSecond *float64 `json:"commandsPerSecond"`
	BytesPerSecond    *float64 `json:"bytesPerSecond"`
}

const (
	// latencyEvery is how often the latencies are counted for the sliding window, and
	// latencies how many of the counts are kept: those of a minute.
	latencyEvery = 5 * time.Second
	latencies    = 13
	// lagEvery is how often the lag is noted for its trend, and lags how many are kept:
	// those of two minutes. Fewer than leastLags of them make no trend.
	lagEvery  = 5 * time.Second
	lags      = 25
	leastLags = 7
)

// counted is how often latencies were counted until a time.
type counted struct {
	at time.Time
	by *metric.Distribution
}

// lagged is the lag at a time.
type lagged struct {
	at      time.Time
	seconds float64
}

// noteLatency keeps the counts of a sample. The tracker is locked.
func (t *Tracker) noteLatency(p *monitor.Snapshot, now time.Time) {
	n := len(t.latency)
	if p.Latency == nil || n > 0 && now.Sub(t.latency[n-1].at) < latencyEvery {
		return
	}
	t.latency = append(t.latency, counted{now, p.Latency})
	if len(t.latency) > latencies {
		t.latency = slices.Delete(t.latency, 0, 1)
	}
}

// noteLag keeps the lag of a sample, if the source has answered lately: otherwise it is
// not known how the lag continues. The tracker is locked.
func (t *Tracker) noteLag(s *Snapshot) {
	n := len(t.lag)
	if n > 0 && s.At.Sub(t.lag[n-1].at) < lagEvery {
		return
	}
	if s.LagSeconds == nil || s.Source.DataAgeSeconds == nil || ofSeconds(*s.Source.DataAgeSeconds) > silentSoon {
		t.lag = nil
		return
	}
	t.lag = append(t.lag, lagged{s.At, *s.LagSeconds})
	if len(t.lag) > lags {
		t.lag = slices.Delete(t.lag, 0, 1)
	}
}

// addFigures adds the latency, the rates, the trend, the stages and the namespaces. The
// tracker is locked.
func (t *Tracker) addFigures(s *Snapshot, p *monitor.Snapshot, now time.Time) {
	s.Stages, s.Namespaces = t.stages(s, p), t.namespaces(s, p)
	if !s.leads() {
		return
	}
	if p.Latency != nil && len(t.latency) > 0 && t.latenciesHold(s, p, now) {
		window := p.Latency.Sub(t.latency[0].by)
		s.Latency.Samples = window.Total()
		s.Latency.P50Seconds = quantile(window, 0.50)
		s.Latency.P95Seconds = quantile(window, 0.95)
		s.Latency.P99Seconds = quantile(window, 0.99)
	}
	if c := p.Clock; !c.At.IsZero() {
		ahead, within := seconds(c.Ahead), seconds(c.Within)
		s.Latency.ClockAheadSeconds, s.Latency.ClockWithinSeconds = &ahead, &within
	}
	if first, last, ok := t.span(); ok {
		d := last.at.Sub(first.at).Seconds()
		rate := func(from, to int64) *float64 {
			r := round(max(0, float64(to-from)/d))
			return &r
		}
		a, b := &first.applier, &last.applier
		s.Rates = Rates{
			InsertsPerSecond: rate(a.Inserts, b.Inserts), UpdatesPerSecond: rate(a.Updates, b.Updates), DeletesPerSecond: rate(a.Deletes, b.Deletes),
			CommandsPerSecond: rate(a.Commands, b.Commands), BytesPerSecond: rate(a.Bytes, b.Bytes),
		}
	}
	s.LagTrend = t.trend(now)
	s.Bottleneck = t.bottleneck(s, p)
}

// acknowledgedLately is how long nothing may be acknowledged, although something waits, while
// latencies are shown.
const acknowledgedLately = 5 * time.Second

// latenciesHold reports whether latencies of the last minute say something of now: they do not if
// the source is silent, or if something waits and nothing has been acknowledged for a while. The
// tracker is locked.
func (t *Tracker) latenciesHold(s *Snapshot, p *monitor.Snapshot, now time.Time) bool {
	if heard := s.Source.DataAgeSeconds; heard != nil && ofSeconds(*heard) > s.silentAfter {
		return false
	}
	if age := s.AgeOfOldestUnappliedSeconds; age == nil || *age == 0 {
		return true
	}
	for _, was := range slices.Backward(t.latency) {
		if now.Sub(was.at) >= acknowledgedLately {
			return p.Latency.Sub(was.by).Total() > 0
		}
	}
	return true
}

func quantile(d *metric.Distribution, q float64) *float64 {
	v, ok := d.Quantile(q)
	if !ok {
		return nil
	}
	v = round(v)
	return &v
}

// span returns the oldest and the newest sample, false if they are the same. The tracker is
// locked.
func (t *Tracker) span() (first, last *sample, ok bool) {
	n := len(t.rate)
	if n < 2 {
		return nil, nil, false
	}
	return &t.rate[0], &t.rate[n-1], true
}

// trend returns how fast the lag grows, in seconds per second, negative if it shrinks: the
// slope of the line that fits the lags of the last two minutes best. It is nil if there are
// too few of them. The tracker is locked.
func (t *Tracker) trend(now time.Time) *float64 {
	n := len(t.lag)
	if n < leastLags || now.Sub(t.lag[n-1].at) > 2*lagEvery {
		return nil
	}
	var meanX, meanY float64
	at := func(i int) float64 { return t.lag[i].at.Sub(t.lag[0].at).Seconds() }
	for i := range t.lag {
		meanX += at(i) / float64(n)
		meanY += t.lag[i].seconds / float64(n)
	}
	var above, below float64
	for i := range t.lag {
		dx := at(i) - meanX
		above += dx * (t.lag[i].seconds - meanY)
		below += dx * dx
	}
	slope := round(above / below)
	return &slope
}

// mostNamespaces is how many namespaces a Snapshot has.
const mostNamespaces = 100

// Namespace has the figures of a namespace of the source.
type Namespace struct {
	Namespace string `json:"namespace"`
	// Phase is copying, building indexes, following, kept back (an index build of the target
	// is waited for), copying again, or left out; nil for one that is not being copied while the
	// link is: it waits, or is done.
	Phase *string `json:"phase"`
	// Ops and Bytes were applied since the start of this process: Bytes as in the log. Those of before
	// another process has led, or it was copied again, are in NamespacesRest. The rates
	// are those of the last five to ten seconds. All are nil while they are not known.
	Ops               *int64   `json:"ops"`
	Bytes             *int64   `json:"bytes"`
	OpsPerSecond      *float64 `json:"opsPerSecond"`
	LogBytesPerSecond *float64 `json:"logBytesPerSecond"`
	// DocsDone and BytesDone are copied, of the totals that the source estimates: nil where
	// nothing is being copied now. EtaSeconds is the time that is left at the pace so far.
	DocsDone       *int64   `json:"docsDone"`
	DocsTotal      *int64   `json:"docsTotal"`
	BytesDone      *int64   `json:"bytesDone"`
	BytesTotal     *int64   `json:"bytesTotal"`
	BytesPerSecond *float64 `json:"bytesPerSecond"`
	EtaSeconds     *float64 `json:"etaSeconds"`
	// DeferredIndexes are indexes whose options, or that as a whole, the target gets at
	// cutover only; nil while that is not known.
	DeferredIndexes []string `json:"deferredIndexes"`
	// HotDocuments are those that have had a large part of the operations lately, the hottest
	// first; nil while that is not known.
	HotDocuments []HotDocument `json:"hotDocuments"`
}

// HotDocument is a document whose operations limit how far those of its namespace are spread
// over the writers.
type HotDocument struct {
	// Hash is the hash of the document by which its writer is chosen, in hexadecimal. No value
	// of the document is shown.
	Hash string `json:"hash"`
	// Share is its part of the namespace's operations in the last seconds, from 0 to 1,
	// estimated from one operation in sixteen.
	Share float64 `json:"share"`
}

// NamespacesRest sums up the namespaces that are not listed, and the operations that are not known by name any more.
type NamespacesRest struct {
	Ops          int64    `json:"ops"`
	Bytes        int64    `json:"bytes"`
	OpsPerSecond *float64 `json:"opsPerSecond"`
	// Waiting is how many of them are left out, copied again, or kept back.
	Waiting int `json:"waiting"`
}

// The phases of namespaces.
var (
	phaseCopying, phaseBuilding, phaseFollowing    = "copying", "building indexes", "following"
	phaseKeptBack, phaseCopyingAgain, phaseLeftOut = "kept back", "copying again", "left out"
)

// waiting are the namespaces that the link does not follow, and why: those that could not be
// copied again first.
func (s *Snapshot) waiting() (list []Namespace) {
	for _, failed := range []bool{true, false} {
		phase := map[bool]*string{true: &phaseLeftOut, false: &phaseCopyingAgain}[failed]
		for i := range s.LeftOut {
			if (s.LeftOut[i].Failed != "") == failed {
				list = append(list, Namespace{Namespace: s.LeftOut[i].Namespace, Phase: phase})
			}
		}
	}
	for i := range s.KeptBack {
		list = append(list, Namespace{Namespace: s.KeptBack[i].Namespace, Phase: &phaseKeptBack})
	}
	return list
}

// namespaces returns the namespaces with most operations, those that are copied, and those that
// the link does not follow; of the latter no more than of the former. The tracker is locked.
func (t *Tracker) namespaces(s *Snapshot, p *monitor.Snapshot) []Namespace {
	list := []Namespace{}
	if p.Namespaces == nil || !s.leads() {
		return list
	}
	waiting := s.waiting()
	omitted := max(0, len(waiting)-mostNamespaces)
	waiting = waiting[:len(waiting)-omitted]
	also := make([]oplog.Namespace, len(waiting))
	for i := range waiting {
		also[i] = oplog.Namespace(waiting[i].Namespace)
	}
	top, rest := p.Namespaces.Top(mostNamespaces, also...)
	by := map[string]int{}
	at := func(ns string) *Namespace {
		i, known := by[ns]
		if !known {
			i = len(list)
			by[ns] = i
			list = append(list, Namespace{Namespace: ns, Phase: &phaseFollowing})
			if p.DeferredOf != nil {
				list[i].DeferredIndexes = append([]string{}, p.DeferredOf[oplog.Namespace(ns)]...)
			}
			if n := &list[i]; s.Copy != nil && s.Copy.Phase == string(checkpoint.Copying) {
				n.Phase = nil
			}
			if rest.Ops == 0 {
				none, nothing := int64(0), int64(0)
				list[i].Ops, list[i].Bytes = &none, &nothing
			}
		}
		return &list[i]
	}
	if s.Copy != nil && s.Copy.Progress != nil {
		for i := range s.Copy.Progress.Current {
			t.copied(at(s.Copy.Progress.Current[i].Namespace), &s.Copy.Progress.Current[i], s)
		}
	}
	for i := range top {
		n := at(string(top[i].NS))
		n.Ops, n.Bytes = &top[i].Ops, &top[i].Bytes
		n.OpsPerSecond, n.LogBytesPerSecond = perSecond(&top[i], top[i].OpsPerSecond), perSecond(&top[i], top[i].BytesPerSecond)
		n.HotDocuments = hotDocuments(&top[i])
	}
	for i := range waiting {
		at(waiting[i].Namespace).Phase = waiting[i].Phase
	}
	if rest.Ops > 0 || omitted > 0 {
		s.NamespacesRest = &NamespacesRest{Ops: rest.Ops, Bytes: rest.Bytes, OpsPerSecond: perSecond(&rest, rest.OpsPerSecond), Waiting: omitted}
	}
	return list
}

func hotDocuments(t *monitor.Tally) []HotDocument {
	if !t.Rated {
		return nil
	}
	list := make([]HotDocument, len(t.Hot))
	for i, d := range t.Hot {
		list[i] = HotDocument{fmt.Sprintf("%08x", d.Hash), round(d.Share)}
	}
	return list
}

func perSecond(t *monitor.Tally, rate float64) *float64 {
	if !t.Rated {
		return nil
	}
	rate = round(rate)
	return &rate
}

// copied adds the progress of a collection that is being copied. The tracker is locked.
func (t *Tracker) copied(n *Namespace, c *CollectionProgress, s *Snapshot) {
	n.Phase = &phaseCopying
	if c.BuildingIndexes {
		n.Phase = &phaseBuilding
	}
	n.DocsDone, n.DocsTotal, n.BytesDone, n.BytesTotal = &c.Docs, &c.TotalDocs, &c.Bytes, &c.TotalBytes
	first, known := t.copying[c.Namespace]
	if !known || c.Bytes < first.bytes || s.Copy.Phase != string(checkpoint.Copying) {
		return
	}
	if d := s.At.Sub(first.at).Seconds(); d >= sampleEvery.Seconds() {
		rate := round(float64(c.Bytes-first.bytes) / d)
		n.BytesPerSecond = &rate
		if rate > 0 && c.TotalBytes >= c.Bytes {
			eta := round(float64(c.TotalBytes-c.Bytes) / rate)
			n.EtaSeconds = &eta
		}
	}
}

// noteCopying notes since when collections are copied, as this process has seen it. The
// tracker is locked.
func (t *Tracker) noteCopying(s *Snapshot) {
	if s.Copy == nil || s.Copy.Progress == nil {
		t.copying = nil
		return
	}
	now := map[string]copyStart{}
	for i := range s.Copy.Progress.Current {
		c := &s.Copy.Progress.Current[i]
		was, known := t.copying[c.Namespace]
		if !known || c.Bytes < was.bytes {
			was = copyStart{s.At, c.Bytes}
		}
		now[c.Namespace] = was
	}
	t.copying = now
}

// copyStart is how much of a collection was copied when it was first seen.
type copyStart struct {
	at    time.Time
	bytes int64
}
