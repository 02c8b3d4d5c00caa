package applier

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
	"github.com/oplogrep/replicator/oplog/txn"
)

// pending is a batch in flight. The tracker's mutex guards it.
type pending struct {
	last      oplog.OpTime
	wall      int64
	fetchFrom oplog.OpTime
	bytes     int64
	txns      []*txn.Transaction
	// left is how many of its operations are not in the target yet, plus one while they
	// are being handed out.
	left int
	// kept is how many of those left are in the backlog, which has copies of them.
	kept int
	// ops is how many operations it had to apply.
	ops int64
}

// tracker records which of the operations handed out are applied: the contiguous prefix
// is the watermark.
type tracker struct {
	release func(int64)
	// wake notifies publishLoop of a new watermark, idle notifies the dispatcher that
	// nothing is in flight.
	wake, idle chan struct{}

	mu sync.Mutex // guards all below
	// queue are the batches in flight, in the log's order. The memory of the first free ones is
	// released: those of their operations that are not applied yet are in the backlog.
	queue    []*pending
	free     int
	progress checkpoint.Progress
	lanes    []checkpoint.Position
	// inflight is how many operations the lanes have, left how many each of them has, and dry
	// when one last ran out of them.
	inflight int
	left     []int
	dry      []time.Time
	// patient is how many lanes wait for the rest of their announced span.
	patient  int
	version  uint64 // of progress
	finished bool
}

func newTracker(start checkpoint.Progress, lanes []checkpoint.Position, release func(int64)) *tracker {
	return &tracker{
		release: release, progress: start, lanes: lanes, left: make([]int, len(lanes)), dry: make([]time.Time, len(lanes)),
		wake: make(chan struct{}, 1), idle: make(chan struct{}, 1),
	}
}

// open adds a batch, with its transactions. The dispatcher has one share in it, until
// close.
func (t *tracker) open(b *batch.Batch) *pending {
	p := &pending{last: b.Last, wall: int64(b.Wall), fetchFrom: b.FetchFrom, bytes: b.Bytes, left: 1}
	for i := range b.Items {
		if tx := b.Items[i].Txn; tx != nil {
			p.txns = append(p.txns, tx)
		}
	}
	t.mu.Lock()
	t.queue = append(t.queue, p)
	t.lend()
	return p
}

// await adds lanes to (or, if negative, subtracts them from) those that wait for the rest
// of an announced span. While one waits, batches release their bytes of the memory budget
// at once: they cannot finish before that rest arrives, which may need the room. All of
// it was in memory together when it was announced.
func (t *tracker) await(lanes int) {
	t.mu.Lock()
	t.patient += lanes
	t.lend()
}

// lend releases the bytes of all batches if a lane waits. It is called with the mutex
// held and unlocks it.
func (t *tracker) lend() {
	var bytes int64
	if t.patient > 0 {
		for _, p := range t.queue {
			bytes += p.bytes
			p.bytes = 0
		}
	}
	t.mu.Unlock()
	if bytes > 0 {
		t.release(bytes)
	}
}

// add counts n operations that are about to be handed to a lane.
func (t *tracker) add(p *pending, lane, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.left += n
	p.ops += int64(n)
	t.left[lane] += n
	t.inflight += n
}

// applied counts operations that the dispatcher applied itself.
func (t *tracker) applied(p *pending, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.ops += int64(n)
}

// keep counts n operations that are kept back.
func (t *tracker) keep(p *pending, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.left += n
	p.kept += n
	p.ops += int64(n)
}

// settle records that operations that were kept back are in the target.
func (t *tracker) settle(shares []share) error {
	t.mu.Lock()
	for _, s := range shares {
		s.p.left -= s.n
		s.p.kept -= s.n
	}
	return t.advance()
}

// share is a number of operations of one batch.
type share struct {
	p *pending
	n int
}

