package guard

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// Limits of a State.
const (
	// keptWrites is how many foreign writes are kept, the newest ones.
	keptWrites = 20
	// keptNamespaces is how many namespaces with foreign writes are listed.
	keptNamespaces = 100
	// keptGaps is how many gaps are kept, the newest ones.
	keptGaps = 10
	// keptParts is how many parts are known, the newest ones.
	keptParts = 64
	// mostID limits the text of an _id, in bytes.
	mostID = 200
)

// Write is a foreign write.
type Write struct {
	// OpTime is the entry's in the target's oplog, Wall the clock of the target's primary when
	// it was logged.
	OpTime oplog.OpTime
	Wall   time.Time
	// Kind is insert, update, delete, or the name of a command; To is the new name of a rename.
	Kind   string
	NS, To oplog.Namespace
	// ID is the _id as text, empty for a command.
	ID string
	// Now and NowTo are the present names of NS and To if the link has renamed them since, empty otherwise. Gone and GoneTo mean that the foreign
	// writes to NS or To up to this one are dealt with.
	Now, NowTo   oplog.Namespace
	Gone, GoneTo bool
	// Session is the client's session, the hexadecimal digits of its UUID; empty if the entry
	// has none. Txn is the number of its transaction or retryable write.
	Session string
	Txn     int64
}

// Touched is a namespace with foreign writes: its content is not known to be the source's.
type Touched struct {
	// NS is its name on the target, Source at the source.
	NS, Source oplog.Namespace
	Count      int64
	// Twice is how many of Count another namespace counts as well: renames to this one. Once that is dealt with, it counts them only if they
	// are not among State.Writes any more.
	Twice       int64
	First, Last time.Time
	// Made means that the first one made it, as a temporary collection. One that was there before may be the link's.
	Made bool
	// Until is the timestamp of the entry of the last one. Walls do not order writes: after a failover
	// they are of another clock.
	Until bson.Timestamp
	// Copying means that the collection is copied again since.
	Copying bool
	// During is when the copy was requested that was running when the last one was examined, zero for none:
	// a write to a collection while it is copied may stay in it.
	During time.Time
}

// Copy is a copy of a collection that is made again. The zero value is none.
type Copy struct {
	// Asked is when it was requested. After is a timestamp of the target's oplog before the copy began to
	// read or write, so that it replaces everything written until then; zero if it is not known.
	Asked time.Time
	After bson.Timestamp
}

// Gap is a time in which the target's oplog was not watched.
type Gap struct {
	From, To time.Time
	// Why is the reason.
	Why string
}

// Part is a link that copies a collection for another one.
type Part struct{ Link, Instance string }

// Announced is a command that was announced and not answered, as far as the oplog was examined.
type Announced struct {
	// ID is the _id of its document.
	ID      bson.RawValue
	Command string
	NS, To  oplog.Namespace
}

// State has the findings about foreign writes to a link's target.
type State struct {
	// Term is that of the leader that wrote it.
	Term int64
	// At is the entry up to which the target's oplog is examined, null if none is. Wall is its
	// time, in milliseconds since the epoch.
	At   oplog.OpTime
	Wall int64
	// CommandsFrom is the entry after which commands are judged.
	CommandsFrom oplog.OpTime
	// Open are the announced commands, Parts the link's parts.
	Open  []Announced
	Parts []Part
	// Counts are the numbers of foreign writes by kind. Writes are the newest, the newest first.
	Counts map[string]int64
	Writes []Write
	// Touched are the namespaces with foreign writes that have neither been copied again nor
	// cleared, by name. More counts the writes to those that are not listed.
	Touched []Touched
	More    int64
	// MoreLast is when the last of those was, MoreUntil the timestamp of its entry: any namespace may
	// differ from the source's.
	MoreLast  time.Time
	MoreUntil bson.Timestamp
	// Gaps are the newest gaps, the newest first.
	Gaps []Gap
	// Cleared is the timestamp of the target's oplog up to which an operator has cleared foreign writes.
	Cleared bson.Timestamp
}

// Total returns the number of foreign writes.
func (s *State) Total() (n int64) {
	for _, c := range s.Counts {
		n += c
	}
	return n
}

// IsTouched reports whether there are foreign writes that are not dealt with.
func (s *State) IsTouched() bool { return len(s.Touched) > 0 || s.More > 0 }

// AddPart records a part of the link.
func (s *State) AddPart(p Part) (added bool) {
	if slices.Contains(s.Parts, p) {
		return false
	}
	s.Parts = append(s.Parts, p)
	if n := len(s.Parts) - keptParts; n > 0 {
		s.Parts = slices.Delete(s.Parts, 0, n)
	}
	return true
}

// clone returns a copy that shares nothing that changes.
func (s *State) clone() State {
	c := *s
	c.Open, c.Parts, c.Writes = slices.Clone(s.Open), slices.Clone(s.Parts), slices.Clone(s.Writes)
	c.Touched, c.Gaps, c.Counts = slices.Clone(s.Touched), slices.Clone(s.Gaps), maps.Clone(s.Counts)
	return c
}

// add records a foreign write.
func (s *State) add(w *Write) {
	if s.Counts == nil {
		s.Counts = map[string]int64{}
	}
	s.Counts[w.Kind]++
	s.Writes = slices.Insert(s.Writes, 0, *w)
	s.Writes = s.Writes[:min(len(s.Writes), keptWrites)]
}

