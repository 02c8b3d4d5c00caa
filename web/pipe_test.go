package web

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// pipes is a listener without a network: a connection has no buffer, so that a write ends when the
// other side has read it, and time is the bubble's.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// local is the server's end of a pipe, with addresses.
type local struct{ net.Conn }

func (local) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 50000} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return local{c}, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (*pipes) Addr() net.Addr { return near }

// dial opens a connection that the test closes.
func (p *pipes) dial(t *testing.T) net.Conn {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { _ = ours.Close() })
	p.conns <- theirs
	return ours
}

// served runs f in a bubble with a server that is stopped at the end.
func served(t *testing.T, cfg Config, f func(t *testing.T, p *pipes, stop func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := server(t, cfg)
		p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		ctx, stop := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Serve(ctx, p) }()
		end := sync.OnceFunc(func() {
			stop(nil)
			must.Succeed(t, <-done)
		})
		defer end()
		f(t, p, end)
	})
}

// send writes a request, as far as the server reads it.
func send(t *testing.T, c net.Conn, lines ...string) {
	t.Helper()
	_, err := io.WriteString(c, strings.Join(lines, "\r\n"))
	must.Succeed(t, err)
}

// reply reads an answer.
func reply(t *testing.T, c net.Conn) (code int, body string) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	must.Succeed(t, err)
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode, string(must.Get(io.ReadAll(resp.Body))(t))
}

// closedAfter returns how long it takes until the other side closes the connection; what it sends
// is read.
func closedAfter(t *testing.T, c net.Conn) time.Duration {
	t.Helper()
	began := time.Now()
	if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
	return time.Since(began)
}