// acknowledge records that a lane has reached at, and which operations of which batches
// that includes.
func (t *tracker) acknowledge(lane int, at checkpoint.Position, shares []share) error {
	t.mu.Lock()
	t.lanes[lane] = at
	for _, s := range shares {
		s.p.left -= s.n
		t.left[lane] -= s.n
		t.inflight -= s.n
	}
	if t.left[lane] == 0 {
		t.dry[lane] = time.Now()
	}
	if t.inflight == 0 {
		signal(t.idle)
	}
	return t.advance()
}

// close gives up the dispatcher's share of a batch.
func (t *tracker) close(p *pending) error {
	t.mu.Lock()
	p.left--
	return t.advance()
}

// advance moves the watermark past all batches that are applied, and releases the memory
// of those of which only the backlog has something left. It is called with the mutex held
// and unlocks it.
func (t *tracker) advance() error {
	var bytes int64
	var txns []*txn.Transaction
	for t.free < len(t.queue) && t.queue[t.free].left == t.queue[t.free].kept {
		p := t.queue[t.free]
		bytes += p.bytes
		txns = append(txns, p.txns...)
		p.bytes, p.txns = 0, nil
		if p.left > 0 || t.free == 0 {
			t.free++
			continue
		}
		// Many batches may follow one that is kept back, so they become a part of it.
		before := t.queue[t.free-1]
		before.last, before.wall, before.ops = p.last, p.wall, before.ops+p.ops
		if !p.fetchFrom.IsNull() {
			before.fetchFrom = p.fetchFrom
		}
		t.queue = slices.Delete(t.queue, t.free, t.free+1)
	}
	n := 0
	for n < t.free && t.queue[n].left == 0 {
		p := t.queue[n]
		t.progress.Applied, t.progress.AppliedWall = p.last, p.wall
		if !p.fetchFrom.IsNull() {
			t.progress.FetchFrom = p.fetchFrom
		}
		t.progress.Ops += p.ops
		n++
	}
	if n > 0 {
		t.queue = slices.Delete(t.queue, 0, n)
		t.free -= n
		t.version++
		signal(t.wake)
	}
	t.mu.Unlock()

	err := closeAll(txns)
	if bytes > 0 {
		t.release(bytes)
	}
	return err
}

func closeAll(txns []*txn.Transaction) error {
	var first error
	for _, tx := range txns {
		if err := tx.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// quiet reports whether the lanes have nothing to do.
func (t *tracker) quiet() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inflight == 0
}

// idleSince returns for how long a lane has had nothing to do since a time, on average.
func (t *tracker) idleSince(from time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, sum := time.Now(), time.Duration(0)
	for i, n := range t.left {
		switch {
		case n > 0:
		case t.dry[i].After(from):
			sum += now.Sub(t.dry[i])
		default:
			sum += now.Sub(from)
		}
	}
	return sum / time.Duration(max(1, len(t.left)))
}

// positions returns the positions that the lanes have acknowledged.
func (t *tracker) positions() []checkpoint.Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.lanes)
}

// finish notes that no batch follows.
func (t *tracker) finish() {
	t.mu.Lock()
	t.finished = true
	t.mu.Unlock()
	signal(t.wake)
}

// abandon closes the transactions of the batches that were not finished.
func (t *tracker) abandon() {
	t.mu.Lock()
	var left []*txn.Transaction
	for _, p := range t.queue {
		left = append(left, p.txns...)
	}
	t.queue, t.free = nil, 0
	t.mu.Unlock()
	// Their files are removed with the process at the latest, and another error is
	// reported already.
	_ = closeAll(left)
}

// publishLoop sends the newest watermark whenever out takes it, and returns once
// the last one has been sent.
func (t *tracker) publishLoop(ctx context.Context, out chan<- checkpoint.Applied) error {
	var sent uint64
	for {
		t.mu.Lock()
		version, finished := t.version, t.finished
		applied := checkpoint.Applied{Progress: t.progress, Lanes: t.lanes}
		if version != sent {
			applied.Lanes = slices.Clone(t.lanes)
		}
		t.mu.Unlock()
		to := out
		if version == sent {
			if finished {
				return nil
			}
			to = nil
		}
		select {
		case to <- applied:
			sent = version
		case <-t.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// signal wakes the receiver of a channel of capacity one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
