package buffer

import (
	"fmt"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// Account counts the replies that wait and the bytes in use. It has no lock of its own.
// The zero value is empty.
type Account struct {
	queue fifo[oplog.Reply]
	// buffered is the number of bytes not released, queued the number of bytes not sent on.
	buffered, queued int64
	// added and released are totals in bytes; marks are the replies that are not wholly
	// released. Bytes are released in oplog order.
	added, released int64
	marks           fifo[mark]
}

// mark is the end of a reply within the total of added bytes, and when it was received.
type mark struct {
	end      int64
	received time.Time
}

// Admits reports whether this many more bytes may be buffered, given a limit of room:
// always, if nothing is buffered.
func (a *Account) Admits(bytes, room int64) bool {
	return a.buffered == 0 || a.buffered+bytes <= room
}

// Add appends r to the replies that wait.
func (a *Account) Add(r oplog.Reply) {
	a.queue.push(r)
	a.buffered += r.Bytes
	a.queued += r.Bytes
	a.added += r.Bytes
	a.marks.push(mark{a.added, r.Received})
}

// Head returns the first waiting reply, false if there is none.
func (a *Account) Head() (oplog.Reply, bool) { return a.queue.first() }

// Sent removes the first reply from the queue. Its bytes remain buffered.
func (a *Account) Sent() {
	r, _ := a.queue.first()
	a.queue.pop()
	a.queued -= r.Bytes
}

// Drop discards the waiting replies. Those sent on will still be released.
func (a *Account) Drop() {
	a.queue = fifo[oplog.Reply]{}
	a.buffered -= a.queued
	a.queued = 0
}

// Stats returns the present state.
func (a *Account) Stats() Stats {
	m, _ := a.marks.first()
	return Stats{Buffered: a.buffered, Queued: a.queued, Replies: a.queue.len(), Released: a.released, Oldest: m.received}
}

// Release releases bytes of replies that were sent on.
func (a *Account) Release(bytes int64) {
	// Invariant: released <= added. (Not sent: a reply may be applied before Run has
	// recorded that it was sent.)
	if bytes < 0 || bytes > a.buffered {
		panic(fmt.Sprintf("buffer: invariant: %d bytes are released, %d are buffered", bytes, a.buffered))
	}
	a.buffered -= bytes
	a.released += bytes
	for {
		m, ok := a.marks.first()
		if !ok || m.end > a.released {
			return
		}
		a.marks.pop()
	}
}

// fifo is a queue that reuses its memory.
type fifo[V any] struct {
	list []V
	head int
}

func (f *fifo[V]) len() int { return len(f.list) - f.head }

func (f *fifo[V]) push(v V) {
	if f.head > 0 && len(f.list) == cap(f.list) {
		n := copy(f.list, f.list[f.head:])
		clear(f.list[n:])
		f.list, f.head = f.list[:n], 0
	}
	f.list = append(f.list, v)
}

func (f *fifo[V]) first() (v V, ok bool) {
	if f.len() == 0 {
		return v, false
	}
	return f.list[f.head], true
}

func (f *fifo[V]) pop() {
	var zero V
	f.list[f.head] = zero // so that the buffer can be collected
	if f.head++; f.head == len(f.list) {
		f.list, f.head = f.list[:0], 0
	}
}
