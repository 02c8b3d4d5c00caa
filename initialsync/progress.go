package initialsync

import (
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// Step is a step of a copy.
type Step string

// The steps of a copy, in order. The indexes of a collection are built as soon as its
// documents are copied; in StepIndexes, only index builds are left.
const (
	StepClear   Step = "clearing"
	StepList    Step = "listing"
	StepViews   Step = "creating views"
	StepCreate  Step = "creating collections"
	StepCopy    Step = "copying documents"
	StepIndexes Step = "building indexes"
	StepDone    Step = "copied"
)

// Progress is the progress of a copy.
type Progress struct {
	// Step is empty before the copy has begun.
	Step Step
	// Since is when this process started the copy.
	Since time.Time
	// Collections, Docs and Bytes are done, including those of earlier processes, out
	// of Total..., which are those of the listing. If more was copied than listed, or a
	// collection turned out to be smaller, the total is adjusted. Total... are zero
	// until everything is listed.
	Collections, TotalCollections int
	Docs, TotalDocs               int64
	Bytes, TotalBytes             int64
	// DocsPerSecond and BytesPerSecond are averages of about the last ten seconds.
	DocsPerSecond, BytesPerSecond float64
	// Left is the time that the documents take at that rate, or, if that is longer, the time that many small
	// collections take at the rate at which collections are completed; negative if unknown.
	Left time.Duration
	// Current are the collections that are being worked on, the largest first, at most
	// ten.
	Current []CollectionProgress
	// Indexes are built, of TotalIndexes; Failed could not be built. Views that this
	// process could not create are in Failed too, without a Name.
	Indexes, TotalIndexes int
	Failed                []FailedIndex
}

// CollectionProgress is the progress of one collection.
type CollectionProgress struct {
	NS                 oplog.Namespace
	Docs, TotalDocs    int64
	Bytes, TotalBytes  int64
	Ranges, DoneRanges int
	// Indexes reports whether its indexes are being built.
	Indexes bool
}

// FailedIndex is an index that could not be built.
type FailedIndex struct {
	// NS is the source's namespace of the collection at Begin, or of the view.
	NS oplog.Namespace
	// Name is empty for a view.
	Name, Why string
}

// maxCurrent is how many collections are shown.
const maxCurrent = 10

// Progress returns the present progress. It is safe for concurrent use.
func (c *Copier) Progress() Progress { return c.board.progress(time.Now()) }

func (b *board) progress(now time.Time) Progress {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := Progress{
		Step: b.step, Since: b.since, Collections: b.done, TotalCollections: len(b.all), Left: -1,
		Failed: append([]FailedIndex(nil), b.failed...),
	}
	missing := 0
	for _, coll := range b.all {
		one := coll.progress()
		p.Docs += one.Docs
		p.TotalDocs += one.TotalDocs
		p.Bytes += one.Bytes
		p.TotalBytes += one.TotalBytes
		if !coll.complete {
			missing++
		}
		p.Indexes += coll.built
		if !coll.gone {
			p.TotalIndexes += len(coll.doc.Indexes)
		}
		if (coll.working > 0 || coll.building) && len(p.Current) < maxCurrent {
			p.Current = append(p.Current, one)
		}
	}
	if b.step == StepCopy {
		p.DocsPerSecond, p.BytesPerSecond = b.rate.perSecond(now)
	}
	switch remaining := p.TotalBytes - p.Bytes; {
	case b.all != nil && missing == 0 || b.step == StepDone:
		p.Left = 0
	case remaining > 0 && p.BytesPerSecond > 0:
		p.Left = left(remaining, p.BytesPerSecond)
	}
	if perSecond := b.rate.collections(now); missing > 0 && b.step == StepCopy && perSecond > 0 {
		p.Left = max(p.Left, time.Duration(float64(missing)/perSecond*float64(time.Second)))
	}
	return p
}

// left returns how long the remaining bytes take at a rate, negative if unknown.
func left(bytes int64, perSecond float64) time.Duration {
	// A very low rate, as when the copy has just resumed with a few small collections,
	// does not predict how long a large rest takes.
	const slow, long = 4 << 10, 24 * time.Hour
	seconds := float64(bytes) / perSecond
	if perSecond < slow && seconds > long.Seconds() {
		return -1
	}
	// The bound avoids an overflow of Duration.
	return time.Duration(min(seconds, maxLeft.Seconds()) * float64(time.Second))
}

// maxLeft is the longest time that is shown.
const maxLeft = 10 * 365 * 24 * time.Hour

func (c *collection) progress() CollectionProgress {
	p := CollectionProgress{
		NS: c.doc.NS, Docs: c.docs, Bytes: c.bytes, TotalDocs: max(c.docs, c.doc.Docs), TotalBytes: max(c.bytes, c.doc.Bytes),
		Ranges: c.rangesAll, DoneRanges: c.rangesDone, Indexes: c.building,
	}
	if c.complete {
		p.TotalDocs, p.TotalBytes = c.docs, c.bytes
	}
	return p
}
