package monitor

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/oplog"
)

// Gauges measure the work of the stages of all attempts. The zero Gauges
// measures; its Latency is nil.
type Gauges struct {
	Fetcher, Batcher, Dispatcher, Feedback metric.Meter
	Lanes                                  metric.Meters
	// Latency counts how long operations took from the source's clock at their entries to
	// the acknowledgement of the target.
	Latency    *metric.Durations
	Namespaces Namespaces
}

// newLatency returns the histogram of a link's end-to-end latency, registered with reg if
// that is not nil.
func newLatency(reg prometheus.Registerer) *metric.Durations {
	return metric.Register(reg, metric.NewDurations("replicator_end_to_end_latency_seconds",
		"From the source's clock at an operation until the target's primary had acknowledged it, in seconds; counted for each operation while the clock of the source's primary is known."))
}

// Work is how long the goroutines of the stages have been in each phase, since the start.
type Work struct {
	Fetcher, Batcher, Dispatcher, Feedback metric.Spent
	// Lanes are those of the writers.
	Lanes []metric.Spent
}

// work returns the measurements until now.
func (g *Gauges) work(now time.Time) Work {
	return Work{
		Fetcher: g.Fetcher.Spent(now), Batcher: g.Batcher.Spent(now), Dispatcher: g.Dispatcher.Spent(now),
		Feedback: g.Feedback.Spent(now), Lanes: g.Lanes.Spent(now),
	}
}

// Gauges returns the gauges of the stages.
func (m *Monitor) Gauges() *Gauges { return &m.gauges }

const (
	// mostNamespaces is how many namespaces are counted one by one. Beyond twice that number,
	// those that had the fewest operations lately are summed up.
	mostNamespaces = 1000
	// rateOver is how often a rate starts over: it is that of the time since the last
	// beginning but one, so of one to two such times.
	rateOver = 5 * time.Second
)

// Namespaces counts operations by namespace of the source, in bounded memory. The zero
// Namespaces has none. It is safe for concurrent use.
type Namespaces struct {
	mu    sync.Mutex // guards the fields below
	known map[oplog.Namespace]*Tally
	// rest are those that are not known one by one any more.
	rest Tally
	// marked and before are when the last two rates began.
	marked, before time.Time
}

// Tally is how much the target has acknowledged since the start: for a namespace, or for
// several.
type Tally struct {
	NS         oplog.Namespace
	Ops, Bytes int64
	// OpsPerSecond and BytesPerSecond are rates of the last five to ten seconds. They are
	// valid if Rated is true: the first five seconds have none.
	OpsPerSecond, BytesPerSecond float64
	Rated                        bool
	// Hot are the documents that have had a large part of the operations lately, the hottest
	// first; valid if Rated is true.
	Hot []HotDocument
	// docs are the documents that were sampled most often lately.
	docs sketch
	// The counts at the last two beginnings of a rate.
	marked, before mark
}

type mark struct{ ops, bytes int64 }

// Count counts the operations of a flush, of which some are sampled.
func (n *Namespaces) Count(list []applier.NamespaceOps, sampled []applier.SampledOp) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.begin(time.Now())
	for _, l := range list {
		t := n.known[l.NS]
		if t == nil {
			t = &Tally{NS: l.NS.Clone()}
			n.known[t.NS] = t
		}
		t.Ops += l.Ops
		t.Bytes += l.Bytes
	}
	for _, s := range sampled {
		n.known[list[s.In].NS].docs.count(s.Doc)
	}
	if len(n.known) > 2*mostNamespaces {
		n.sumUp()
	}
}

// Dropped forgets a namespace that does not exist any more.
func (n *Namespaces) Dropped(ns oplog.Namespace) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.known, ns)
}

// DroppedDatabase forgets the namespaces of a database.
func (n *Namespaces) DroppedDatabase(db string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.known, func(ns oplog.Namespace, _ *Tally) bool { return ns.DB() == db })
}

// Renamed counts what a namespace has had under its new name, with what that name had before.
func (n *Namespaces) Renamed(from, to oplog.Namespace) {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.known[from]
	if t == nil || from == to {
		return
	}
	if replaced := n.known[to]; replaced != nil {
		t.add(replaced)
	}
	delete(n.known, from)
	t.NS = to.Clone()
	n.known[t.NS] = t
}

// Forget counts namespaces among those that are not known one by one: something else may have renamed or dropped them.
func (n *Namespaces) Forget(which func(ns oplog.Namespace) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for ns, t := range n.known {
		if which(ns) {
			delete(n.known, ns)
			n.rest.add(t)
		}
	}
}

// begin begins new rates if it is time.
func (n *Namespaces) begin(now time.Time) {
	switch {
	case n.known == nil:
		n.known = map[oplog.Namespace]*Tally{}
		n.marked, n.before = now, now
		return
	case now.Sub(n.marked) < rateOver:
		return
	}
	// Nothing was counted for long, and no status was requested: the rate is that of the whole time.
	n.before, n.marked = n.marked, now
	n.rest.mark()
	for _, t := range n.known {
		t.mark()
	}
}

func (t *Tally) mark() {
	t.before, t.marked = t.marked, mark{t.Ops, t.Bytes}
	t.docs.halve()
}

// rated returns the Tally with its rates.
func (t *Tally) rated(before, now time.Time) Tally {
	out := *t
	if d := now.Sub(before).Seconds(); d >= rateOver.Seconds() {
		out.OpsPerSecond, out.BytesPerSecond = float64(t.Ops-t.before.ops)/d, float64(t.Bytes-t.before.bytes)/d
		out.Rated = true
		out.Hot = t.docs.hot()
	}
	return out
}

// sumUp moves the namespaces beyond mostNamespaces to the rest.
func (n *Namespaces) sumUp() {
	list := make([]*Tally, 0, len(n.known))
	for _, t := range n.known {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *Tally) int {
		return cmp.Or(cmp.Compare(b.Ops-b.before.ops, a.Ops-a.before.ops), cmp.Compare(b.Ops, a.Ops), cmp.Compare(a.NS, b.NS))
	})
	for _, t := range list[mostNamespaces:] {
		delete(n.known, t.NS)
		n.rest.add(t)
	}
}

// add adds the counts of another Tally.
func (t *Tally) add(o *Tally) {
	t.Ops += o.Ops
	t.Bytes += o.Bytes
	t.before.ops += o.before.ops
	t.before.bytes += o.before.bytes
	t.marked.ops += o.marked.ops
	t.marked.bytes += o.marked.bytes
}

// Top returns the namespaces with most operations: by rate, then in all, at most so many,
// and in addition those that are named and known; and the sum of all others.
func (n *Namespaces) Top(most int, also ...oplog.Namespace) (list []Tally, rest Tally) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known == nil {
		return nil, Tally{}
	}
	now := time.Now()
	n.begin(now)
	all := make([]*Tally, 0, len(n.known))
	for _, t := range n.known {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *Tally) int {
		return cmp.Or(cmp.Compare(b.Ops-b.before.ops, a.Ops-a.before.ops), cmp.Compare(b.Ops, a.Ops), cmp.Compare(a.NS, b.NS))
	})
	others := n.rest
	for i, t := range all {
		if i < most || slices.Contains(also, t.NS) {
			list = append(list, t.rated(n.before, now))
		} else {
			others.add(t)
		}
	}
	return list, others.rated(n.before, now)
}
