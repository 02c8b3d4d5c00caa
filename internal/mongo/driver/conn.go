package driver

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/address"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/mnet"
)

const (
	// readAhead is the size of the read buffer, in bytes. Most replies are smaller; larger
	// ones, except for their beginning, are read directly into their destination.
	readAhead = 8 << 10
	// stuck is how long a write may block before received bytes are read, in case the
	// peer is blocked by them, and glance how long such a read may take.
	stuck  = 100 * time.Millisecond
	glance = 5 * time.Millisecond
)

// lostAfter is for how long the system of a server may acknowledge nothing, neither bytes sent nor, while a reply is
// awaited, a keep-alive probe: the network has lost the connection. A server that takes no more bytes of a message for as
// long, because it is frozen, loses the connection as well. It does not limit how long a command takes. A proxy
// acknowledges for a server that it has lost.
const lostAfter = 3 * time.Minute

// dialer makes the connections of a deployment.
type dialer struct {
	net.Dialer // which sends keep-alive probes, from 15 s without traffic on
	// lostAfter is that of connections, 0 for the default.
	lostAfter time.Duration
	// hosts maps names to the addresses to connect to: see Config.HostMap.
	hosts map[string]string
	// open are the open connections: the driver only exposes its own wrappers.
	open sync.Map // the text of the localAddr → *conn
	// made counts the connections.
	made atomic.Int64
}

// localAddr is the local address of a connection with a number, by which the connection is
// found. The address alone does not identify it: all unix sockets have the same one, and the
// system uses a port again for another peer, be it of the same name.
type localAddr struct{ network, text string }

// Network implements net.Addr.
func (a localAddr) Network() string { return a.network }

// String implements net.Addr.
func (a localAddr) String() string { return a.text }

// of returns the connection below one of the driver's, nil if this dialer did not make
// it.
func (d *dialer) of(c *mnet.Connection) *conn {
	local, ok := c.ReadWriteCloser.(interface{ LocalAddress() address.Address })
	if !ok {
		return nil
	}
	found, _ := d.open.Load(string(local.LocalAddress()))
	under, _ := found.(*conn)
	return under
}

// DialContext implements options.ContextDialer.
func (d *dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := d.Dialer.DialContext(ctx, network, d.address(addr))
	if err != nil {
		return nil, err
	}
	limitUnacknowledged(c, cmp.Or(d.lostAfter, lostAfter))
	return d.add(c), nil
}

// add adds an open connection, until it is closed.
func (d *dialer) add(c net.Conn) *conn {
	own := newConn(c)
	local := c.LocalAddr()
	key := local.String() + " connection " + strconv.FormatInt(d.made.Add(1), 10)
	own.local = localAddr{local.Network(), key}
	own.closed = func() { d.open.CompareAndDelete(key, own) }
	d.open.Store(key, own)
	return own
}

// address returns the address to connect to for a host:port.
func (d *dialer) address(addr string) string {
	name, port, err := net.SplitHostPort(addr)
	to, found := d.hosts[strings.ToLower(addr)]
	if !found && err == nil {
		to, found = d.hosts[strings.ToLower(name)]
	}
	if !found {
		return addr
	}
	if _, _, err := net.SplitHostPort(to); err != nil {
		to = net.JoinHostPort(strings.Trim(to, "[]"), port)
	}
	return to
}

// conn is a network connection with a read buffer. The driver reads the length of a
// message and then the message: without a buffer, that takes two system calls for each
// reply, where one can read several replies.
//
// It avoids a deadlock with pipelined commands: a server that cannot write its replies
// does not read (replies to upserts may be as long as the commands). So while a write
// blocks, conn reads the replies that have arrived.
type conn struct {
	net.Conn
	ahead *bufio.Reader // under reading

	reading sync.Mutex
	early   []byte // under reading: bytes read during writes; they follow those in ahead

	// heard is called whenever bytes arrive, if it is not nil.
	heard atomic.Pointer[func()]
	// passed is called whenever bytes arrive, or have been sent, if it is not nil.
	passed atomic.Pointer[func()]
	// asked is set while a command is on its way, or its reply is.
	asked  atomic.Bool
	closed func() // may be nil
	// local replaces the connection's own local address, if it is not nil.
	local net.Addr

	mu      sync.Mutex
	readBy  time.Time // under mu: the read deadline that the user of conn has set
	writeBy time.Time // under mu: the write deadline that the user of conn has set
}

