package applier

import (
	"context"
	"slices"
	"strconv"
	"sync"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/oplog"
)

// work is an operation for a lane.
type work struct {
	op routedOp
	meta
}

// routedOp is an operation with what the dispatcher has determined. Of the operation itself it
// has only the address, because it is copied from one queue to the next: its flush copies the
// operation, once.
type routedOp struct {
	// Op is in its entry, or in memory of the dispatcher. It must not be modified.
	*oplog.Op
	at    checkpoint.Position
	route *route
	// hash and grouped are plan.Op's.
	hash    uint32
	mode    plan.Mode
	grouped bool
	// direct is the collection's: with thousands of them in a flush each is far in memory.
	direct bool
}

// plan sets op to the operation in the form that the plan takes.
func (o *routedOp) plan(op *plan.Op) {
	op.Op, op.At, op.Target, op.Collection = *o.Op, o.at, o.route.target, o.route.collection
	op.NS = o.route.source // the same string for all operations: see writer.tally
	op.Seed, op.Hash, op.Mode, op.Grouped = o.route.seed, o.hash, o.mode, o.grouped
}

// planned returns the operation in the form that the plan takes.
func (o *routedOp) planned() (op plan.Op) {
	o.plan(&op)
	return op
}

// opMemory is memory for operations that are in no entry of their own.
type opMemory []oplog.Op

// own returns a copy of op.
func (m *opMemory) own(op *oplog.Op) *oplog.Op {
	if len(*m) == cap(*m) {
		*m = make([]oplog.Op, 0, max(4, min(64, 2*cap(*m)))) // the full one is freed after its last operation
	}
	*m = append(*m, *op)
	return &(*m)[len(*m)-1]
}

// meta has the fields of an operation that the applier needs in addition to the plan's.
type meta struct {
	p *pending
	// bytes is its share of the window.
	bytes int64
	// group numbers the transactions that must not be split, from 1. It is 0 for other
	// operations.
	group uint32
	// hash is the document's, 0 where the collection has one lane.
	hash uint32
	// wall is the source's clock, in milliseconds since the epoch.
	wall int64
}

// span is a sequence of a lane's operations, in order.
type span struct {
	ops    []plan.Op
	groups []uint32
	// uncertain: they may have been applied before.
	uncertain bool
	// alike: all of them are direct, or none is. If it is not set, that is not known.
	alike bool
	// wall is the source's clock at the oldest operation, or before it, in milliseconds
	// since the epoch; 0 where it is not known.
	wall int64
}

func (s span) last() checkpoint.Position { return s.ops[len(s.ops)-1].At }

// split cuts a span near its middle, but not inside of a group.
func (s span) split() (a, b span, ok bool) {
	n := len(s.ops)
	for d := range n {
		for _, m := range [2]int{n/2 - d, n/2 + d} {
			if m > 0 && m < n && (s.groups[m] == 0 || s.groups[m] != s.groups[m-1]) {
				return s.part(0, m), s.part(m, n), true
			}
		}
	}
	return s, span{}, false
}

func (s span) part(from, to int) span {
	return span{ops: s.ops[from:to], groups: s.groups[from:to], uncertain: s.uncertain, alike: s.alike, wall: s.wall}
}

// dissolve clears the groups, so that the span may be split anywhere.
func (s span) dissolve() { clear(s.groups) }

// laneWriter is a lane with its queue. The dispatcher appends to the queue, and the
// lane's goroutine takes from it.
type laneWriter struct {
	*writer
	index int
	wake  chan struct{}
	// keptQueue is its share of keptQueues.
	keptQueue int

	mu     sync.Mutex // guards queue, head, passed and closed
	queue  []work
	head   int
	closed bool
	// passed: no more of the span that an earlier term had announced follows.
	passed bool

	// The following fields belong to the goroutine.

	// awaits: the tracker knows that the lane waits for the rest of its announced span.
	awaits bool
	meter  *metric.Meter
	span   span
	metas  []meta
	shares []share
	docs   docSet
}

func newLaneWriter(a *Applier, index int, l lane) *laneWriter {
	return &laneWriter{
		writer: newWriter(a, laneName(index), l), index: index, wake: make(chan struct{}, 1), meter: a.cfg.Work.Lanes.At(index),
		keptQueue: keptQueues / len(a.writers),
	}
}

// push appends operations, in order. Those of a group come in one call.
func (w *laneWriter) push(items []work) {
	w.mu.Lock()
	if w.head > 0 && w.head >= len(w.queue)-w.head {
		n := copy(w.queue, w.queue[w.head:])
		clear(w.queue[n:]) // release the memory that they refer to
		w.queue, w.head = w.queue[:n], 0
	}
	w.queue = append(w.queue, items...)
	w.mu.Unlock()
	signal(w.wake)
}

// pass notifies the lane that no more of the span that an earlier term had announced
// follows.
func (w *laneWriter) pass() {
	w.mu.Lock()
	w.passed = true
	w.mu.Unlock()
	signal(w.wake)
}

// end notifies the lane that no more operations follow.
func (w *laneWriter) end() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	signal(w.wake)
}

// run writes operations until end is called.
func (w *laneWriter) run(ctx context.Context) error {
	defer w.meter.Enter(metric.Idle)
	for {
		w.meter.Enter(metric.Idle)
		more, err := w.take(ctx)
		if err != nil || !more {
			return err
		}
		w.meter.Enter(metric.Busy)
		if err := w.write(ctx, w.span); err != nil {
			return err
		}
		if err := w.done(); err != nil {
			return err
		}
	}
}

// keptQueues limits the memory that all lanes together keep for queues that are empty, in operations. While
// one document is hot its lane may have all that fits into the window: a part of the memory that is given to
// all lanes, one after the other if they kept it.
const keptQueues = 262_144

