package storage

import (
	"bytes"
	"fmt"
	"iter"
	"sort"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// OplogEntry is one stored entry. Raw never changes and may be kept.
type OplogEntry struct {
	At  oplog.OpTime
	Raw bson.Raw
}

// oplogEntries is the oplog, oldest entry first.
type oplogEntries struct {
	entries deque[OplogEntry]
	// dropped counts the entries that were once in front: with it, a place in the
	// oplog has a stable number.
	dropped int
	bytes   int64
	// holds are the timestamps from which on entries are needed, and those of the
	// entries that end the need, 0 while there is none.
	holds map[uint64]uint64
}

func (l *oplogEntries) add(raw bson.Raw, at oplog.OpTime) {
	if n := l.entries.len(); n > 0 {
		if last := l.entries.at(n - 1).At; packed(at.TS) <= packed(last.TS) || at.Before(last) {
			panic(fmt.Sprintf("storage: invariant: the oplog ascends: %s appended after %s", at, last))
		}
	}
	l.entries.pushBack(OplogEntry{At: at, Raw: bytes.Clone(raw)})
	l.bytes += int64(len(raw))
}

// trim drops the oldest entries while there are more than limit bytes, but none
// after the stable timestamp, none that is held, and never the newest.
func (l *oplogEntries) trim(limit int64, stable uint64) {
	last := stable
	for from, until := range l.holds {
		if until != 0 && until <= stable {
			delete(l.holds, from)
			continue
		}
		last = min(last, from-1)
	}
	for l.bytes > limit && l.entries.len() > 1 {
		oldest := l.entries.at(0)
		if packed(oldest.At.TS) > last {
			return
		}
		l.bytes -= int64(len(oldest.Raw))
		l.entries.popFront()
		l.dropped++
	}
}

// find returns how many entries are before ts.
func (l *oplogEntries) find(ts uint64) int {
	return sort.Search(l.entries.len(), func(i int) bool { return packed(l.entries.at(i).At.TS) >= ts })
}

// rollBack drops the entries after ts.
func (l *oplogEntries) rollBack(ts uint64) {
	n := l.entries.len()
	for n > 0 && packed(l.entries.at(n-1).At.TS) > ts {
		n--
		l.bytes -= int64(len(l.entries.at(n).Raw))
	}
	l.entries.truncate(n)
	l.holds = l.holdsAt(ts)
}

// holdsAt returns the holds at ts.
func (l *oplogEntries) holdsAt(ts uint64) map[uint64]uint64 {
	then := map[uint64]uint64{}
	for from, until := range l.holds {
		if until > ts {
			until = 0
		}
		if from <= ts {
			then[from] = until
		}
	}
	return then
}

// copyTo returns the oplog up to ts.
func (l *oplogEntries) copyTo(ts uint64) oplogEntries {
	c := oplogEntries{holds: l.holdsAt(ts)}
	for i := range l.entries.len() {
		e := *l.entries.at(i)
		if packed(e.At.TS) > ts {
			break
		}
		c.entries.pushBack(e)
		c.bytes += int64(len(e.Raw))
	}
	return c
}

// HoldOplog keeps the entries from the timestamp on, however large the oplog gets:
// those of an undecided transaction, from which a restart prepares it again. Zero
// holds nothing.
func (w *Writer) HoldOplog(from bson.Timestamp) {
	if from.IsZero() {
		return
	}
	if w.s.log.holds == nil {
		w.s.log.holds = map[uint64]uint64{}
	}
	w.s.log.holds[packed(from)] = 0
}

// ReleaseOplog ends what HoldOplog began at the same timestamp, once the entry that
// ends the need for it is stable.
func (w *Writer) ReleaseOplog(from, until bson.Timestamp) {
	if _, held := w.s.log.holds[packed(from)]; held {
		w.s.log.holds[packed(from)] = packed(until)
	}
}

// OplogView is the oplog as it stands, within Store.Read or Store.Write.
type OplogView struct{ s *Store }

// Last returns the newest entry.
func (v OplogView) Last() (OplogEntry, bool) { return v.entry(v.Len() - 1) }

func (v OplogView) entry(i int) (OplogEntry, bool) {
	if i < 0 || i >= v.Len() {
		return OplogEntry{}, false
	}
	return *v.s.log.entries.at(i), true
}

// At returns the entry with exactly this timestamp.
func (v OplogView) At(ts bson.Timestamp) (OplogEntry, bool) {
	e, ok := v.entry(v.s.log.find(packed(ts)))
	if !ok || e.At.TS != ts {
		return OplogEntry{}, false
	}
	return e, true
}

// From yields the entries whose timestamp is at or after ts, oldest first.
// Entries that the loop's body appends are included.
func (v OplogView) From(ts bson.Timestamp) iter.Seq[OplogEntry] {
	return func(yield func(OplogEntry) bool) {
		log := &v.s.log
		for at := log.dropped + log.find(packed(ts)); ; at++ {
			at = max(at, log.dropped)
			e, ok := v.entry(at - log.dropped)
			if !ok || !yield(e) {
				return
			}
		}
	}
}

// Backward yields the entries whose timestamp is at or before ts, newest first;
// the zero timestamp means all.
func (v OplogView) Backward(ts bson.Timestamp) iter.Seq[OplogEntry] {
	return func(yield func(OplogEntry) bool) {
		log := &v.s.log
		n := v.Len()
		if before := packed(ts); before != 0 && before != none {
			n = log.find(before + 1)
		}
		for at := log.dropped + n - 1; ; at-- {
			e, ok := v.entry(at - log.dropped)
			if !ok || !yield(e) {
				return
			}
		}
	}
}

// Len returns the number of entries.
func (v OplogView) Len() int { return v.s.log.entries.len() }

// Bytes returns the size of the entries together, in bytes.
func (v OplogView) Bytes() int64 { return v.s.log.bytes }

// MaxBytes returns how much of the oplog is kept, in bytes.
func (v OplogView) MaxBytes() int64 { return v.s.opts.OplogBytes }
