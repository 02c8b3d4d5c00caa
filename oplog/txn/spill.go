package txn

import (
	"container/heap"
	"errors"
	"fmt"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/oplog"
)

// budget limits the memory of stored parts. It is shared by an Assembler and the
// Transactions that it returned, which are used by other goroutines.
type budget struct {
	limit int64
	used  atomic.Int64
}

// store keeps the parts of one chain in order: first those in files, then those
// in memory. A part is the o of its entry.
type store struct {
	budget   *budget
	segments *segments
	// start is the chain's first entry, for errors.
	start oplog.OpTime

	extents  []extent
	mem      []bson.Raw
	memBytes int64
}

// extent is a range of a segment, from byte at to byte end, with parts of one
// store.
type extent struct {
	file    *segment
	at, end int64
}

// keep stores a copy of a part in memory.
func (s *store) keep(part bson.Raw) {
	s.mem = append(s.mem, append(make(bson.Raw, 0, len(part)), part...))
	s.memBytes += int64(len(part))
	s.budget.used.Add(int64(len(part)))
}

// spill moves the parts in memory to files. After an error some parts are in both
// places, and the store must not be read.
func (s *store) spill() error {
	for _, part := range s.mem {
		if err := s.write(part); err != nil {
			return err
		}
	}
	s.forget()
	return nil
}

// write appends a part to the files. Afterwards the store must not have parts in
// memory.
func (s *store) write(part bson.Raw) error {
	var last extent
	if n := len(s.extents); n > 0 {
		last = s.extents[n-1]
	}
	f, err := s.segments.use(last.file)
	if err != nil {
		return s.fault(s.segments.dir, true, err)
	}
	if f != last.file || f.size != last.end {
		s.extents = append(s.extents, extent{file: f, at: f.size, end: f.size})
	}
	if err := f.append(part); err != nil {
		return s.fault(f.Name(), true, err)
	}
	s.extents[len(s.extents)-1].end = f.size
	return nil
}

func (s *store) fault(path string, writing bool, err error) error {
	return &SpillError{Path: path, OpTime: s.start, Err: err, Writing: writing}
}

// parts calls yield for each part until it returns false.
func (s *store) parts(yield func(bson.Raw) bool) (more bool, err error) {
	for _, x := range s.extents {
		for at := x.at; at < x.end; {
			part, err := x.file.read(at, x.end)
			if err != nil {
				return false, s.fault(x.file.Name(), false, err)
			}
			if !yield(part) {
				return false, nil
			}
			at += headerSize + int64(len(part))
		}
	}
	for _, part := range s.mem {
		if !yield(part) {
			return false, nil
		}
	}
	return true, nil
}

func (s *store) forget() {
	if s.budget != nil {
		s.budget.used.Add(-s.memBytes)
	}
	s.mem, s.memBytes = nil, 0
}

// release frees memory and files. It is idempotent.
func (s *store) release() error {
	s.forget()
	extents := s.extents
	s.extents = nil
	var faults []error
	var last *segment
	for _, x := range extents {
		if x.file == last { // counts as one user for any number of extents
			continue
		}
		last = x.file
		if err := s.segments.leave(x.file); err != nil {
			faults = append(faults, fmt.Errorf("remove %s of the spilled transaction that starts at %s: %w", x.file.Name(), s.start, err))
		}
	}
	return errors.Join(faults...)
}

// store keeps a part. If the budget does not allow it, the chain with the most bytes
// in memory is written to a file; the chain that grows, together with its new part.
// That frees the most memory per write, and leaves small transactions, which are
// likely to end soon, in memory: one that keeps growing becomes the largest itself.
// No part is written twice.
func (a *Assembler) store(c *chain, part bson.Raw) error {
	size := int64(len(part))
	for a.budget.used.Load()+size > a.budget.limit {
		largest := c
		if len(a.inMemory) > 0 && a.inMemory[0].store.memBytes > c.store.memBytes+size {
			largest = a.inMemory[0]
		}
		if err := largest.store.spill(); err != nil {
			return err
		}
		a.inMemory.remove(largest)
		if largest == c {
			return c.store.write(part)
		}
	}
	c.store.keep(part)
	a.inMemory.grown(c)
	return nil
}

// byMemory is a heap of the open chains with parts in memory, the one with the most
// bytes first.
type byMemory []*chain

// nowhere is the index of a chain that is not in the heap.
const nowhere = -1

// grown moves a chain to its place in the heap, adding it if needed.
func (h *byMemory) grown(c *chain) {
	if c.place == nowhere {
		heap.Push(h, c)
	} else {
		heap.Fix(h, c.place)
	}
}

// remove removes a chain if it is in the heap. Its size may have changed already:
// only the others are compared.
func (h *byMemory) remove(c *chain) {
	if c.place != nowhere {
		heap.Remove(h, c.place)
	}
}

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (h byMemory) Len() int { return len(h) }

func (h byMemory) Less(i, j int) bool { return h[i].store.memBytes > h[j].store.memBytes }

func (h byMemory) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push appends a *chain.
func (h *byMemory) Push(x any) {
	c := x.(*chain)
	c.place = len(*h)
	*h = append(*h, c)
}

// Pop removes and returns the last *chain.
func (h *byMemory) Pop() any {
	last := len(*h) - 1
	c := (*h)[last]
	c.place = nowhere
	(*h)[last] = nil
	*h = (*h)[:last]
	return c
}