func newConn(under net.Conn) *conn {
	c := &conn{Conn: under}
	c.ahead = bufio.NewReaderSize((*arrivals)(c), readAhead)
	return c
}

// arrivals is the io.Reader of conn.ahead.
type arrivals conn

func (a *arrivals) Read(p []byte) (int, error) {
	if len(a.early) > 0 {
		n := copy(p, a.early)
		if a.early = a.early[n:]; len(a.early) == 0 {
			a.early = nil
		}
		return n, nil
	}
	n, err := a.Conn.Read(p)
	(*conn)(a).tell(n)
	return n, err
}

// hears sets the function to call whenever bytes arrive; nil means none.
func (c *conn) hears(heard func()) {
	if heard == nil {
		c.heard.Store(nil)
		return
	}
	c.heard.Store(&heard)
}

func (c *conn) tell(n int) {
	if heard := c.heard.Load(); n > 0 && heard != nil {
		(*heard)()
	}
	c.moved(n)
}

// passing sets the function to call whenever bytes arrive, or have been sent; nil means none.
func (c *conn) passing(passed func()) {
	if passed == nil {
		c.passed.Store(nil)
		return
	}
	c.passed.Store(&passed)
}

func (c *conn) moved(n int) {
	if passed := c.passed.Load(); n > 0 && passed != nil {
		(*passed)()
	}
}

// LocalAddr implements net.Conn. The address is unique among the dialer's connections.
func (c *conn) LocalAddr() net.Addr {
	if c.local != nil {
		return c.local
	}
	return c.Conn.LocalAddr()
}

// Close implements net.Conn. Of a command that is given up nothing is sent any more: the system would transmit what
// the network has lost until it arrives, and the server would execute it when another process leads.
func (c *conn) Close() error {
	if c.closed != nil {
		c.closed()
	}
	if tcp, ok := c.Conn.(*net.TCPConn); ok && c.asked.Load() {
		_ = tcp.SetLinger(0) // it may have ended by itself
	}
	return c.Conn.Close()
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	return c.ahead.Read(p)
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	n, wait := 0, stuck
	for {
		until := time.Now().Add(wait)
		c.mu.Lock()
		last := !c.writeBy.IsZero() && c.writeBy.Before(until)
		if last {
			until = c.writeBy
		}
		err := c.Conn.SetWriteDeadline(until)
		c.mu.Unlock()
		if err != nil {
			return n, err
		}
		m, err := c.Conn.Write(p[n:])
		n += m
		c.moved(m)
		if err == nil || last || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		some, err := c.takeIn()
		if err != nil {
			return n, err
		}
		// If nothing had arrived, the peer is only slow.
		if wait = stuck; some {
			wait = glance
		}
	}
}

// takeIn reads the bytes that have arrived, unless another goroutine is reading, and
// reports whether there were any.
func (c *conn) takeIn() (some bool, err error) {
	if !c.reading.TryLock() {
		return false, nil
	}
	defer c.reading.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		_ = c.Conn.SetReadDeadline(c.readBy) // If that fails, the next read reports it.
	}()
	buf := make([]byte, 64<<10)
	for {
		if err := c.Conn.SetReadDeadline(time.Now().Add(glance)); err != nil {
			return some, err
		}
		n, err := c.Conn.Read(buf)
		c.tell(n)
		c.early = append(c.early, buf[:n]...)
		some = some || n > 0
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return some, nil
		case err != nil:
			return some, err
		}
	}
}

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readBy = t
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeBy = t
	return c.Conn.SetWriteDeadline(t)
}
