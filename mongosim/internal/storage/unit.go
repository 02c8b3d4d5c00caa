package storage

import (
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// ErrWriteConflict is returned by a write to a document (or catalog entry) that
// another open unit has changed, or that was changed after this unit's snapshot.
var ErrWriteConflict = errors.New("storage: write conflict")

// ErrEnded is returned by a write through a unit that has committed, aborted or
// been prepared. A rollback aborts units too.
var ErrEnded = errors.New("storage: the unit has ended")

// ErrNoRecord is returned by a change to a place where the unit sees no document.
var ErrNoRecord = errors.New("storage: no document at the place")

// Unit is a unit of work: all of it is seen from one timestamp on, or none of it
// ever. Its methods may be called only within Store.Write.
//
// Collections are named by UUID. A refused write (a duplicate key is a
// *servererr.Error with the server's message, keyPattern and keyValue) leaves the
// unit as it was before that write.
type Unit struct {
	s    *Store
	view view
	// readTS is the snapshot's timestamp, place the index in the store's open units.
	readTS uint64
	place  int
	// prepared is the prepare timestamp, 0 before.
	prepared             uint64
	kept, ended, relaxed bool

	docs  []docChange
	metas []metaChange
	slots []slotChange
	// sizes has the changes in size of the collections that the unit wrote to.
	sizes []sizeChange
	// oneSize is room for the usual case.
	oneSize [1]sizeChange
}

type sizeChange struct {
	t     *table
	count int
	bytes int64
}

// View shows the unit's snapshot together with its own changes.
func (u *Unit) View() View { return View{&u.view} }

// Keep lets the unit outlive the Store.Write in which it was begun.
func (u *Unit) Keep() { u.kept = true }

// Open reports whether the unit can still commit.
func (u *Unit) Open() bool { return !u.ended }

// Relax makes the unit's inserts and updates disregard the constraints of all
// indexes but that on _id, as the server's appliers do during an initial sync:
// entries are stored as logged.
func (u *Unit) Relax() { u.relaxed = true }

// Changed reports whether the unit has changed anything.
func (u *Unit) Changed() bool { return len(u.docs) > 0 || len(u.metas) > 0 }

// isLater reports whether a commit at ts, with number seq, is not part of the
// unit's snapshot.
func (u *Unit) isLater(ts, seq uint64) bool { return ts > u.view.ts || seq > u.view.seq }

func (u *Unit) resize(t *table, count int, bytes int) {
	for i := range u.sizes {
		if u.sizes[i].t == t {
			u.sizes[i].count += count
			u.sizes[i].bytes += int64(bytes)
			return
		}
	}
	if u.sizes == nil {
		u.sizes = u.oneSize[:0]
	}
	u.sizes = append(u.sizes, sizeChange{t, count, int64(bytes)})
}

// size returns the unit's change in size of t; wrote is false if it did not write
// to it.
func (u *Unit) size(t *table) (change sizeChange, wrote bool) {
	for _, c := range u.sizes {
		if c.t == t {
			return c, true
		}
	}
	return sizeChange{}, false
}

// Commit makes the unit's changes seen at the timestamp. A zero timestamp is for
// units that changed nothing outside of databases without versions. The
// timestamp must not be before any commit to the same documents. Breaking either
// rule, or committing a unit that is not open, panics.
func (u *Unit) Commit(at bson.Timestamp) { u.CommitAt(at, at) }

// CommitAt is Commit for a prepared unit: its changes are seen at the timestamp
// commit, while the entry that says so has the timestamp durable. A rollback to a
// time before durable undoes them.
func (u *Unit) CommitAt(at, durable bson.Timestamp) {
	ts := packed(at)
	switch {
	case u.ended:
		panic("storage: invariant: a unit ends once")
	case ts < u.prepared:
		panic(fmt.Sprintf("storage: invariant: no commit, at %s, before its prepare, at %s", shown(at), shown(unpacked(u.prepared))))
	}
	u.end()
	if !u.Changed() {
		return
	}
	s := u.s
	s.seq++
	s.dirty = true
	// Changes that will not be needed are removed in place: the unit no longer
	// uses them.
	c := commit{
		ts: ts, seq: s.seq, durable: max(ts, packed(durable)),
		docs: u.docs[:0], metas: u.metas[:0], slots: u.slots[:0],
	}
	for _, d := range u.docs {
		if u.commitDoc(&c, d) {
			c.docs = append(c.docs, d)
		}
	}
	for _, m := range u.metas {
		if u.commitMeta(&c, m) {
			c.metas = append(c.metas, m)
		}
	}
	for _, f := range u.slots {
		if u.commitSlot(&c, &f) {
			c.slots = append(c.slots, f)
		}
	}
	if ts > 0 {
		s.newest = max(s.newest, ts)
		s.journal.pushBack(c)
	}
}

// checkOrder panics if a version would come before the one that it replaces.
func checkOrder(c *commit, before uint64) {
	switch {
	case c.ts == 0:
		panic("storage: invariant: only databases without versions commit at no time")
	case c.ts < before:
		panic(fmt.Sprintf("storage: invariant: versions ascend: commit at %s after %s", shown(unpacked(c.ts)), shown(unpacked(before))))
	}
}

// commitDoc reports whether the change has to be in the journal.
func (u *Unit) commitDoc(c *commit, d docChange) bool {
	v := d.v
	d.t.account(v.prev, v)
	v.unit = nil
	if d.t.local {
		v.prev = nil
		if v.gone {
			d.t.remove(d.rec)
		}
		return false
	}
	if v.prev != nil {
		checkOrder(c, v.prev.ts)
	} else {
		checkOrder(c, 0)
	}
	v.ts, v.seq = c.ts, c.seq
	if v.gone && v.prev == nil { // inserted and deleted again
		d.t.remove(d.rec)
		return false
	}
	d.t.lastTS, d.t.lastSeq = max(d.t.lastTS, c.ts), c.seq
	if v.gone {
		d.t.advance(d.rec)
	}
	return true
}

func (u *Unit) commitMeta(c *commit, m metaChange) bool {
	v := m.v
	v.unit = nil
	if m.t.local {
		u.s.forget(&commit{metas: []metaChange{m}})
		return false
	}
	if v.prev != nil {
		checkOrder(c, v.prev.ts)
	} else {
		checkOrder(c, 0)
	}
	v.ts, v.seq = c.ts, c.seq
	if v.gone && v.prev == nil { // created and dropped again
		u.s.discard(m.t)
		return false
	}
	return true
}

func (u *Unit) commitSlot(c *commit, f *slotChange) bool {
	slot := f.slot
	f.holder, f.ts, f.seq = slot.kept, slot.ts, slot.seq
	slot.unit, slot.kept = nil, slot.holder
	if f.local {
		if slot.holder == nil {
			delete(f.c.slots, slot.key)
		}
		return false
	}
	// A free slot stays for a while: writers with older snapshots must notice.
	slot.ts, slot.seq = c.ts, c.seq
	return true
}

// Prepare keeps the unit's changes, unseen and in conflict with every other
// writer, until Commit (whose timestamp is at or after this one) or Abort. The
// unit cannot write any more. Preparing a unit that is not open panics.
func (u *Unit) Prepare(at bson.Timestamp) {
	if u.ended {
		panic("storage: invariant: a unit that has ended is not prepared")
	}
	u.prepared = max(packed(at), 1)
	u.kept = true
}

// Abort drops the unit's changes. On a unit that has ended it does nothing.
func (u *Unit) Abort() {
	if u.ended {
		return
	}
	u.end()
	for _, f := range slices.Backward(u.slots) {
		f.slot.holder, f.slot.unit = f.slot.kept, nil
		if f.slot.holder == nil && f.slot.seq == 0 {
			delete(f.c.slots, f.slot.key)
		}
	}
	for _, d := range slices.Backward(u.docs) {
		unlink(&d.rec.head, d.v)
		if d.rec.head == nil {
			d.t.remove(d.rec)
		}
	}
	for _, m := range slices.Backward(u.metas) {
		u.s.undoMeta(m)
	}
}

// undoMeta takes a version out of the catalog.
func (s *Store) undoMeta(m metaChange) {
	unlink(&m.t.meta, m.v)
	if !m.v.gone {
		s.refile(m.t, m.v.val.NS)
	}
	if m.t.meta == nil {
		s.discard(m.t)
	}
}

// end takes the unit out of the open ones.
func (u *Unit) end() {
	u.ended = true
	open := u.s.open
	last := len(open) - 1
	open[u.place] = open[last]
	open[u.place].place = u.place
	open[last] = nil
	u.s.open = open[:last]
}
