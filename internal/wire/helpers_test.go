package wire_test

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/oplogrep/replicator/internal/wire"
)

type handlerFunc func(ctx context.Context, req *wire.Message) wire.Response

func (f handlerFunc) Handle(ctx context.Context, req *wire.Message) wire.Response { return f(ctx, req) }

// echo answers with the request's body.
func echo(_ context.Context, req *wire.Message) wire.Response { return wire.Response{Body: req.Body} }

// start serves one end of a pipe and returns the other with Serve's result.
func start(ctx context.Context, h handlerFunc) (conn net.Conn, done <-chan error) {
	near, far := net.Pipe()
	result := make(chan error, 1)
	go func() { result <- wire.Serve(ctx, near, h) }()
	return far, result
}

func send(t *testing.T, c *wire.Client, req wire.Request) int32 {
	t.Helper()
	id, err := c.Send(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// hangUp closes the connection between two messages.
func hangUp(t *testing.T, conn io.Closer, done <-chan error) {
	t.Helper()
	_ = conn.Close()
	if err := <-done; err != nil {
		t.Errorf("a hang-up between messages: %v", err)
	}
}

func receive(t *testing.T, c *wire.Client) *wire.Message {
	t.Helper()
	m, err := c.Receive(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m
}
