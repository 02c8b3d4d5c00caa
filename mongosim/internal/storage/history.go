package storage

import "go.mongodb.org/mongo-driver/v2/bson"

// commit has the changes of one unit, kept while they may be undone or the
// state before them may be read.
type commit struct {
	ts, seq uint64
	// durable is the timestamp of the oplog entry that stands for the commit: later
	// than ts for a prepared unit. A rollback goes by it.
	durable uint64
	docs    []docChange
	metas   []metaChange
	slots   []slotChange
}

type docChange struct {
	t   *table
	rec *record
	v   *version[bson.Raw]
}

type metaChange struct {
	t *table
	v *version[*tableMeta]
}

// slotChange is a unique key that was taken or freed.
type slotChange struct {
	local bool
	c     *constraint
	slot  *slot
	// holder, ts and seq are the former values of the slot.
	holder  *record
	ts, seq uint64
}

// undo restores the slot.
func (f *slotChange) undo() {
	f.slot.holder, f.slot.kept, f.slot.ts, f.slot.seq = f.holder, f.holder, f.ts, f.seq
	if f.holder == nil && f.seq == 0 {
		delete(f.c.slots, f.slot.key)
	}
}

// prune drops versions that can no longer be read. It is called only at the end
// of a Write, so that it does not remove records during a loop.
func (s *Store) prune() {
	ts, seq := s.horizon()
	for {
		c, ok := s.journal.front()
		// Older commits after one that is still needed wait.
		if !ok || c.ts > ts || c.seq > seq || c.durable > s.stable {
			break
		}
		s.forget(c)
		s.journal.popFront()
	}
	s.log.trim(s.opts.OplogBytes, s.stable)
}

// horizon returns the point up to which the history can be dropped, as a
// timestamp and as a number of commits.
func (s *Store) horizon() (ts, seq uint64) {
	if history := uint64(s.opts.HistorySeconds) << 32; s.stable > history {
		ts = s.stable - history
	}
	seq = none
	for _, u := range s.open {
		ts, seq = min(ts, u.readTS), min(seq, u.view.seq)
	}
	s.pinMu.Lock()
	defer s.pinMu.Unlock()
	for pinned := range s.pins {
		ts = min(ts, pinned)
	}
	// Never back: dropped versions cannot be read again.
	s.oldest = max(s.oldest, ts)
	return s.oldest, seq
}

// forget drops the versions that c replaced.
func (s *Store) forget(c *commit) {
	for _, d := range c.docs {
		d.v.prev = nil
		if d.v.gone {
			d.t.remove(d.rec)
		}
	}
	for _, m := range c.metas {
		past := m.v.prev
		m.v.prev = nil
		for ; past != nil; past = past.prev {
			if !past.gone {
				s.refile(m.t, past.val.NS)
			}
		}
		if m.v.gone {
			s.discard(m.t)
		}
	}
	for _, f := range c.slots {
		if f.slot.holder == nil && f.slot.unit == nil && f.slot.seq == c.seq {
			delete(f.c.slots, f.slot.key)
		}
	}
}

// deque is a queue that grows at the back and shrinks at both ends.
type deque[T any] struct {
	items []T
	head  int
}

func (d *deque[T]) len() int { return len(d.items) - d.head }

func (d *deque[T]) at(i int) *T { return &d.items[d.head+i] }

func (d *deque[T]) pushBack(item T) { d.items = append(d.items, item) }

func (d *deque[T]) front() (*T, bool) {
	if d.len() == 0 {
		return nil, false
	}
	return d.at(0), true
}

func (d *deque[T]) popFront() {
	var zero T
	d.items[d.head] = zero
	d.head++
	// Moving the rest costs no more than was taken.
	if d.head > 32 && d.head > len(d.items)/2 {
		n := copy(d.items, d.items[d.head:])
		clear(d.items[n:])
		d.items, d.head = d.items[:n], 0
		if cap(d.items) > 1024 && n < cap(d.items)/4 {
			d.items = append(make([]T, 0, n*2), d.items...)
		}
	}
}

// truncate keeps the first n.
func (d *deque[T]) truncate(n int) {
	clear(d.items[d.head+n:])
	d.items = d.items[:d.head+n]
}
