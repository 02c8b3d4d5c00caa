package workload

import "slices"

// chunkBytes is the size of an arena's chunks: enough for some hundred
// operations, and not so much that keeping one of them keeps a lot.
const chunkBytes = 64 << 10

// arena hands out memory in pieces of large chunks, so that an operation costs no
// allocation of its own. A piece is appended to begin's result, and is
// independent after end.
type arena struct {
	chunk []byte
	// reused is true if all pieces are unused by the next call of reset.
	reused bool
}

// reset takes all pieces back, if the arena is reused.
func (a *arena) reset() {
	if a.reused {
		a.chunk = a.chunk[:0]
	}
}

// begin returns room for n bytes to append to.
func (a *arena) begin(n int) []byte {
	if free := cap(a.chunk) - len(a.chunk); free < n {
		if n > chunkBytes/4 && !a.reused {
			return make([]byte, 0, n) // the rest of the chunk is kept
		}
		a.chunk = make([]byte, 0, max(chunkBytes, 2*n))
	}
	return a.chunk[len(a.chunk):]
}

// end takes the bytes appended since the last call, and returns them as a piece without room to append.
func (a *arena) end(b []byte) []byte {
	if free := a.chunk[len(a.chunk):cap(a.chunk)]; len(b) > 0 && len(free) > 0 && &b[0] == &free[0] {
		a.chunk = a.chunk[:len(a.chunk)+len(b)]
	}
	return slices.Clip(b)
}
