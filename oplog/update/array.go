package update

import (
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// arrayWriter appends the elements of an array to dst, numbered from 0 as by the
// server's builder. Runs of unchanged elements that already have the right number
// are copied as a whole.
type arrayWriter struct {
	dst []byte
	// pre is the old array. Its bytes [from, to) are still to be copied.
	pre      []byte
	from, to int
	// next is the number of the next element.
	next int
}

func (w *arrayWriter) flush() {
	w.dst = append(w.dst, w.pre[w.from:w.to]...)
	w.from = w.to
}

// reserve reserves space for the elements before number end, each at least the size
// of a null. If the nulls alone make the buffer as long as limit, in bytes, it
// returns an [ErrTooLarge] and allocates nothing.
func (w *arrayWriter) reserve(end, limit int) error {
	size := nullsSize(w.next, end)
	if size >= limit-len(w.dst)-(w.to-w.from) {
		return ErrTooLarge
	}
	w.flush()
	w.dst = slices.Grow(w.dst, size)
	return nil
}

// nullsSize returns the size in bytes of the elements numbered from up to, but not
// including, end, if they are nulls.
func nullsSize(from, end int) int {
	size := 0
	for digits, limit := 1, 10; from < end; digits, limit = digits+1, limit*10 {
		n := max(min(end, limit)-from, 0)
		size += n * (sizeOfHeader + digits)
		from += n
	}
	return size
}

// keep copies the element that the iterator over pre has just read.
func (w *arrayWriter) keep(it *rawbson.Iter) {
	var buf [20]byte
	name := strconv.AppendInt(buf[:0], int64(w.next), 10)
	if string(name) != string(it.Key) {
		w.set(it.Type, it.Value)
		return
	}
	from := it.Offset() - len(it.Value) - len(it.Key) - 2
	if w.to != from {
		w.flush()
		w.from = from
	}
	w.to = it.Offset()
	w.next++
}

// header appends the type and the number of the next element and returns the index
// of the type.
func (w *arrayWriter) header(t bson.Type) (typeAt int) {
	w.flush()
	typeAt = len(w.dst)
	w.dst = append(w.dst, byte(t))
	w.dst = strconv.AppendInt(w.dst, int64(w.next), 10)
	w.dst = append(w.dst, 0)
	w.next++
	return typeAt
}

func (w *arrayWriter) set(t bson.Type, value []byte) {
	w.header(t)
	w.dst = append(w.dst, value...)
}

// bitset is a set of small integers.
type bitset []uint64

func (s bitset) set(i int) { s[i/64] |= 1 << (i % 64) }

func (s bitset) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }
