package netfault

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// queueLimit bounds the data in flight in one direction, in bytes. Beyond
	// it the sender waits, as for a full socket buffer.
	queueLimit = 4 << 20
	// pieceSize is the size of one piece of queued data, in bytes.
	pieceSize = 64 << 10
	// closeGrace is how long Close waits, beyond the latency, for a peer that
	// does not read.
	closeGrace = 100 * time.Millisecond
)

// Conn is one end of a connection over a faulty link. It is a net.Conn. As long
// as its link never had a latency it starts no goroutines and copies nothing.
type Conn struct {
	network *Network
	link    *link
	under   net.Conn
	in, out lane

	// closing is closed by Close: reads and writes end.
	closing chan struct{}
	// dead is closed when under is, by a fault or at the end of Close.
	dead  chan struct{}
	pumps sync.WaitGroup

	// mu guards the fields below, and those of the lanes that say so.
	mu     sync.Mutex
	closed bool
	// reason is why the connection is dead.
	reason error
}

func newConn(n *Network, l *link, out int, under net.Conn) *Conn {
	c := &Conn{
		network: n, link: l, under: under,
		closing: make(chan struct{}), dead: make(chan struct{}),
	}
	c.out.init(l.paths[out])
	c.in.init(l.paths[1-out])
	return c
}

// LocalAddr returns the address of this end.
func (c *Conn) LocalAddr() net.Addr { return c.under.LocalAddr() }

// RemoteAddr returns the address of the other end.
func (c *Conn) RemoteAddr() net.Addr { return c.under.RemoteAddr() }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline sets when reads fail with os.ErrDeadlineExceeded. The zero
// time means never. A frozen end notices its deadlines when it is thawed.
func (c *Conn) SetReadDeadline(t time.Time) error {
	return c.setDeadline(&c.in, t, c.under.SetReadDeadline)
}

// SetWriteDeadline sets when writes fail, like SetReadDeadline.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(&c.out, t, c.under.SetWriteDeadline)
}

func (c *Conn) setDeadline(l *lane, t time.Time, direct func(time.Time) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.deadline = t
	close(l.moved)
	l.moved = make(chan struct{})
	if l.pumped {
		return nil // the pump has no deadline, the callers keep theirs
	}
	return direct(t)
}

// over returns why the connection can no longer be read or written, nil while
// it can.
func (c *Conn) over() error {
	select {
	case <-c.closing:
		return net.ErrClosed
	case <-c.dead:
		return c.reason
	default:
		return nil
	}
}

// fail ends the connection at once. With reset, the other end sees a reset, if
// the underlying connection supports it.
func (c *Conn) fail(reason error, reset bool) {
	c.mu.Lock()
	if c.reason != nil {
		c.mu.Unlock()
		return
	}
	c.reason = reason
	close(c.dead)
	c.mu.Unlock()
	if l, ok := c.under.(interface{ SetLinger(sec int) error }); ok && reset {
		_ = l.SetLinger(0) // it may have ended by itself
	}
	_ = c.under.Close() // nothing is left to be saved
	c.network.forget(c)
}

// Close ends the connection. Data delayed by a latency arrives first: Close
// takes that long, but does not wait for other faults to end. When it returns
// no goroutine of the connection is left. A second call returns net.ErrClosed
// at once.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	c.closed = true
	close(c.closing)
	pending, last := len(c.out.queue) > 0, c.out.last
	c.mu.Unlock()
	if pending {
		timer := time.NewTimer(time.Until(last) + closeGrace)
		select {
		case <-c.out.ended:
		case <-c.dead:
		case <-timer.C:
		}
		timer.Stop()
	}
	c.fail(net.ErrClosed, false)
	c.pumps.Wait()
	return nil
}

