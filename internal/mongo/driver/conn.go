package driver

import (
	"bufio"
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
	// readAhead is how much of what has come is taken at a time, in bytes. Most replies
	// are smaller; what is larger is read to where it belongs, but for its beginning.
	readAhead = 8 << 10
	// stuck is how long the other side may not take what is written before it is looked
	// whether it waits for us, and glance how long it is looked.
	stuck  = 100 * time.Millisecond
	glance = 5 * time.Millisecond
)

// dialer makes the connections of a deployment.
type dialer struct {
	net.Dialer
	// hosts says where to connect to in place of a name: see Config.HostMap.
	hosts map[string]string
	// open are the connections that there are: the driver shows only its own layers.
	open sync.Map // connKey → *conn
	// sockets counts the connections over unix sockets.
	sockets atomic.Int64
}

// connKey tells a connection from every other that is open: the local address alone
// may be used towards several servers.
type connKey struct{ local, addr string }

// of returns the connection that is below one of the driver's, nil if it is none of
// ours.
func (d *dialer) of(c *mnet.Connection) *conn {
	local, ok := c.ReadWriteCloser.(interface{ LocalAddress() address.Address })
	if !ok {
		return nil
	}
	found, _ := d.open.Load(connKey{string(local.LocalAddress()), c.Address().String()})
	under, _ := found.(*conn)
	return under
}

// DialContext implements options.ContextDialer.
func (d *dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := d.Dialer.DialContext(ctx, network, d.address(addr))
	if err != nil {
		return nil, err
	}
	own := newConn(c)
	if local := c.LocalAddr(); local.Network() == "unix" {
		// All of a process have one, and none that says anything.
		own.local = &net.UnixAddr{Name: "connection " + strconv.FormatInt(d.sockets.Add(1), 10), Net: local.Network()}
	}
	key := connKey{own.LocalAddr().String(), addr}
	own.closed = func() { d.open.CompareAndDelete(key, own) }
	d.open.Store(key, own)
	return own, nil
}

// address returns where to connect to for a host:port.
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

// conn is a network connection that is read ahead of. The driver reads the length of
// a message and then the message: that takes two system calls for each reply, where
// one could take in several replies.
//
// It never waits for the other side to read while that one waits for us to: with
// commands that are sent before the answers to others are read, a server may be
// unable to get rid of those (to upserts they may be as long as the commands).
// Then they are taken in while the write waits.
type conn struct {
	net.Conn
	ahead *bufio.Reader // under reading

	reading sync.Mutex
	early   []byte // under reading: what was taken in; behind what ahead has

	// heard is called with all that comes, if it is not nil.
	heard  atomic.Pointer[func()]
	closed func() // may be nil
	// local is in place of the connection's own local address, if it is not nil.
	local net.Addr

	mu      sync.Mutex
	readBy  time.Time // under mu, as it was set
	writeBy time.Time // under mu, as it was set
}

func newConn(under net.Conn) *conn {
	c := &conn{Conn: under}
	c.ahead = bufio.NewReaderSize((*arrivals)(c), readAhead)
	return c
}

// arrivals is what ahead reads from.
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

// hears sets what is called with all that comes from now on; nil is nothing.
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
}

// LocalAddr implements net.Conn: it tells the connection from all others of its dialer
// to one server.
func (c *conn) LocalAddr() net.Addr {
	if c.local != nil {
		return c.local
	}
	return c.Conn.LocalAddr()
}

// Close implements net.Conn.
func (c *conn) Close() error {
	if c.closed != nil {
		c.closed()
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
		if err == nil || last || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		some, err := c.takeIn()
		if err != nil {
			return n, err
		}
		// Where there was nothing the other side is slow, and that is all.
		if wait = stuck; some {
			wait = glance
		}
	}
}

// takeIn reads what there is to be read, unless somebody does that already, and tells
// whether there was anything.
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
