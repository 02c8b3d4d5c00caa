package buffer

import (
	"fmt"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// account is what is held: replies that wait, and bytes of those sent on.
type account struct {
	queue fifo[oplog.Reply]
	// held is what has not been released, queued what has not been sent on, in
	// bytes.
	held, queued int64
	// added and released count all bytes ever, marks are the replies that are not
	// wholly released. Bytes are released in the order of the log.
	added, released int64
	marks           fifo[mark]
}

// mark is where a reply ends in the bytes ever added, and when it was received.
type mark struct {
	end      int64
	received time.Time
}

func (a *account) add(r oplog.Reply) {
	a.queue.push(r)
	a.held += r.Bytes
	a.queued += r.Bytes
	a.added += r.Bytes
	a.marks.push(mark{a.added, r.Received})
}

// sent takes the first reply out of the queue. It stays held.
func (a *account) sent() {
	r, _ := a.queue.first()
	a.queue.pop()
	a.queued -= r.Bytes
}

func (a *account) release(bytes int64) {
	// Invariant: released <= added. (Not sent: a reply may be applied before Run
	// has taken note that it was sent.)
	if bytes < 0 || bytes > a.held {
		panic(fmt.Sprintf("buffer: invariant: %d bytes are released, %d are held", bytes, a.held))
	}
	a.held -= bytes
	a.released += bytes
	for {
		m, ok := a.marks.first()
		if !ok || m.end > a.released {
			return
		}
		a.marks.pop()
	}
}

// oldest is when the oldest reply that is not wholly released was received.
func (a *account) oldest() time.Time {
	m, _ := a.marks.first()
	return m.received
}

// fifo is a queue whose room is used again.
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
