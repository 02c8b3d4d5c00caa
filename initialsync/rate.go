package initialsync

import "time"

// window is the number of seconds that a rate covers.
const window = 10

// rate counts the documents and bytes copied, and the collections completed, in each of the last seconds.
type rate struct {
	start time.Time
	cells [window]struct{ second, docs, bytes, collections int64 }
}

func (r *rate) add(now time.Time, docs, bytes int64) { r.count(now, docs, bytes, 0) }

func (r *rate) count(now time.Time, docs, bytes, collections int64) {
	second := int64(now.Sub(r.start) / time.Second)
	cell := &r.cells[second%window]
	if cell.second != second {
		cell.second, cell.docs, cell.bytes, cell.collections = second, 0, 0, 0
	}
	cell.docs += docs
	cell.bytes += bytes
	cell.collections += collections
}

// perSecond returns the rate over the seconds that are kept: the present one, so far,
// and those before it.
func (r *rate) perSecond(now time.Time) (docs, bytes float64) {
	docs, bytes, _ = r.rates(now)
	return docs, bytes
}

// collections returns how many collections a second were completed, zero if they are too few to tell how
// long many others take.
func (r *rate) collections(now time.Time) float64 {
	const few = 20
	n, second := int64(0), int64(now.Sub(r.start)/time.Second)
	for i := range r.cells {
		if cell := &r.cells[i]; cell.second > second-window { // others are overwritten once something is copied
			n += cell.collections
		}
	}
	if n < few {
		return 0
	}
	_, _, perSecond := r.rates(now)
	return perSecond
}

func (r *rate) rates(now time.Time) (docs, bytes, collections float64) {
	if r.start.IsZero() {
		return 0, 0, 0
	}
	since := now.Sub(r.start)
	second := int64(since / time.Second)
	var d, n, c int64
	for i := range r.cells {
		if cell := &r.cells[i]; cell.second > second-window {
			d += cell.docs
			n += cell.bytes
			c += cell.collections
		}
	}
	// The first second counts in full.
	span := max(time.Second, min(since, since-time.Duration(second-window+1)*time.Second))
	return float64(d) / span.Seconds(), float64(n) / span.Seconds(), float64(c) / span.Seconds()
}
