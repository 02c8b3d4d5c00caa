package netfault

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// lane is one direction of one connection.
type lane struct {
	path *path
	// turn is taken by the one caller that reads or writes. It is a channel,
	// not a mutex, because in a synctest bubble waiting for a mutex is not
	// durably blocking.
	turn chan struct{}

	// The fields up to the next blank line belong to the caller that has turn; carried
	// and resetID of the outgoing lane to its pump once there is one.
	free    time.Time // when the rate lets the next byte through
	carried int64     // bytes since the reset was set
	resetID int       // which reset carried counts for

	// The rest is guarded by the connection's mu.
	deadline time.Time
	moved    chan struct{} // closed when deadline changes
	pumped   bool          // a pump stands between the callers and under, for good
	queue    []parcel      // data in flight, in order
	size     int           // bytes in queue
	last     time.Time     // when all of queue has arrived
	news     chan struct{} // closed when queue changes
	failed   error         // why the pump of the outgoing lane ended
	ended    chan struct{} // closed when the pump has ended
}

// parcel is a piece of data in flight, or the end of the stream.
type parcel struct {
	data []byte
	err  error
	due  time.Time
}

func (l *lane) init(p *path) {
	l.path = p
	l.turn = make(chan struct{}, 1)
	l.moved = make(chan struct{})
	l.news = make(chan struct{})
	l.ended = make(chan struct{})
}

// pace returns what of p the rate lets through at once: a tenth of a second.
func (s *state) pace(p []byte) []byte {
	if s.rate == 0 {
		return p
	}
	return p[:min(int64(len(p)), max(1, s.rate/10))]
}

// charge makes the next bytes wait until n have gone through.
func (l *lane) charge(cond *condition, n int) {
	if cond.rate == 0 || n == 0 {
		return
	}
	// A product of whole numbers could overflow.
	l.free = time.Now().Add(time.Duration(float64(n) / float64(cond.rate) * float64(time.Second)))
}

// budget returns the part of p that passes before a reset breaks the
// connection, and whether the reset follows immediately.
func (l *lane) budget(cond *condition, p []byte) (part []byte, breaks bool) {
	if l.resetID != cond.resetID {
		l.resetID, l.carried = cond.resetID, 0
	}
	if cond.resetID == 0 {
		return p, false
	}
	left := max(0, cond.reset-l.carried)
	if int64(len(p)) < left {
		return p, false
	}
	return p[:left], true
}

// pass waits until the lane carries data, and returns the condition that
// applies.
func (c *Conn) pass(l *lane) (*condition, error) {
	for {
		cond := l.path.cond.Load()
		if err := c.over(); err != nil {
			return nil, err
		}
		c.mu.Lock()
		deadline, moved := l.deadline, l.moved
		c.mu.Unlock()
		now := time.Now()
		if cond.frozen {
			deadline = time.Time{}
		} else if !deadline.IsZero() && !now.Before(deadline) {
			return nil, os.ErrDeadlineExceeded
		}
		until := deadline
		if !cond.blocked() {
			if cond.rate == 0 || !l.free.After(now) {
				return cond, nil
			}
			until = earlier(deadline, l.free)
		}
		c.wait(until, cond.changed, nil, moved, c.closing)
	}
}

// earlier returns the earlier of two times, of which zero ones are never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// wait returns when the time has come (zero: never), one of the channels is
// closed (nil: never), or the connection is dead.
func (c *Conn) wait(until time.Time, changed, news, moved, closing <-chan struct{}) {
	var arrival <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		arrival = timer.C
	}
	select {
	case <-arrival:
	case <-changed:
	case <-news:
	case <-moved:
	case <-closing:
	case <-c.dead:
	}
}

func (c *Conn) pumped(l *lane) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return l.pumped
}

func (c *Conn) queued(l *lane) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(l.queue) > 0
}

// startPump puts a goroutine between the callers and the connection below, once.
// From then on the callers' deadlines are not those of the connection below.
func (c *Conn) startPump(l *lane, pump func(), direct func(time.Time) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.pumped {
		return nil
	}
	if c.closed {
		return net.ErrClosed // Close waits for pumps; none may start after it
	}
	if err := direct(time.Time{}); err != nil {
		return err
	}
	l.pumped = true
	c.pumps.Go(pump)
	return nil
}

