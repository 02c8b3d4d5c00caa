package web

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

// crowd limits the connections of a server. Where there is no room for one more, that which has
// been quiet for the longest is closed: one that waits for its next request, or has not sent the
// first. If all are being answered, the new one is. Simply not accepting more would let a client
// that opens many connections, and says nothing, keep a supervisor's probe out.
type crowd struct {
	most int

	mu    sync.Mutex // guards the rest
	conns map[net.Conn]time.Time
}

func newCrowd(most int) *crowd { return &crowd{most: most, conns: map[net.Conn]time.Time{}} }

// change is told the state of each connection. The time of one that is not quiet is zero.
func (c *crowd) change(conn net.Conn, to http.ConnState) {
	full := c.note(conn, to)
	if full == nil {
		return
	}
	// This runs in the goroutine that accepts connections. To close an encrypted one in order takes
	// seconds if its client reads nothing.
	if encrypted, ok := full.(*tls.Conn); ok {
		full = encrypted.NetConn()
	}
	_ = full.Close()
}

// note notes a state, and returns the connection that has to go.
func (c *crowd) note(conn net.Conn, to http.ConnState) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, known := c.conns[conn]
	switch to {
	case http.StateNew:
		c.conns[conn] = time.Now()
		if len(c.conns) > c.most {
			full := c.quietest(conn)
			delete(c.conns, full)
			return full
		}
	case http.StateIdle:
		if known {
			c.conns[conn] = time.Now()
		}
	case http.StateActive:
		if known {
			c.conns[conn] = time.Time{}
		}
	case http.StateClosed, http.StateHijacked:
		delete(c.conns, conn)
	}
	return nil
}

// quietest returns the connection that has been quiet for the longest, or the new one.
func (c *crowd) quietest(added net.Conn) net.Conn {
	found := added
	for conn, since := range c.conns {
		if !since.IsZero() && since.Before(c.conns[found]) {
			found = conn
		}
	}
	return found
}
