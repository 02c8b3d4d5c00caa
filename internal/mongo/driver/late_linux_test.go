package driver_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
)

// TestGivenUpIsNotSent: the system does not go on to transmit a command whose caller has given it up, once the network
// works again.
func TestGivenUpIsNotSent(t *testing.T) {
	t.Parallel()
	for name, send := range map[string]func(ctx context.Context, s *driver.Set, ping mongo.Command) error{
		"one": func(ctx context.Context, s *driver.Set, ping mongo.Command) error {
			_, err := s.Call(ctx, ping)
			return err
		},
		"many": func(ctx context.Context, s *driver.Set, ping mongo.Command) error {
			return s.CallAll(ctx, []mongo.Command{ping, ping}, func(int, bson.Raw) error { return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.start()
			s := open(t, driver.Config{URI: f.uri()})
			must(t, s, "ping", 1)
			server := f.last().conn
			found := driver.Lose(t, server)
			before := f.sent()

			errGivenUp := errors.New("the lease has ended")
			ctx, giveUp := context.WithCancelCause(within(t))
			ended := make(chan error, 1)
			go func() { ended <- send(ctx, s, command(t, "ping", 1)) }()
			await(t, "the command is on its way", func() bool { return unacknowledged(t, server) })
			giveUp(errGivenUp)
			if err := <-ended; err == nil {
				t.Fatal("the command was answered")
			}
			await(t, "nothing of it is sent any more", func() bool { return !unacknowledged(t, server) })
			found()
			_, _ = server.Write([]byte{0}) // whoever has ended a connection says so
			must(t, s, "ping", 1)
			if n := f.sent() - before; n != 1 {
				t.Errorf("%d commands have arrived, want the one that was not given up", n)
			}
		})
	}
}

// TestAnsweredIsNotReset: a connection whose commands are answered ends in order.
func TestAnsweredIsNotReset(t *testing.T) {
	t.Parallel()
	for _, many := range []bool{false, true} {
		f := newFake(t)
		f.start()
		s := open(t, driver.Config{URI: f.uri()})
		ping := command(t, "ping", 1)
		if !many {
			must(t, s, "ping", 1)
		} else if err := s.CallAll(within(t), []mongo.Command{ping, ping}, func(int, bson.Raw) error { return nil }); err != nil {
			t.Fatal(err)
		}
		s.Close()
		await(t, "all connections have ended", f.allEnded)
		for _, err := range f.ends {
			if !errors.Is(err, io.EOF) {
				t.Errorf("many %t: a connection has ended with %v", many, err)
			}
		}
	}
}

// await waits until something is so.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for began := time.Now(); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("after a minute it is not so that %s", what)
		}
	}
}

// unacknowledged reports whether the system transmits bytes to a server's connection which that has not acknowledged.
func unacknowledged(t *testing.T, server net.Conn) bool {
	t.Helper()
	table, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Skip("the system does not tell of its connections: ", err)
	}
	local, remote := server.RemoteAddr().(*net.TCPAddr), server.LocalAddr().(*net.TCPAddr)
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) > 4 && f[1] == inTable(local) && f[2] == inTable(remote) {
			return !strings.HasPrefix(f[4], "00000000:")
		}
	}
	return false
}

// inTable is an address as the system writes it in its table of connections.
func inTable(a *net.TCPAddr) string {
	ip := slices.Clone(a.IP.To4())
	slices.Reverse(ip) // of little-endian machines
	return fmt.Sprintf("%s:%04X", strings.ToUpper(hex.EncodeToString(ip)), a.Port)
}
