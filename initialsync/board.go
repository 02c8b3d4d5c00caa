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
	// doc is its document in the metadata. It is owned by the worker that creates the
	// collection, then by the one that copies its last range, then by the one that
	// builds its indexes. Workers that copy ranges only read it.
	doc progress.Collection
	// to is its namespace in the target.
	to     oplog.Namespace
	capped bool
	// since identifies the documents that were inserted into a capped one since Begin.
	since clone.Since
	// started: an earlier process created it, so documents of it may be in the target
	// already.
	started bool
	// ranges are as they were read or created; later progress is not in them.
	ranges []progress.Range
	// indexed: this process has built its indexes.
	indexed bool

	tally // guarded by the board's mutex
}

// tally is the progress of a collection.
type tally struct {
	// docs and bytes are copied.
	docs, bytes int64
	// rangesAll is the number of ranges, rangesDone those that are done, waiting those
	// that this process still has to end.
	rangesAll, rangesDone, waiting int
	// working is how many workers create it or copy its documents; building reports
	// whether its indexes are being built.
	working  int
	building bool
	// built is how many of its indexes are built.
	built int
	// began is when this process started its first range.
	began time.Time
	// complete: all its documents are in the target, or it is gone. gone: the source
	// has dropped it.
	complete, gone bool
}

// loaded sets the tally from the metadata.
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
	c.started = c.doc.State != progress.Planned
	ended := c.doc.State == progress.Done
	if ended {
		c.rangesDone = c.rangesAll // as far as there is anything to copy
	}
	c.complete = ended || c.doc.State == progress.Filled
	c.gone = c.doc.Gone
	if ended && !c.gone {
		c.built = len(c.doc.Indexes) - len(c.doc.Failed)
	}
}

// board is the state of the whole copy. It is safe for concurrent use.
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
	// progressed: this process has copied documents, or ended a collection.
	progressed bool
	ranges     struct{ all, done int }
}

func newBoard(reg prometheus.Registerer) *board { return &board{metrics: newMetrics(reg)} }

func (b *board) begin(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.since = now
}

// enter starts a step, and reports whether it differs from the previous one.
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

// show sets the gauges.
func (b *board) show() {
	b.metrics.show(b.ranges.done, b.ranges.all)
}

// moved counts the documents and bytes that were copied of a range.
func (b *board) moved(r *progress.Range, docs, bytes int64) {
	b.metrics.docs.Add(float64(docs))
	b.metrics.bytes.Add(float64(bytes))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rate.add(time.Now(), docs, bytes)
	b.progressed = true
	if coll := b.byUUID[r.UUID]; coll != nil {
		coll.docs += docs
		coll.bytes += bytes
	}
}

// discarded records that the copied documents of a range were removed from the target.
// The metrics and the rate still count them.
func (b *board) discarded(coll *collection, r *progress.Range) {
	b.mu.Lock()
	defer b.mu.Unlock()
	coll.docs -= r.Docs
	coll.bytes -= r.Bytes
}

// hasMoved reports whether this process has made progress.
func (b *board) hasMoved() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.progressed
}

// creating records whether a collection is being created.
func (b *board) creating(coll *collection, on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if on {
		coll.working++
	} else {
		coll.working--
	}
}

// created records the ranges of a collection that was created.
func (b *board) created(coll *collection, ranges []progress.Range) {
	b.mu.Lock()
	defer b.mu.Unlock()
	coll.ranges, coll.rangesAll = ranges, len(ranges)
	b.ranges.all += len(ranges)
	b.show()
}

// waitFor sets how many parts of a collection have to end.
func (b *board) waitFor(coll *collection, parts int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	coll.waiting = parts
}

// start starts a part. It returns false if the collection is gone.
func (b *board) start(coll *collection, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	coll.working++
	if coll.began.IsZero() {
		coll.began = now
	}
	return !coll.gone
}

// end ends a part. gone means that the source has dropped the collection, copied that
// the range has been copied. The result reports whether it was the last part, and
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

// filled records that all documents of a collection are copied.
func (b *board) filled(coll *collection, now time.Time) copied {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.completed(coll, now)
	return copied{coll.docs, coll.bytes, now.Sub(coll.began)}
}

// completed records that no more documents of a collection are to be copied. The board is locked.
func (b *board) completed(coll *collection, now time.Time) {
	if !coll.complete {
		b.rate.count(now, 0, 0, 1)
	}
	coll.complete = true
}

// isDone records that a collection needs no more work.
func (b *board) isDone(coll *collection, gone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.completed(coll, time.Now())
	coll.gone = gone
	if gone {
		coll.built = 0
	}
	b.progressed = true
	b.done++
	b.show()
}

// indexing records whether the indexes of a collection are being built.
func (b *board) indexing(coll *collection, on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	coll.building = on
}

// built records that the indexes of a collection are built, as far as possible.
func (b *board) built(coll *collection, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	coll.built = n
}

// fail records an index or a view that cannot be created.
func (b *board) fail(f FailedIndex) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed = append(b.failed, f)
}
