package storage

import (
	"iter"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
)

// RecordID is the place of a document in its collection: natural order is the
// order of record ids, but for clustered collections. Valid ids are above 0.
type RecordID int64

// Record is a stored document. The document never changes and may be kept.
type Record struct {
	ID  RecordID
	Doc bson.Raw
}

// Collection is a collection as a View shows it.
type Collection struct {
	Meta
	clustered bool
	t         *table
	v         View
}

// show returns the record as the view sees it.
func (c *Collection) show(r *record) (Record, bool) {
	v := seen(r.head, c.v.v)
	if v == nil {
		return Record{}, false
	}
	return Record{r.id, v.val}, true
}

// Get returns the document with the _id, by the collection's collation.
func (c *Collection) Get(id bson.RawValue) (Record, bool) {
	var buf [64]byte
	key := bsonorder.AppendKey(buf[:0], id, c.Collator)
	r, _ := c.t.byID.Get(rawbson.View(key))
	for ; r != nil; r = r.older {
		if shown, ok := c.show(r); ok {
			return shown, true
		}
	}
	return Record{}, false
}

// Record returns the document at the place.
func (c *Collection) Record(id RecordID) (Record, bool) {
	r := c.t.places.get(id)
	if r == nil {
		return Record{}, false
	}
	return c.show(r)
}

// Natural yields the documents after a place, in natural order; 0 means from the
// start. Documents that the loop's body inserts may or may not be met.
//
// The natural order of a clustered collection is that of _id. There, a place
// whose document is gone from all times that are kept ends the loop: use ByID to
// go on in such a collection.
func (c *Collection) Natural(after RecordID) iter.Seq[Record] {
	if c.clustered {
		return c.clusteredFrom(after, false)
	}
	return func(yield func(Record) bool) {
		p := &c.t.places
		last := after
		i, moved := p.after(last), p.moved
		for {
			if moved != p.moved {
				i, moved = p.after(last), p.moved
			}
			if i >= len(p.slots) {
				return
			}
			at := p.slots[i]
			i++
			if at.rec == nil {
				continue
			}
			last = at.id
			if r, ok := c.show(at.rec); ok && !yield(r) {
				return
			}
		}
	}
}

// NaturalBackward yields the documents before a place, newest place first; 0
// means from the end.
func (c *Collection) NaturalBackward(before RecordID) iter.Seq[Record] {
	if c.clustered {
		return c.clusteredFrom(before, true)
	}
	return func(yield func(Record) bool) {
		p := &c.t.places
		last := before
		i, moved := p.before(last), p.moved
		for {
			if moved != p.moved {
				i, moved = p.before(last), p.moved
			}
			if i < 0 {
				return
			}
			at := p.slots[i]
			i--
			if at.rec == nil {
				continue
			}
			last = at.id
			if r, ok := c.show(at.rec); ok && !yield(r) {
				return
			}
		}
	}
}

func (c *Collection) clusteredFrom(place RecordID, reverse bool) iter.Seq[Record] {
	w := idWalk{reverse: reverse}
	if place > 0 {
		r := c.t.places.get(place)
		if r == nil {
			return func(func(Record) bool) {}
		}
		if reverse {
			w.hi, w.hasHi = r.key, true
		} else {
			w.lo, w.hasLo = r.key, true
		}
	}
	return c.walk(w)
}

// Bound is one end of a range of _id values. The zero Bound means no bound.
type Bound struct {
	Value     bson.RawValue
	Inclusive bool
}

// ByID yields the documents whose _id is between the bounds, in the order of
// _id (all types in the server's order), or backwards.
func (c *Collection) ByID(lo, hi Bound, reverse bool) iter.Seq[Record] {
	w := idWalk{reverse: reverse, withLo: lo.Inclusive, withHi: hi.Inclusive}
	if lo.Value.Type != 0 {
		w.lo, w.hasLo = string(bsonorder.AppendKey(nil, lo.Value, c.Collator)), true
	}
	if hi.Value.Type != 0 {
		w.hi, w.hasHi = string(bsonorder.AppendKey(nil, hi.Value, c.Collator)), true
	}
	return c.walk(w)
}

