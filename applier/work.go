package applier

import (
	"math/rand/v2"
	"time"
	"unsafe"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/oplog"
)

// Work has the observers of the applier's work. Each of its fields may be nil. All of them
// outlast an Applier: the next attempt continues to count.
type Work struct {
	// Dispatcher measures the goroutine that hands operations out, Lanes those that write
	// them.
	Dispatcher *metric.Meter
	Lanes      *metric.Meters
	// Latency counts how long operations took from the source's clock at their entries until
	// the target had acknowledged them.
	Latency *metric.Durations
	// SourceClock returns the time of the clock of the source's primary, false while that is
	// not known: no latency is counted then.
	SourceClock func() (now time.Time, known bool)
	// Tally is called, from several goroutines, after each flush, with what it had of the
	// source's namespaces: of one perhaps in several parts. The list and the names in it are
	// valid during the call only. Sampled are some of its operations.
	Tally func(list []NamespaceOps, sampled []SampledOp)
	// Commanded is called after a command has been carried out, and so after each call of Tally for an
	// operation before it in the log. It may be called again for a command whose effect was uncertain. op
	// is valid during the call only.
	Commanded func(op *oplog.Op)
}

// NamespaceOps is how much a flush had of a namespace of the source.
type NamespaceOps struct {
	NS         oplog.Namespace
	Ops, Bytes int64
}

// SampledOp is an operation on one document, drawn at random among those of a flush: one in
// sampleEvery, wherever the documents of a collection have hashes.
type SampledOp struct {
	// In is the index of its namespace in the list.
	In int
	// Doc is the hash of the document by which its lane was chosen.
	Doc uint32
}

// sampleEvery is how many operations there are, on average, for one that is sampled.
const sampleEvery = 16

// clock returns what the source's clock shows now, in milliseconds since the epoch; false
// where that is not known, or of no interest.
func (a *Applier) clock() (millis int64, known bool) {
	w := &a.cfg.Work
	if w.Latency == nil || w.SourceClock == nil {
		return 0, false
	}
	now, known := w.SourceClock()
	return now.UnixMilli(), known
}

// acknowledged counts n operations of one entry that the target has acknowledged. wall is
// the source's clock at the entry, in milliseconds since the epoch.
func (a *Applier) acknowledged(n int, wall int64) {
	if now, known := a.clock(); known {
		a.cfg.Work.Latency.Observe(time.Duration(now-wall)*time.Millisecond, n)
	}
}

// acknowledgedAll counts the operations of a flush: those of one millisecond together.
func (a *Applier) acknowledgedAll(metas []meta) {
	now, known := a.clock()
	if !known {
		return
	}
	for from := 0; from < len(metas); {
		to := from + 1
		for to < len(metas) && metas[to].wall == metas[from].wall {
			to++
		}
		a.cfg.Work.Latency.Observe(time.Duration(now-metas[from].wall)*time.Millisecond, to-from)
		from = to
	}
}

// mostTallied is among how many namespaces of a flush a further operation looks for its own.
// If there are more, some are told in several parts.
const mostTallied = 16

// tally tells how much of which namespaces the target has acknowledged.
func (w *writer) tally(ops []plan.Op) {
	if w.cfg.Work.Tally == nil {
		return
	}
	list, sampled, last := w.tallies[:0], w.sampled[:0], 0
	for i := range ops {
		ns := ops[i].NS
		if len(list) == 0 || !isSame(list[last].NS, ns) {
			last = len(list) - 1
			for last >= max(0, len(list)-mostTallied) && !isSame(list[last].NS, ns) {
				last--
			}
			if last < max(0, len(list)-mostTallied) {
				list, last = append(list, NamespaceOps{NS: ns}), len(list)
			}
		}
		list[last].Ops++
		list[last].Bytes += sizeOf(&ops[i].Op)
		if w.unsampled--; w.unsampled < 0 {
			w.unsampled = rand.IntN(2*sampleEvery - 1) //nolint:gosec // keeps no secret
			if ops[i].Hash != 0 {
				sampled = append(sampled, SampledOp{last, ops[i].Hash})
			}
		}
	}
	w.cfg.Work.Tally(list, sampled)
	clear(list)
	w.tallies, w.sampled = list, sampled
}

// isSame reports whether two names are one string in memory, as those of one route are: to
// compare the bytes of each operation's name takes several times as long.
func isSame(a, b oplog.Namespace) bool {
	return len(a) == len(b) && unsafe.StringData(string(a)) == unsafe.StringData(string(b))
}

// sizeOf is the size of an operation in the log, in bytes.
func sizeOf(op *oplog.Op) int64 { return int64(len(op.O) + len(op.O2)) }
