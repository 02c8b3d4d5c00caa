package update

import "go.mongodb.org/mongo-driver/v2/bson"

// Arena parses deltas into memory that it reuses, for callers that parse many
// deltas and finish with all of them at once. The zero Arena is ready to use. It
// must not be used concurrently.
type Arena struct {
	// kept is set if memory is allocated in large pieces and reused.
	kept   bool
	diffs  slab[ObjectDiff]
	arrays slab[ArrayDiff]
	names  slab[string]
	places slab[int32]
	fields slab[Field]
	subs   slab[SubField]
	mods   slab[ArrayMod]
	// path is the buffer for the paths of modifiers.
	path []byte
}

// Parse is [ParseDelta] with a result in a. It is valid until Reset.
func (a *Arena) Parse(diff bson.Raw) (*ObjectDiff, error) {
	a.kept = true
	return a.parse(diff)
}

// Reset invalidates everything parsed so far and makes its memory available.
func (a *Arena) Reset() {
	a.diffs.reset()
	a.arrays.reset()
	a.names.reset()
	a.places.reset()
	a.fields.reset()
	a.subs.reset()
	a.mods.reset()
}

// slab is a block of memory that slices are cut from.
type slab[T any] struct{ buf []T }

const (
	// slabPiece is the number of elements of the smallest block, slabMost of the
	// largest one that is kept.
	slabPiece = 64
	slabMost  = 1 << 16
)

// take returns an empty slice with capacity for n elements. Unless kept, it is
// allocated by itself.
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

// reset makes the memory available again. It is cleared, so that it does not keep
// the referenced buffers alive.
func (s *slab[T]) reset() {
	clear(s.buf)
	s.buf = s.buf[:0]
}