// wrap adds the connection to an error. Deadlines and ends of streams stay as
// they are, because callers compare them.
func (c *Conn) wrap(l *lane, err error) error {
	if errors.Is(err, ErrCut) || errors.Is(err, ErrReset) {
		return fmt.Errorf("netfault: connection from %s: %w", l.path.name, err)
	}
	return err
}

// Write sends p to the other end. On a link with latency it returns when p is
// queued.
func (c *Conn) Write(p []byte) (int, error) {
	l := &c.out
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	n := 0
	for first := true; first || n < len(p); first = false {
		m, err := c.writeSome(l, p[n:])
		n += m
		if err != nil {
			return n, c.wrap(l, err)
		}
	}
	return n, nil
}

// writeSome sends a part of p, none if the conditions changed meanwhile.
func (c *Conn) writeSome(l *lane, p []byte) (int, error) {
	cond, err := c.pass(l)
	if err != nil {
		return 0, err
	}
	if !cond.delays() && !c.pumped(l) {
		n, err := c.deliver(l, cond, cond.pace(p))
		l.charge(cond, n)
		return n, c.excuse(l, err)
	}
	if err := c.startPump(l, c.writePump, c.under.SetWriteDeadline); err != nil {
		return 0, err
	}
	p = cond.pace(p[:min(len(p), pieceSize)])
	if queued, err := c.enqueue(l, cond, parcel{data: bytes.Clone(p)}); !queued || err != nil {
		return 0, err
	}
	l.charge(cond, len(p))
	return len(p), nil
}

// excuse maps an error of the underlying connection: if this end has been
// ended, to that reason; a frozen end does not notice its deadlines.
func (c *Conn) excuse(l *lane, err error) error {
	if err == nil {
		return nil
	}
	if why := c.over(); why != nil {
		return why
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && l.path.cond.Load().frozen {
		return nil
	}
	return err
}

// deliver hands p to the connection below, up to where a reset breaks it off.
func (c *Conn) deliver(l *lane, cond *condition, p []byte) (int, error) {
	p, breaks := l.budget(cond, p)
	n, err := 0, error(nil)
	if len(p) > 0 || !breaks {
		n, err = c.under.Write(p)
		l.carried += int64(n)
	}
	if err == nil && breaks {
		c.fail(ErrReset, true)
		err = ErrReset
	}
	return n, err
}

// Read reads bytes from the other end.
func (c *Conn) Read(p []byte) (int, error) {
	l := &c.in
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, err := c.readSome(l, p)
		if n > 0 || err != nil {
			return n, c.wrap(l, err)
		}
	}
}

// readSome reads into p, nothing if the conditions changed meanwhile.
func (c *Conn) readSome(l *lane, p []byte) (int, error) {
	cond, err := c.pass(l)
	if err != nil {
		return 0, err
	}
	p, breaks := l.budget(cond, cond.pace(p))
	if breaks && len(p) == 0 {
		c.fail(ErrReset, true)
		return 0, ErrReset
	}
	n, err := c.receive(l, cond, p)
	l.carried += int64(n)
	l.charge(cond, n)
	if breaks && n == len(p) {
		c.fail(ErrReset, true)
	}
	return n, err
}

// receive reads the data that has arrived, from the queue or from the
// underlying connection.
func (c *Conn) receive(l *lane, cond *condition, p []byte) (int, error) {
	if cond.delays() {
		if err := c.startPump(l, c.readPump, c.under.SetReadDeadline); err != nil {
			return 0, err
		}
	}
	if c.pumped(l) || c.queued(l) {
		return c.dequeue(l, cond, p)
	}
	n, err := c.under.Read(p)
	if l.path.cond.Load() == cond {
		return n, c.excuse(l, err)
	}
	// The data may have arrived after the change, so that the change applies to
	// it.
	if n > 0 {
		c.hold(l, parcel{data: bytes.Clone(p[:n])})
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		if why := c.over(); why != nil {
			return 0, why
		}
		c.hold(l, parcel{err: err})
	}
	return 0, nil
}
