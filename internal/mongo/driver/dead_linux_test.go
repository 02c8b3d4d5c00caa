package driver

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// lose makes a connection lose all that arrives, as if a firewall dropped its packets: nothing is acknowledged.
func lose(t *testing.T, c net.Conn) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	drop := []syscall.SockFilter{{Code: syscall.BPF_RET | syscall.BPF_K, K: 0}}
	if bad := raw.Control(func(fd uintptr) { err = syscall.AttachLsf(int(fd), drop) }); bad != nil || err != nil { //nolint:staticcheck // its successor is no part of the standard library
		t.Fatal(bad, err)
	}
}

// TestDeadConnection: a connection that the network has lost, without telling either side, ends after a while: with a
// command on its way, and also while its reply is awaited, however long the command takes.
func TestDeadConnection(t *testing.T) {
	t.Parallel()
	for name, sends := range map[string]bool{"a command is sent": true, "a reply is awaited": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close() //nolint:errcheck // the test is over
			d := &dialer{lostAfter: 2 * time.Second}
			d.KeepAliveConfig = net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second}
			c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close() //nolint:errcheck // the test is over
			server, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close() //nolint:errcheck // the test is over
			command, got := []byte("command"), make([]byte, len("command"))
			if _, err := c.Write(command); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(server, got); err != nil {
				t.Fatal(err)
			}
			lose(t, server)
			if sends {
				if _, err := c.Write(command); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil { // the system's limit is later
				t.Fatal(err)
			}
			if _, err := c.Read(got); !errors.Is(err, syscall.ETIMEDOUT) {
				t.Errorf("%v", err)
			}
		})
	}
}

// Lose is lose for the tests of package driver_test; with found the connection loses nothing any more.
func Lose(t *testing.T, c net.Conn) (found func()) {
	t.Helper()
	lose(t, c)
	return func() {
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if bad := raw.Control(func(fd uintptr) { err = syscall.DetachLsf(int(fd)) }); bad != nil || err != nil { //nolint:staticcheck // its successor is no part of the standard library
			t.Fatal(bad, err)
		}
	}
}
