package mdb

import (
	"bufio"
	"context"
	"net"
)

// readAhead is how much of what has come is taken at a time, in bytes. Most replies
// are smaller; what is larger is read to where it belongs, but for its beginning.
const readAhead = 8 << 10

// dialer makes the connections of a deployment.
type dialer struct{ net.Dialer }

// DialContext implements options.ContextDialer.
func (d *dialer) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := d.Dialer.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, ahead: bufio.NewReaderSize(c, readAhead)}, nil
}

// conn is a network connection that is read ahead of. The driver reads the length of
// a message and then the message: that takes two system calls for each reply, and of
// replies that come one behind the other one takes in many.
type conn struct {
	net.Conn
	// ahead is used by one reader at a time, as all of the driver's reading is.
	ahead *bufio.Reader
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) { return c.ahead.Read(p) }