// push queues a parcel. It does not overtake others, however short its own
// latency is. mu is locked.
func (l *lane) push(p parcel) {
	p.due = time.Now().Add(l.path.draw(l.path.cond.Load()))
	if p.due.After(l.last) {
		l.last = p.due
	}
	l.queue = append(l.queue, p)
	l.size += len(p.data)
	l.tell()
}

// tell wakes callers that wait for the queue. mu is locked.
func (l *lane) tell() {
	close(l.news)
	l.news = make(chan struct{})
}

// hold queues a parcel, however full the queue is.
func (c *Conn) hold(l *lane, p parcel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.push(p)
}

// enqueue queues a parcel if there is room. Otherwise it waits for a change and
// returns false.
func (c *Conn) enqueue(l *lane, cond *condition, p parcel) (bool, error) {
	c.mu.Lock()
	if l.failed != nil {
		defer c.mu.Unlock()
		return false, l.failed
	}
	if l.size < queueLimit {
		defer c.mu.Unlock()
		l.push(p)
		return true, nil
	}
	news, moved, deadline := l.news, l.moved, l.deadline
	c.mu.Unlock()
	c.wait(deadline, cond.changed, news, moved, c.closing)
	return false, nil
}

// dequeue moves arrived data from the head of the queue into p. If there is
// none, it waits for a change and returns 0.
func (c *Conn) dequeue(l *lane, cond *condition, p []byte) (int, error) {
	c.mu.Lock()
	news, moved, until := l.news, l.moved, l.deadline
	if len(l.queue) > 0 {
		head := &l.queue[0]
		if !head.due.After(time.Now()) {
			defer c.mu.Unlock()
			if head.err != nil {
				return 0, head.err // and it stays: the stream has ended
			}
			n := copy(p, head.data)
			if head.data = head.data[n:]; len(head.data) == 0 {
				l.queue = l.queue[1:]
			}
			l.size -= n
			l.tell()
			return n, nil
		}
		until = earlier(until, head.due)
	}
	c.mu.Unlock()
	c.wait(until, cond.changed, news, moved, c.closing)
	return 0, nil
}

// readPump reads ahead and notes when it came, until the stream ends.
func (c *Conn) readPump() {
	l := &c.in
	defer close(l.ended)
	buf := make([]byte, pieceSize)
	for {
		n, err := c.under.Read(buf)
		if n > 0 {
			c.hold(l, parcel{data: bytes.Clone(buf[:n])})
		}
		if err != nil {
			c.hold(l, parcel{err: err})
			return
		}
		if !c.waitForRoom(l) {
			return
		}
	}
}

// waitForRoom returns when the queue is not full, false if the connection is
// dead before.
func (c *Conn) waitForRoom(l *lane) bool {
	for {
		c.mu.Lock()
		full, news, dead := l.size >= queueLimit, l.news, c.reason != nil
		c.mu.Unlock()
		if dead || !full {
			return !dead
		}
		c.wait(time.Time{}, nil, news, nil, nil)
	}
}

// writePump delivers due data until the connection is dead, or is closing and
// has no data left that could arrive.
func (c *Conn) writePump() {
	l := &c.out
	defer close(l.ended)
	for {
		cond := l.path.cond.Load()
		c.mu.Lock()
		var head parcel
		some := len(l.queue) > 0
		if some {
			head = l.queue[0]
		}
		news, closed, dead := l.news, c.closed, c.reason != nil
		c.mu.Unlock()
		stuck := !some || cond.blocked()
		switch {
		case dead || closed && stuck:
			return
		case stuck:
			c.wait(time.Time{}, cond.changed, news, nil, c.closing)
			continue
		case head.due.After(time.Now()):
			c.wait(head.due, cond.changed, nil, nil, nil)
			continue
		}
		n, err := c.deliver(l, cond, head.data)
		if err == nil && n < len(head.data) {
			err = io.ErrShortWrite
		}
		c.mu.Lock()
		l.queue = l.queue[1:]
		l.size -= len(head.data)
		if err != nil && !errors.Is(err, net.ErrClosed) {
			l.failed = err
		}
		l.tell()
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}
