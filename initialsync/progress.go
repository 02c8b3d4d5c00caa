package initialsync

import (
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// Step is what a copy is doing.
type Step string

// The steps of a copy, in their order. The indexes of a collection are built as
// soon as its documents are there; StepIndexes is when nothing else is left.
const (
	StepClear   Step = "clearing"
	StepList    Step = "listing"
	StepViews   Step = "creating views"
	StepCreate  Step = "creating collections"
	StepCopy    Step = "copying documents"
	StepIndexes Step = "building indexes"
	StepDone    Step = "copied"
)

// Progress is how far a copy is.
type Progress struct {
	// Step is empty before the copy is begun.
	Step Step
	// Since is when this process began with the copy.
	Since time.Time
	// Collections, Docs and Bytes are done, also by processes before this one, of
	// Total..., which are those of the listing. Where more was copied than the
	// listing says, or a collection turned out to be smaller, the total follows.
	// Total... are zero until all is listed.
	Collections, TotalCollections int
	Docs, TotalDocs               int64
	Bytes, TotalBytes             int64
	// DocsPerSecond and BytesPerSecond are of the last ten seconds or so.
	DocsPerSecond, BytesPerSecond float64
	// Left is how long the documents take at that rate, negative if unknown.
	Left time.Duration
	// Current are the collections that are being worked on, the largest first, ten
	// at most.
	Current []CollectionProgress
	// Indexes are built, of TotalIndexes; Failed could not be built. Views that
	// this process could not make are in Failed as well, without a Name.
	Indexes, TotalIndexes int
	Failed                []FailedIndex
}

// CollectionProgress is how far one collection is.
type CollectionProgress struct {
	NS                 oplog.Namespace
	Docs, TotalDocs    int64
	Bytes, TotalBytes  int64
	Ranges, DoneRanges int
	// Indexes: its indexes are being built.
	Indexes bool
}

// FailedIndex is an index that could not be built.
type FailedIndex struct {
	// NS is the source's collection as of the beginning, or the view.
	NS oplog.Namespace
	// Name is empty for a view.
	Name, Why string
}

// maxCurrent is how many collections are shown.
const maxCurrent = 10

// Progress returns how far it is. It is safe for concurrent use.
func (c *Copier) Progress() Progress { return c.board.progress(time.Now()) }

func (b *board) progress(now time.Time) Progress {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := Progress{
		Step: b.step, Since: b.since, Collections: b.done, TotalCollections: len(b.all), Left: -1,
		Failed: append([]FailedIndex(nil), b.failed...),
	}
	missing := false
	for _, coll := range b.all {
		one := coll.progress()
		p.Docs += one.Docs
		p.TotalDocs += one.TotalDocs
		p.Bytes += one.Bytes
		p.TotalBytes += one.TotalBytes
		missing = missing || !coll.complete
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
	case b.all != nil && !missing || b.step == StepDone:
		p.Left = 0
	case remaining > 0 && p.BytesPerSecond > 0:
		p.Left = left(remaining, p.BytesPerSecond)
	}
	return p
}

// left is how long so many bytes take at a rate, negative if that cannot be told.
func left(bytes int64, perSecond float64) time.Duration {
	// Where next to nothing was copied of late, as when the copy has gone on just now
	// with a few small collections, that says nothing of a large rest.
	const slow, long = 4 << 10, 24 * time.Hour
	seconds := float64(bytes) / perSecond
	if perSecond < slow && seconds > long.Seconds() {
		return -1
	}
	// The bound is far beyond what a rate of a moment can tell.
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