// idWalk is a range of _id keys that is left to be walked over.
type idWalk struct {
	lo, hi         string
	hasLo, hasHi   bool
	withLo, withHi bool
	reverse        bool
}

// walk yields the records of the range that the view sees. It reads some keys at
// a time, so that the loop's body may change the tree.
func (c *Collection) walk(w idWalk) iter.Seq[Record] {
	return func(yield func(Record) bool) {
		w := w
		const most = 128
		buf := make([]*record, 0, 4)
		for size := 4; ; size = min(size*4, most) {
			if buf = w.read(c.t, buf[:0], size); len(buf) == 0 {
				return
			}
			last := buf[len(buf)-1].key
			if w.reverse {
				w.hi, w.hasHi, w.withHi = last, true, false
			} else {
				w.lo, w.hasLo, w.withLo = last, true, false
			}
			for _, r := range buf {
				for ; r != nil; r = r.older {
					if shown, ok := c.show(r); ok && !yield(shown) {
						return
					}
				}
			}
		}
	}
}

// read returns the next records of the range, up to n.
func (w *idWalk) read(t *table, buf []*record, n int) []*record {
	visit := func(key string, r *record) bool {
		switch {
		case w.hasLo && (key < w.lo || key == w.lo && !w.withLo):
			return !w.reverse
		case w.hasHi && (key > w.hi || key == w.hi && !w.withHi):
			return w.reverse
		}
		buf = append(buf, r)
		return len(buf) < n
	}
	switch {
	case !w.reverse && w.hasLo:
		t.byID.Ascend(w.lo, visit)
	case !w.reverse:
		t.byID.Scan(visit)
	case w.hasHi:
		t.byID.Descend(w.hi, visit)
	default:
		t.byID.Reverse(visit)
	}
	return buf
}

// Len returns the number of documents.
func (c *Collection) Len() int {
	n, _ := c.totals()
	return n
}

// Bytes returns the size of the documents together, in bytes.
func (c *Collection) Bytes() int64 {
	_, n := c.totals()
	return n
}

// newest reports whether the view shows all that was committed.
func (c *Collection) newest() bool {
	return c.t.lastTS <= c.v.v.ts && c.t.lastSeq <= c.v.v.seq
}

// totals are counters at the newest state, and counted at older ones.
func (c *Collection) totals() (count int, bytes int64) {
	t, v := c.t, c.v.v
	if c.newest() {
		count, bytes = t.count, t.bytes
		if v.u != nil {
			change, _ := v.u.size(t)
			count += change.count
			bytes += change.bytes
		}
		return count, bytes
	}
	for _, p := range t.places.slots {
		if p.rec == nil {
			continue
		}
		if x := seen(p.rec.head, v); x != nil {
			count++
			bytes += int64(len(x.val))
		}
	}
	return count, bytes
}

// Excess returns the oldest documents that a capped collection is over its limits
// by, never the newest of all: what a primary deletes after an insert.
func (c *Collection) Excess() []Record {
	if c.CappedBytes <= 0 {
		return nil
	}
	count, bytes := c.totals()
	if bytes <= c.CappedBytes && (c.CappedDocs == 0 || int64(count) <= c.CappedDocs) {
		return nil
	}
	var excess []Record
	start := RecordID(0)
	if c.newest() {
		start = c.t.firstLive - 1
	}
	for r := range c.Natural(start) {
		if count <= 1 || bytes <= c.CappedBytes && (c.CappedDocs == 0 || int64(count) <= c.CappedDocs) {
			break
		}
		excess = append(excess, r)
		count--
		bytes -= int64(len(r.Doc))
	}
	return excess
}
