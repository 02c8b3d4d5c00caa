package initialsync

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/oplog"
)

// collection is a collection of the copy.
type collection struct {
	// doc is its document in the metadata. The worker that creates the collection owns
	// it, then the one that copies the last range, then the one that builds the
	// indexes. Workers that copy ranges only read it.
	doc progress.Collection
	// to is its namespace in the target.
	to     oplog.Namespace
	capped bool
	// since is what was inserted into a capped one since Begin.
	since clone.Since
	// begun: documents of it may be in the target already, as an earlier process
	// created it.
	begun bool
	// ranges are as they were read, or made: what was copied since is not in them.
	ranges []progress.Range
	// indexed: this process has built its indexes.
	indexed bool

	tally // guarded by the board's mutex
}

// tally is how far a collection is.
type tally struct {
	// docs and bytes are copied.
	docs, bytes int64
	// of ranges, rangesDone are; waiting are still to be ended by this process.
	rangesAll, rangesDone, waiting int
	// working is how many workers create it or copy its documents; building: its
	// indexes are being built.
	working  int
	building bool
	// built is how many of its indexes are.
	built int
	// began is when its first range was begun by this process.
	began time.Time
	// complete: all documents are there, or it needs none any more. gone: the source
	// has dropped it.
	complete, gone bool
}

// loaded takes over what the metadata have.
func (c *collection) loaded() {
	c.rangesAll = len(c.ranges)
	for i := range c.ranges {
		r := &c.ranges[i]
		c.docs += r.Docs
		c.bytes += r.Bytes
		if r.Done {
			c.rangesDone++
		}
	}
	c.begun = c.doc.State != progress.Planned
	ended := c.doc.State == progress.Done
	if ended {
		c.rangesDone = c.rangesAll // as far as there is something to be copied
	}
	c.complete = ended || c.doc.State == progress.Filled
	c.gone = c.doc.Gone
	if ended && !c.gone {
		c.built = len(c.doc.Indexes) - len(c.doc.Failed)
	}
}

// board is what is known of the whole copy. It is safe for concurrent use.
type board struct {
	metrics *metrics

	// mu guards what follows, and the tallies of all collections.
	mu     sync.Mutex
	step   Step
	since  time.Time
	all    []*collection // the largest first
	byUUID map[oplog.UUID]*collection
	failed []FailedIndex
	rate   rate
	done   int // collections
	ranges struct{ all, done int }
}

func newBoard(reg prometheus.Registerer) *board { return &board{metrics: newMetrics(reg)} }

func (b *board) begin(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.since = now
}

// enter begins a step, and reports whether it is another one than before.
func (b *board) enter(step Step, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.step == step {
		return false
	}
	b.metrics.entered(b.step, step)
	b.step = step
	if step == StepCopy {
		b.rate = rate{start: now}
	}
	return true
}

// load sets the collections to copy.
func (b *board) load(all []*collection) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all, b.byUUID = all, make(map[oplog.UUID]*collection, len(all))
	for _, coll := range all {
		b.byUUID[coll.doc.UUID] = coll
		b.ranges.all += coll.rangesAll
		b.ranges.done += coll.rangesDone
		if coll.doc.State == progress.Done {
			b.done++
		}
		for _, f := range coll.doc.Failed {
			b.failed = append(b.failed, FailedIndex{NS: coll.doc.NS, Name: f.Name, Why: f.Why})
		}
	}
	b.show()
}

// show sets the metrics that have a state.
func (b *board) show() {
	b.metrics.show(b.ranges.done, b.ranges.all)
}

// moved counts what was copied of a range.
func (b *board) moved(r *progress.Range, docs, bytes int64) {
	b.metrics.docs.Add(float64(docs))
	b.metrics.bytes.Add(float64(bytes))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rate.add(time.Now(), docs, bytes)
	if coll := b.byUUID[r.UUID]; coll != nil {
		coll.docs += docs
		coll.bytes += bytes
	}
}

// discarded records that what was copied of a range is gone from the target. The
// metrics and the rate still count it, as it was work.
func (b *board) discarded(coll *collection, r *progress.Range) {
	b.mu.Lock()
	defer b.mu.Unlock()
	coll.docs -= r.Docs
	coll.bytes -= r.Bytes
}

// creating says that a collection is being created, or not any more.
func (b *board) creating(coll *collection, on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if on {
		coll.working++
	} else {
		coll.working--
	}
}

// created takes the ranges of a collection that was made.
func (b *board) created(coll *collection, ranges []progress.Range) {
	b.mu.Lock()
	defer b.mu.Unlock()
	coll.ranges, coll.rangesAll = ranges, len(ranges)
	b.ranges.all += len(ranges)
	b.show()
}

// waitFor says how many parts of a collection are to be ended.
func (b *board) waitFor(coll *collection, parts int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	coll.waiting = parts
}

// start begins a part. It is false where the collection is gone.
func (b *board) start(coll *collection, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	coll.working++
	if coll.began.IsZero() {
		coll.began = now
	}
	return !coll.gone
}

// end ends a part. Gone says that the source has dropped the collection, copied that
// its range has been copied. The result reports whether it was the last part, and
// whether the collection is gone.
func (b *board) end(coll *collection, gone, copied bool) (last, isGone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	coll.working--
	coll.waiting--
	coll.gone = coll.gone || gone
	if copied {
		coll.rangesDone++
		b.ranges.done++
		b.show()
	}
	return coll.waiting == 0, coll.gone
}

// filled says that all documents of a collection are there.
func (b *board) filled(coll *collection, now time.Time) copied {
	b.mu.Lock()
	defer b.mu.Unlock()
	coll.complete = true
	return copied{coll.docs, coll.bytes, now.Sub(coll.began)}
}

// isDone says that nothing is left to be done for a collection.
func (b *board) isDone(coll *collection, gone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	coll.complete, coll.gone = true, gone
	if gone {
		coll.built = 0
	}
	b.done++
	b.show()
}

// indexing says that the indexes of a collection are being built, or not any
// more.
func (b *board) indexing(coll *collection, on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	coll.building = on
}

// built says that the indexes of a collection are built, as far as they can be.
func (b *board) built(coll *collection, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	coll.built = n
}

// fail takes an index, or a view, that cannot be made.
func (b *board) fail(f FailedIndex) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed = append(b.failed, f)
}
