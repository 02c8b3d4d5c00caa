package update

import "go.mongodb.org/mongo-driver/v2/bson"

// Arena parses deltas into memory that it uses again: for callers that parse many of them
// and is done with all at once. The zero Arena is ready. It is for one goroutine.
type Arena struct {
	// kept is set if memory is taken in large pieces and kept.
	kept   bool
	diffs  slab[ObjectDiff]
	arrays slab[ArrayDiff]
	names  slab[string]
	places slab[int32]
	fields slab[Field]
	subs   slab[SubField]
	mods   slab[ArrayMod]
	// path is for the paths of modifiers.
	path []byte
}

// Parse is [ParseDelta]. The result is valid until Reset.
func (a *Arena) Parse(diff bson.Raw) (*ObjectDiff, error) {
	a.kept = true
	return a.parse(diff)
}

// Reset ends the use of everything that was parsed so far.
func (a *Arena) Reset() {
	a.diffs.reset()
	a.arrays.reset()
	a.names.reset()
	a.places.reset()
	a.fields.reset()
	a.subs.reset()
	a.mods.reset()
}

// slab is a piece of memory that slices are cut from.
type slab[T any] struct{ buf []T }

const (
	// slabPiece is how many elements the smallest piece has, slabMost the largest
	// that is kept.
	slabPiece = 64
	slabMost  = 1 << 16
)

// take returns an empty slice with room for n elements. Without kept it is a
// slice of its own.
func (s *slab[T]) take(n int, kept bool) []T {
	if !kept {
		return make([]T, 0, n)
	}
	if cap(s.buf)-len(s.buf) < n {
		s.buf = make([]T, 0, max(n, slabPiece, min(2*cap(s.buf), slabMost)))
	}
	at := len(s.buf)
	s.buf = s.buf[:at+n]
	return s.buf[at : at : at+n]
}

func (s *slab[T]) one(kept bool) *T {
	if !kept {
		return new(T)
	}
	return &s.take(1, true)[:1][0]
}

// reset makes the memory available again. It is cleared, so as not to keep what
// its views were into.
func (s *slab[T]) reset() {
	clear(s.buf)
	s.buf = s.buf[:0]
}
