package netfault_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/mongosim/internal/netfault"
)

type pong struct{}

func (pong) Handle(context.Context, *wire.Message) wire.Response {
	return wire.Response{Body: ping()}
}

func ping() bson.Raw {
	return bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "ping", 1))
}

// What the faults are for: a server behind a link, seen from its client.
func TestServerBehindALink(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		took time.Duration
		err  error
	}{
		"latency":                  {"latency 5ms", 10 * ms, nil},
		"reset in the reply":       {"reset after=20 out", 0, io.ErrUnexpectedEOF},
		"reset in the request":     {"reset after=20 in", 0, io.EOF},
		"cut":                      {"cut", 0, io.ErrClosedPipe},
		"freeze":                   {"freeze", time.Second, context.DeadlineExceeded},
		"replies vanish":           {"half-open out", time.Second, context.DeadlineExceeded},
		"a reply of 36 bytes":      {"rate 100 out", 300 * ms, nil},
		"slow beyond its patience": {"rate 10 out", time.Second, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := netfault.NewNetwork(1)
				near, far := net.Pipe()
				done := make(chan error, 1)
				ctx, stop := context.WithCancelCause(t.Context())
				go func() { done <- wire.Serve(ctx, n.Conn("m1", netfault.Client, near), pong{}) }()
				synctest.Wait()
				set(t, n, "m1", netfault.Client, tc.text)
				c := wire.NewClient(far)
				patience, end := context.WithTimeout(t.Context(), time.Second)
				defer end()
				start := time.Now()
				if _, err := c.Call(patience, ping()); !errors.Is(err, tc.err) {
					t.Errorf("error is %v, want %v", err, tc.err)
				}
				took(t, "the call", start, tc.took)
				stop(errors.New("the member was stopped"))
				if err := <-done; err == nil {
					t.Error("Serve saw nothing")
				}
				_ = c.Close()
			})
		})
	}
}
