package storage

import (
	"slices"
	"sort"

	"github.com/tidwall/btree"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsonorder"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/oplog"
)

// record is a place in a collection, with all versions of the document there. It
// is not used again once its document is deleted.
type record struct {
	id RecordID
	// key is bsonorder's key of the document's _id, "" without one.
	key  string
	head *version[bson.Raw]
	// older is the place that a document of equal _id had before.
	older *record
}

// table is a collection from its creation until it can no longer be read.
type table struct {
	uuid oplog.UUID
	// meta is its catalog record.
	meta *version[*tableMeta]
	// local tables have no versions.
	local bool

	places places
	// byID has the newest place for each _id.
	byID   btree.Map[string, *record]
	lastID RecordID

	// count and bytes are those of the newest committed state, which has been the
	// same since lastTS and lastSeq.
	count           int
	bytes           int64
	lastTS, lastSeq uint64
	// firstLive is a place before which no document is left in the newest committed
	// state.
	firstLive RecordID
}

// idKey appends the key of a document's _id. It is empty if there is none.
func idKey(dst []byte, doc bson.Raw, coll *bsonorder.Collator) []byte {
	if id, ok := rawbson.Lookup(doc, "_id"); ok {
		return bsonorder.AppendKey(dst, id.Raw(), coll)
	}
	return dst
}

// add makes a place for a new document at the end.
func (t *table) add(key string) *record {
	t.lastID++
	r := &record{id: t.lastID, key: key}
	r.older, _ = t.byID.Set(key, r)
	t.places.add(r)
	return r
}

// remove forgets a place.
func (t *table) remove(r *record) {
	if !t.places.remove(r.id) {
		return
	}
	newest, _ := t.byID.Get(r.key)
	switch {
	case newest != r:
		for newest != nil && newest.older != r {
			newest = newest.older
		}
		if newest != nil {
			newest.older = r.older
		}
	case r.older != nil:
		t.byID.Set(r.key, r.older)
	default:
		t.byID.Delete(r.key)
	}
}

// account counts the change from one committed state of a document to the next.
func (t *table) account(before, after *version[bson.Raw]) {
	if before != nil && !before.gone {
		t.count--
		t.bytes -= int64(len(before.val))
	}
	if after != nil && !after.gone {
		t.count++
		t.bytes += int64(len(after.val))
	}
}

// advance moves firstLive over deleted records, after r was deleted. Without it
// each search for the oldest document would walk over all records that are kept
// only for older timestamps.
func (t *table) advance(r *record) {
	if r.id > t.firstLive && t.firstLive > 0 {
		return
	}
	for i := t.places.after(t.firstLive - 1); i < len(t.places.slots); i++ {
		p := t.places.slots[i]
		if p.rec != nil && (p.rec.head.unit != nil || !p.rec.head.gone) {
			t.firstLive = p.id
			return
		}
	}
	t.firstLive = t.lastID + 1
}

// places are the records of a table in natural order: a slice, for nearly all of
// them come at the end.
type places struct {
	slots []place
	// holes counts removed records, first the slots in front that are holes.
	holes, first int
	// moved changes when slots get another index.
	moved int
}

type place struct {
	id  RecordID
	rec *record // nil for a hole
}

func (p *places) add(r *record) { p.slots = append(p.slots, place{r.id, r}) }

// after returns the index of the first slot after id.
func (p *places) after(id RecordID) int {
	if id < 1 {
		return p.first
	}
	if i := p.guess(id); i >= 0 {
		return i + 1
	}
	return max(p.first, sort.Search(len(p.slots), func(i int) bool { return p.slots[i].id > id }))
}

// before returns the index of the last slot before id, or -1; 0 stands for the
// end.
func (p *places) before(id RecordID) int {
	if id < 1 {
		return len(p.slots) - 1
	}
	if i := p.guess(id); i >= 0 {
		return i - 1
	}
	return sort.Search(len(p.slots), func(i int) bool { return p.slots[i].id >= id }) - 1
}

// guess returns the index of id if no slot was ever taken out before it, else -1.
func (p *places) guess(id RecordID) int {
	if len(p.slots) == 0 {
		return -1
	}
	i := int(id - p.slots[0].id)
	if i < 0 || i >= len(p.slots) || p.slots[i].id != id {
		return -1
	}
	return i
}

func (p *places) find(id RecordID) int {
	if i := p.guess(id); i >= 0 {
		return i
	}
	i := sort.Search(len(p.slots), func(i int) bool { return p.slots[i].id >= id })
	if i == len(p.slots) || p.slots[i].id != id {
		return -1
	}
	return i
}

func (p *places) get(id RecordID) *record {
	if i := p.find(id); i >= 0 {
		return p.slots[i].rec
	}
	return nil
}

func (p *places) remove(id RecordID) bool {
	i := p.find(id)
	if i < 0 || p.slots[i].rec == nil {
		return false
	}
	p.slots[i].rec = nil
	p.holes++
	for n := len(p.slots); n > 0 && p.slots[n-1].rec == nil; n-- {
		p.slots = p.slots[:n-1]
		p.holes--
		p.moved++
	}
	p.first = min(p.first, len(p.slots))
	for p.first < len(p.slots) && p.slots[p.first].rec == nil {
		p.first++
	}
	if p.holes > 32 && p.holes > len(p.slots)/2 {
		p.slots = slices.Clone(slices.DeleteFunc(p.slots, func(s place) bool { return s.rec == nil }))
		p.holes, p.first = 0, 0
		p.moved++
	}
	return true
}
