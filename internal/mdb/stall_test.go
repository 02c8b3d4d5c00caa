package mdb_test

import (
	"net"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mdb"
)

// narrow is a listener whose connections hold little of what nobody reads, as behind a
// proxy.
type narrow struct{ net.Listener }

func (l narrow) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(8 << 10)
		_ = tcp.SetWriteBuffer(8 << 10)
	}
	return c, err
}

// TestCallAllStalled: a server that has to get rid of its replies before it reads on,
// and they are as long as those to upserts.
func TestCallAllStalled(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.listener = narrow{f.listener}
	f.answer = echo(t, 100_000, nil)
	f.start()
	s := open(t, mdb.Config{URI: f.uri()})
	next := 0
	err := s.CallAll(within(t), numbered(t, 64, 250_000), func(i int, reply bson.Raw) error {
		if i != next || int(reply.Lookup("done").Int32()) != i {
			t.Errorf("reply %d is %d, want %d", i, reply.Lookup("done").Int32(), next)
		}
		next++
		return nil
	})
	if err != nil || next != 64 {
		t.Fatalf("%d replies, %v", next, err)
	}
}
