package overflow

import (
	"time"

	"github.com/oplogrep/replicator/buffer"
)

// standstill finds out since when nothing has been applied although nothing can be read.
type standstill struct {
	since    time.Time // zero if something is read, or applied
	released int64
}

// look looks at the buffer, and reports whether that has lasted for long. ended means that
// reading has ended.
func (s *standstill) look(now time.Time, b buffer.Stats, ended bool) bool {
	moves := b.Released != s.released
	s.released = b.Released
	switch {
	case moves, b.Buffered == 0, !b.Waiting && !ended:
		s.since = time.Time{}
	case s.since.IsZero():
		s.since = now
	}
	return !s.since.IsZero() && now.Sub(s.since) >= standsAfter
}