// take waits for operations and moves those of the next flush to the span. It returns
// false once there will be none.
func (w *laneWriter) take(ctx context.Context) (bool, error) {
	for {
		w.mu.Lock()
		queued, closed := w.queue[w.head:], w.closed
		n, ready := w.fit(queued, closed, closed || w.passed)
		if ready && n > 0 {
			w.keep(queued[:n])
			clear(queued[:n])
			w.head += n
			if w.head == len(w.queue) && cap(w.queue) > w.keptQueue {
				w.queue, w.head = nil, 0
			}
		}
		w.mu.Unlock()
		switch waits := n > 0 && !ready; {
		case waits && !w.awaits:
			w.tracker.await(1)
			w.awaits = true
		case !waits && w.awaits:
			w.tracker.await(-1)
			w.awaits = false
		}
		switch {
		case ready && n > 0:
			return true, nil
		case ready && closed:
			return false, nil
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// fit returns how many of the queued operations go into the next flush. It is not ready
// while a span that an earlier term had announced is incomplete: only the complete span
// shows which part of it is in the target.
func (w *laneWriter) fit(queued []work, closed, passed bool) (n int, ready bool) {
	if len(queued) == 0 {
		return 0, closed
	}
	first := &queued[0]
	if w.isAnnounced(first.op.at) {
		for n < len(queued) && w.isAnnounced(queued[n].op.at) {
			n++
		}
		last := queued[n-1].op.at
		complete := n < len(queued) || last.Compare(w.lane.Announced()) == 0 || passed
		w.uncounted(queued[:n])
		return n, complete
	}
	w.docs.reset()
	size, docs := int64(0), w.most()
	for n < len(queued) {
		q := &queued[n]
		whole := n > 0 && q.group != 0 && q.group == queued[n-1].group
		if n > 0 && !whole {
			if q.op.mode != first.op.mode || q.op.direct != first.op.direct {
				break
			}
			// A group is taken as a whole: its size is counted before its first operation
			// is taken.
			g := w.groupAt(queued[n:])
			if n+g.ops > w.cfg.CoalesceWindow || w.docs.n+g.docs > docs || size+g.bytes > int64(w.cfg.FlushBytes) {
				break
			}
		}
		size += q.bytes
		w.docs.add(q.hash)
		n++
	}
	return n, true
}

type extent struct {
	ops, docs int
	bytes     int64
}

// groupAt measures the group at the head of queued, or the one operation.
func (w *laneWriter) groupAt(queued []work) extent {
	g := queued[0].group
	if g == 0 {
		e := extent{ops: 1, docs: 1, bytes: queued[0].bytes}
		if w.docs.has(queued[0].hash) {
			e.docs = 0
		}
		return e
	}
	var e extent
	for i := range queued {
		if queued[i].group != g {
			break
		}
		e.ops++
		e.docs++
		e.bytes += queued[i].bytes
	}
	return e
}

// uncounted releases the window bytes of operations that have to wait for others, because
// those others may need the room.
func (w *laneWriter) uncounted(queued []work) {
	var bytes int64
	for i := range queued {
		bytes += queued[i].bytes
		queued[i].bytes = 0
	}
	if bytes > 0 {
		w.window.release(bytes)
	}
}

// keep copies operations to the span.
func (w *laneWriter) keep(items []work) {
	w.span.uncertain, w.span.wall = w.isAnnounced(items[0].op.at), items[0].wall
	w.span.alike = true
	w.span.ops = slices.Grow(w.span.ops[:0], len(items))[:len(items)]
	w.span.groups, w.metas = w.span.groups[:0], w.metas[:0]
	for i := range items {
		items[i].op.plan(&w.span.ops[i])
		w.span.alike = w.span.alike && items[i].op.direct == items[0].op.direct
		w.span.groups = append(w.span.groups, items[i].group)
		w.metas = append(w.metas, items[i].meta)
	}
}

// done acknowledges the span.
func (w *laneWriter) done() error {
	at := w.span.last()
	w.shares = w.shares[:0]
	var bytes int64
	for i := range w.metas {
		m := &w.metas[i]
		bytes += m.bytes
		if n := len(w.shares); n > 0 && w.shares[n-1].p == m.p {
			w.shares[n-1].n++
		} else {
			w.shares = append(w.shares, share{p: m.p, n: 1})
		}
	}
	w.acknowledgedAll(w.metas)
	w.tally(w.span.ops)
	clear(w.span.ops)
	clear(w.metas)
	w.window.release(bytes)
	err := w.tracker.acknowledge(w.index, at, w.shares)
	clear(w.shares)
	return err
}

// docSet counts distinct documents, by their hashes. Documents whose hashes collide count
// as one; the count only limits a flush.
type docSet struct {
	seen  [docSlots]uint32 // the round in which a slot was last used
	round uint32
	n     int
}

const (
	docBits  = 14
	docSlots = 1 << docBits
)

// slotOf takes the upper bits: the lower ones selected the lane.
func slotOf(hash uint32) uint32 { return hash >> (32 - docBits) }

func (d *docSet) reset() {
	d.round++
	if d.round == 0 { // it wrapped around
		clear(d.seen[:])
		d.round = 1
	}
	d.n = 0
}

func (d *docSet) has(hash uint32) bool {
	return hash != 0 && d.seen[slotOf(hash)] == d.round
}

func (d *docSet) add(hash uint32) {
	switch {
	case hash == 0:
		d.n++
	case d.seen[slotOf(hash)] != d.round:
		d.seen[slotOf(hash)] = d.round
		d.n++
	}
}

func laneName(i int) string { return strconv.Itoa(i) }
