package storage

import (
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// RollbackTo undoes everything that was committed after the timestamp, data,
// catalog and oplog alike, and aborts every open unit that read or wrote later
// than it. It fails if at is before the stable timestamp.
func (w *Writer) RollbackTo(at bson.Timestamp) error {
	s, ts := w.s, packed(at)
	if ts < s.stable {
		return fmt.Errorf("storage: roll back to %s: entries before the stable timestamp %s are never undone", shown(at), shown(unpacked(s.stable)))
	}
	for _, u := range slices.Backward(s.open) {
		if max(u.readTS, u.prepared) > ts || s.sawUndone(u, ts) {
			u.Abort()
		}
	}
	touched := map[*table]bool{}
	left := 0
	for i := s.journal.len() - 1; i >= 0; i-- {
		if c := s.journal.at(i); c.durable > ts {
			s.undo(c, touched)
		}
	}
	for i := range s.journal.len() {
		if c := s.journal.at(i); c.durable <= ts {
			*s.journal.at(left) = *c
			left++
		}
	}
	s.journal.truncate(left)
	for t := range touched {
		t.recount()
	}
	s.newest = min(s.newest, ts)
	s.log.rollBack(ts)
	s.reopen()
	s.dirty = true
	return nil
}

// reopen opens the databases that hold a collection, and closes all others: a rollback ends by opening the catalog again (openCatalog in
// catalog_control.cpp).
func (s *Store) reopen() {
	clear(s.databases)
	for _, tables := range s.uuids {
		for _, t := range tables {
			for _, m := range []*version[*tableMeta]{t.meta, committed(t.meta)} { // units that are prepared stay
				if m != nil && !m.gone {
					s.databases[m.val.NS.DB()] = struct{}{}
				}
			}
		}
	}
}

// AbortAll aborts every open unit, prepared ones too, as the end of a process
// does. Prepared ones are prepared again from the oplog.
func (w *Writer) AbortAll() {
	for _, u := range slices.Backward(w.s.open) {
		u.Abort()
	}
}

// recount recomputes when the table was last changed, and its first document.
func (t *table) recount() {
	t.lastTS, t.lastSeq, t.firstLive = 0, 0, 0
	for _, p := range t.places.slots {
		if p.rec == nil {
			continue
		}
		if v := committed(p.rec.head); v != nil {
			t.lastTS, t.lastSeq = max(t.lastTS, v.ts), max(t.lastSeq, v.seq)
		}
	}
}

// sawUndone reports whether u sees a commit that a rollback to ts undoes: that of a
// unit that was prepared before ts and committed after it.
func (s *Store) sawUndone(u *Unit, ts uint64) bool {
	for i := range s.journal.len() {
		if c := s.journal.at(i); c.durable > ts && !u.isLater(c.ts, c.seq) {
			return true
		}
	}
	return false
}

// undo takes back one commit. Later ones have been undone already.
func (s *Store) undo(c *commit, touched map[*table]bool) {
	for _, f := range slices.Backward(c.slots) {
		f.undo()
	}
	for _, d := range slices.Backward(c.docs) {
		touched[d.t] = true
		unlink(&d.rec.head, d.v)
		d.t.account(d.v, d.v.prev)
		if d.rec.head == nil {
			d.t.remove(d.rec)
		}
	}
	for _, m := range slices.Backward(c.metas) {
		touched[m.t] = true
		s.undoMeta(m)
	}
}

// CloneAt returns a new Store with the data that a view at the timestamp sees,
// with the oplog up to that timestamp, and without the database local otherwise.
// It is the copy that an initial sync makes. Nothing older than the timestamp can
// be read from the copy, and it cannot be rolled back further. It fails with
// SnapshotTooOld if the time cannot be read any more.
func (s *Store) CloneAt(at bson.Timestamp, opts Options) (*Store, error) {
	release, err := s.Pin(at)
	if err != nil {
		return nil, err
	}
	defer release()
	s.mu.RLock()
	defer s.mu.RUnlock()
	ts := packed(at)
	if ts == 0 {
		ts = s.newest
	}
	c := New(opts)
	v := &view{s: s, ts: ts, seq: none}
	for _, tables := range s.uuids {
		for _, t := range tables {
			if m := seen(t.meta, v); m != nil && !t.local {
				if err := c.copyTable(t, m, v, opts.Records-s.opts.Records); err != nil {
					return nil, err
				}
			}
		}
	}
	c.log = s.log.copyTo(ts)
	c.newest, c.oldest, c.stable = ts, ts, ts
	return c, nil
}

// copyTable copies a collection of another store into s, as v sees it, with other record
// ids.
func (s *Store) copyTable(from *table, m *version[*tableMeta], v *view, shift RecordID) error {
	meta := m.val.clone()
	t := &table{uuid: from.uuid, lastID: from.lastID + shift}
	t.meta = &version[*tableMeta]{ts: m.ts, val: meta}
	for _, p := range from.places.slots {
		if p.rec == nil {
			continue
		}
		x := seen(p.rec.head, v)
		if x == nil {
			continue
		}
		r := &record{id: p.rec.id + shift, key: p.rec.key, head: &version[bson.Raw]{ts: x.ts, val: x.val}}
		r.older, _ = t.byID.Set(r.key, r)
		t.places.add(r)
		t.account(nil, r.head)
		t.lastTS = max(t.lastTS, x.ts)
	}
	s.file(t)
	s.databases[meta.NS.DB()] = struct{}{}
	newest := &view{s: s, ts: none, seq: none}
	for i, c := range meta.constraints {
		if c == nil {
			continue
		}
		var err error
		if meta.constraints[i], err = newConstraint(meta.Indexes[i].Spec, &s.opts); err != nil {
			return err
		}
		if err := t.fill(meta, meta.constraints[i], newest, true); err != nil {
			return err
		}
	}
	return nil
}

// Become replaces everything that s holds, the database local aside, by the
// contents of other: the end of an initial sync. Open units of both are aborted.
// other must not be used afterwards.
func (s *Store) Become(other *Store) {
	other.mu.Lock()
	defer other.mu.Unlock()
	s.mu.Lock()
	defer s.finishWrite()
	for _, st := range []*Store{s, other} {
		for len(st.open) > 0 {
			st.open[len(st.open)-1].Abort()
		}
	}
	var mine []*table
	for _, tables := range s.uuids {
		for _, t := range tables {
			if t.local {
				mine = append(mine, t)
			}
		}
	}
	s.names.Clear()
	_, local := s.databases[localDB]
	if s.databases = other.databases; local {
		s.databases[localDB] = struct{}{}
	}
	s.uuids = map[oplog.UUID][]*table{}
	for _, tables := range other.uuids {
		for _, t := range tables {
			if !t.local {
				mine = append(mine, t)
			}
		}
	}
	for _, t := range mine {
		s.file(t)
	}
	s.seq, s.newest, s.stable = max(s.seq, other.seq), other.newest, other.stable
	s.journal, s.log = other.journal, other.log
	s.pinMu.Lock()
	s.oldest = other.oldest
	s.pinMu.Unlock()
	s.dirty = true
}
