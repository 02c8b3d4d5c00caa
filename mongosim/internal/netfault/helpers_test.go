package netfault_test

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/mongosim/internal/netfault"
)

const ms = time.Millisecond

// pipe returns both ends of a connection between a and b; a's is wrapped.
func pipe(n *netfault.Network) (a *netfault.Conn, b net.Conn) {
	near, far := net.Pipe()
	return n.Conn("a", "b", near), far
}

// pair is a pipe in a bubble whose network has some faults, as seen from a.
func pair(t *testing.T, texts []string, test func(t *testing.T, n *netfault.Network, a *netfault.Conn, b net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := netfault.NewNetwork(1)
		set(t, n, "a", "b", texts...)
		a, b := pipe(n)
		test(t, n, a, b)
		_ = a.Close()
		_ = b.Close()
	})
}

func write(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if n, err := c.Write([]byte(s)); n != len(s) || err != nil {
		t.Errorf("write %q: %d, %v", s, n, err)
	}
}

func expect(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Errorf("read %q, %v, want %q", got[:n], err, want)
	}
}

// took checks how long it was since start.
func took(t *testing.T, what string, start time.Time, want time.Duration) {
	t.Helper()
	if got := time.Since(start); got != want {
		t.Errorf("%s took %v, want %v", what, got, want)
	}
}