// after returns the timestamp of a foreign write, moved to later than s.Cleared, which reaches to the end of a
// second if an earlier release has set it. Otherwise the write could not be cleared.
func (s *State) after(until bson.Timestamp) bson.Timestamp {
	if s.Cleared.IsZero() || until.After(s.Cleared) {
		return until
	}
	return bson.Timestamp{T: s.Cleared.T + 1}
}

// UpTo returns the timestamp of the target's oplog up to which all is to be cleared that is known.
func (s *State) UpTo() bson.Timestamp {
	upTo := s.Cleared
	later := func(ts bson.Timestamp) {
		if ts.After(upTo) {
			upTo = ts
		}
	}
	for i := range s.Touched {
		later(s.Touched[i].Until)
	}
	later(s.MoreUntil)
	if len(s.Writes) > 0 {
		later(s.Writes[0].OpTime.TS)
	}
	return upTo
}

// find returns where a namespace is, or would be, in Touched.
func (s *State) find(ns oplog.Namespace) (i int, found bool) {
	return slices.BinarySearchFunc(s.Touched, ns, func(t Touched, ns oplog.Namespace) int { return cmp.Compare(t.NS, ns) })
}

// forget forgets a namespace which something else has made, and which is gone, and will not come again.
func (s *State) forget(ns oplog.Namespace) (was Touched) {
	if i, found := s.find(ns); found && s.Touched[i].Made {
		was = s.Touched[i]
		s.Touched = slices.Delete(s.Touched, i, i+1)
	}
	return was
}

// completed counts the writes to a namespace with those to the one that it was renamed to, if that is listed.
func (s *State) completed(to oplog.Namespace, was *Touched) {
	if i, found := s.find(to); found {
		t := &s.Touched[i]
		t.Count, t.Twice = t.Count+was.Count, t.Twice+was.Twice
		if was.First.Before(t.First) {
			t.First = was.First
		}
	}
}

// touch records a foreign write to a namespace that is mirrored from source; twice if another namespace counts it, too.
func (s *State) touch(ns, source oplog.Namespace, w *Write, copied Copy, twice bool) {
	at, until := w.Wall, s.after(w.OpTime.TS)
	i, found := s.find(ns)
	switch {
	case !found && len(s.Touched) >= keptNamespaces:
		s.More++
		s.MoreLast, s.MoreUntil = at, until
		return
	case !found:
		made := oplog.IsTemporary(ns.Collection()) && (w.Kind == oplog.CommandCreate.String() || ns == w.To)
		s.Touched = slices.Insert(s.Touched, i, Touched{NS: ns, Source: source, First: at, Made: made})
	}
	t := &s.Touched[i]
	t.Count++
	if twice {
		t.Twice++
	}
	t.Last, t.Until = at, until
	t.copiedAt(w.OpTime.TS, copied)
}

// copiedAt records whether the copy that is going on overwrites what an entry has changed.
func (t *Touched) copiedAt(at bson.Timestamp, copied Copy) {
	t.Copying, t.During = false, copied.Asked
	if !at.After(copied.After) {
		t.Copying, t.During = true, time.Time{}
	}
}

// dropped forgets a namespace that the link has dropped, unless for a copy, whose end decides that.
func (s *State) dropped(ns oplog.Namespace) {
	s.settle(func(t *Touched) bool { return t.NS == ns && !t.Copying })
}

// renamed gives a namespace that was renamed at an entry its new name, in place of one that had it, whose documents are gone. It is mirrored
// from source, or not at all if that is empty.
func (s *State) renamed(from, to, source oplog.Namespace, at bson.Timestamp, copied Copy) {
	s.settle(func(t *Touched) bool { return t.NS == to }) // first: from may count writes that this one counts, too
	was, touched := Touched{}, false
	if i, found := s.find(from); found {
		was, touched = s.Touched[i], true
		s.Touched = slices.Delete(s.Touched, i, i+1)
	}
	if source == "" || !touched && s.More == 0 {
		s.deal(from)
		return
	}
	s.become(from, to)
	if !touched { // s.More may have it
		return
	}
	i, _ := s.find(to)
	was.NS, was.Source = to.Clone(), source.Clone()
	was.copiedAt(at, copied)
	s.Touched = slices.Insert(s.Touched, i, was)
}

// AddGap records a gap.
func (s *State) AddGap(g Gap) {
	s.Gaps = slices.Insert(s.Gaps, 0, g)
	s.Gaps = s.Gaps[:min(len(s.Gaps), keptGaps)]
}

// Clear forgets the namespaces whose foreign writes all have entries up to a timestamp, and reports
// whether that changed something. An earlier one than the last one changes nothing.
func (s *State) Clear(upTo bson.Timestamp) bool {
	if !upTo.After(s.Cleared) {
		return false
	}
	s.Cleared = upTo
	s.settle(func(t *Touched) bool { return !t.Until.After(upTo) })
	if !s.MoreUntil.After(upTo) {
		s.More, s.MoreLast, s.MoreUntil = 0, time.Time{}, bson.Timestamp{}
	}
	return true
}

// Copies takes the copies that are made now. A namespace that was copied again since its last foreign
// write, and is not any more, is the source's.
func (s *State) Copies(now func(oplog.Namespace) Copy) (changed bool) {
	changed = s.settle(func(t *Touched) bool { return t.Copying && now(t.NS).Asked.IsZero() })
	for i := range s.Touched {
		t := &s.Touched[i]
		if asked := now(t.NS).Asked; !t.Copying && !asked.IsZero() && asked.UnixMilli() != t.During.UnixMilli() {
			t.Copying, changed = true, true
		}
	}
	return changed
}
