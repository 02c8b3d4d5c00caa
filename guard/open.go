package guard

import (
	"cmp"
	"slices"

	"github.com/oplogrep/replicator/oplog"
)

// Open returns the present names of the namespaces of a write that are not dealt with.
func (w *Write) Open() (list []oplog.Namespace) {
	if !w.Gone {
		list = append(list, cmp.Or(w.Now, w.NS))
	}
	if !w.GoneTo && w.To != "" {
		list = append(list, cmp.Or(w.NowTo, w.To))
	}
	return list
}

// NewestOpen returns the newest write to a namespace that is not dealt with, and the present name of that, which is empty if the namespace
// is not listed. It is nil if that write is not kept: those to namespaces that were dealt with may be newer.
func (s *State) NewestOpen() (w *Write, now oplog.Namespace) {
	for i := range s.Writes {
		open := s.Writes[i].Open()
		for _, ns := range open {
			if _, listed := s.find(ns); listed {
				return &s.Writes[i], ns
			}
		}
		if s.More > 0 && len(open) > 0 {
			return &s.Writes[i], ""
		}
	}
	return nil, ""
}

// OpenWrites returns the number of writes to namespaces that are not dealt with. One that two of them count is one.
func (s *State) OpenWrites() int64 {
	n := s.More
	for i := range s.Touched {
		n += s.Touched[i].Count - s.Touched[i].Twice
	}
	if s.IsTouched() {
		n = max(n, 1) // the writes that two counted, of which one was dealt with, may not be kept
	}
	return n
}

// become gives the writes to a namespace the name that it has now.
func (s *State) become(from, to oplog.Namespace) {
	for i := range s.Writes {
		w := &s.Writes[i]
		if !w.Gone && cmp.Or(w.Now, w.NS) == from {
			w.Now = to.Clone()
		}
		if !w.GoneTo && cmp.Or(w.NowTo, w.To) == from {
			w.NowTo = to.Clone()
		}
	}
}

// deal records that the writes to a namespace, which is not listed any more, are dealt with.
func (s *State) deal(ns oplog.Namespace) {
	for i := range s.Writes {
		w := &s.Writes[i]
		if !w.Gone && !w.GoneTo && w.To != "" && cmp.Or(w.Now, w.NS) == ns {
			s.countsAlone(cmp.Or(w.NowTo, w.To))
		}
		w.Gone = w.Gone || cmp.Or(w.Now, w.NS) == ns
		w.GoneTo = w.GoneTo || w.To != "" && cmp.Or(w.NowTo, w.To) == ns
	}
}

// countsAlone records that no other namespace counts a write to this one any more.
func (s *State) countsAlone(to oplog.Namespace) {
	if i, found := s.find(to); found && s.Touched[i].Twice > 0 {
		s.Touched[i].Twice--
	}
}

// settle forgets the namespaces that are dealt with, and reports whether there are any.
func (s *State) settle(is func(t *Touched) bool) (some bool) {
	var done []oplog.Namespace
	s.Touched = slices.DeleteFunc(s.Touched, func(t Touched) bool {
		if !is(&t) {
			return false
		}
		done = append(done, t.NS)
		return true
	})
	for _, ns := range done {
		s.deal(ns)
	}
	return len(done) > 0
}
