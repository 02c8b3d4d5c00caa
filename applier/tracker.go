package applier

import (
	"context"
	"slices"
	"sync"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
	"github.com/oplogrep/replicator/oplog/txn"
)

// pending is a batch on its way through the lanes. The tracker's mutex guards it.
type pending struct {
	last      oplog.OpTime
	wall      int64
	fetchFrom oplog.OpTime
	bytes     int64
	txns      []*txn.Transaction
	// left is how many of its operations are not in the target yet, with one
	// more as long as they are being handed out.
	left int
	// ops is how many operations it had to apply.
	ops int64
}

// tracker knows what has been applied of what was handed out: the contiguous
// prefix is the watermark.
type tracker struct {
	release func(int64)
	// wake tells publishLoop of a new watermark, idle tells the dispatcher that
	// nothing is under way.
	wake, idle chan struct{}

	mu sync.Mutex // guards all below
	// queue are the batches under way, in the log's order.
	queue    []*pending
	progress checkpoint.Progress
	lanes    []checkpoint.Position
	// inflight is how many operations the lanes have.
	inflight int
	// patient is how many lanes wait for the rest of what they had begun.
	patient  int
	version  uint64 // of progress
	finished bool
}

func newTracker(start checkpoint.Progress, lanes []checkpoint.Position, release func(int64)) *tracker {
	return &tracker{
		release: release, progress: start, lanes: lanes,
		wake: make(chan struct{}, 1), idle: make(chan struct{}, 1),
	}
}

// open takes a batch up, with its transactions. The dispatcher has one share in
// it, which it gives up with close.
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

// await says that one lane more, or less, waits for the rest of what it had begun.
// As long as one does, batches give back what they hold of the memory budget at
// once: their end does not come before that rest, which may need the room. It all
// was in memory at once when it was begun.
func (t *tracker) await(lanes int) {
	t.mu.Lock()
	t.patient += lanes
	t.lend()
}

// lend gives back the bytes of all batches if a lane waits. It is called with the
// mutex held and gives it up.
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
func (t *tracker) add(p *pending, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.left += n
	p.ops += int64(n)
	t.inflight += n
}

// applied counts operations that the dispatcher applied itself.
func (t *tracker) applied(p *pending, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.ops += int64(n)
}

// share is a number of operations of one batch.
type share struct {
	p *pending
	n int
}

// acknowledge notes that a lane has come to at, and what of which batch was in
// that.
func (t *tracker) acknowledge(lane int, at checkpoint.Position, shares []share) error {
	t.mu.Lock()
	t.lanes[lane] = at
	for _, s := range shares {
		s.p.left -= s.n
		t.inflight -= s.n
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

// advance moves the watermark over all batches that are done. It is called with
// the mutex held and gives it up.
func (t *tracker) advance() error {
	n := 0
	var bytes int64
	for n < len(t.queue) && t.queue[n].left == 0 {
		p := t.queue[n]
		t.progress.Applied, t.progress.AppliedWall = p.last, p.wall
		if !p.fetchFrom.IsNull() {
			t.progress.FetchFrom = p.fetchFrom
		}
		t.progress.Ops += p.ops
		bytes += p.bytes
		n++
	}
	if n == 0 {
		t.mu.Unlock()
		return nil
	}
	done := slices.Clone(t.queue[:n])
	t.queue = slices.Delete(t.queue, 0, n)
	t.version++
	signal(t.wake)
	t.mu.Unlock()

	err := closeAll(done)
	if bytes > 0 {
		t.release(bytes)
	}
	return err
}

func closeAll(batches []*pending) error {
	var first error
	for _, p := range batches {
		for _, tx := range p.txns {
			if err := tx.Close(); err != nil && first == nil {
				first = err
			}
		}
		p.txns = nil
	}
	return first
}

// quiet reports whether the lanes have nothing to do.
func (t *tracker) quiet() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inflight == 0
}

// positions returns what the lanes have acknowledged.
func (t *tracker) positions() []checkpoint.Position {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.lanes)
}

// finish says that no batch will come any more.
func (t *tracker) finish() {
	t.mu.Lock()
	t.finished = true
	t.mu.Unlock()
	signal(t.wake)
}

// abandon closes the transactions of the batches that were not finished.
func (t *tracker) abandon() {
	t.mu.Lock()
	left := t.queue
	t.queue = nil
	t.mu.Unlock()
	// What they kept on disk is lost with the process at the latest, and there
	// is another error to be told about.
	_ = closeAll(left)
}

// publishLoop sends the newest watermark whenever out takes it, and returns once
// the last one has been sent.
func (t *tracker) publishLoop(ctx context.Context, out chan<- Applied) error {
	var sent uint64
	for {
		t.mu.Lock()
		version, finished := t.version, t.finished
		applied := Applied{Progress: t.progress, Lanes: t.lanes}
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
