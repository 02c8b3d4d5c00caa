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

// newestOpen returns the newest write to a namespace that is listed; the newest of all if it is not kept, or none is listed.
func (s *State) newestOpen() (w Write) {
	for i := range s.Writes {
		listed := func(ns oplog.Namespace) bool {
			_, found := s.find(ns)
			return found
		}
		if slices.ContainsFunc(s.Writes[i].Open(), listed) {
			return s.Writes[i]
		}
	}
	if len(s.Writes) > 0 {
		return s.Writes[0]
	}
	return w
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

// deal records that the writes to a namespace are dealt with.
func (s *State) deal(ns oplog.Namespace) {
	for i := range s.Writes {
		w := &s.Writes[i]
		w.Gone = w.Gone || cmp.Or(w.Now, w.NS) == ns
		w.GoneTo = w.GoneTo || w.To != "" && cmp.Or(w.NowTo, w.To) == ns
	}
}

// settle forgets the namespaces that are dealt with, and reports whether there are any.
func (s *State) settle(is func(t *Touched) bool) (some bool) {
	s.Touched = slices.DeleteFunc(s.Touched, func(t Touched) bool {
		done := is(&t)
		if done {
			s.deal(t.NS)
		}
		some = some || done
		return done
	})
	return some
}
