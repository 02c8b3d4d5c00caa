package mongosim

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// freePorts returns the first of n ports in a row that are free. They are not of those that a system gives to
// listeners and connections without a port of their own: other tests would get them meanwhile.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	for range 100 {
		first := 10_000 + rand.IntN(20_000)
		free := true
		for i := 0; i < n && free; i++ {
			l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(first+i))
			if free = err == nil; free {
				succeed(t, l.Close())
			}
		}
		if free {
			return first
		}
	}
	t.Fatal("there are no ports in a row")
	return 0
}

func TestPorts(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	first := freePorts(t, 3)
	at := func(i int) string { return "127.0.0.1:" + strconv.Itoa(first+i) }
	opts := Options{Members: 2, Port: first, Hostname: "localhost"}
	for round := range 2 { // again at once: remaining connections do not conflict
		s := must[*Set](t)(Start(ctx, opts))
		t.Cleanup(s.Close)
		if want := "mongodb://localhost:" + strconv.Itoa(first) + ",localhost:" + strconv.Itoa(first+1) + "/?replicaSet=rs0"; s.URI() != want {
			t.Errorf("URI %s, want %s", s.URI(), want)
		}
		if got := s.Member(1).Address(); got != at(1) {
			t.Errorf("member 1 listens on %s, want %s", got, at(1))
		}
		dial(t, s.Member(1)).run(ctx, "admin", bson.D{{Key: "ping", Value: 1}})
		if round == 0 {
			added := must[*Member](t)(s.AddMember(ctx, MemberOptions{}))
			if got := added.Address(); got != at(2) {
				t.Errorf("the new member listens on %s, want %s", got, at(2))
			}
		}
		// A member that is down has its port all the same.
		succeed(t, s.Member(1).Kill())
		succeed(t, s.Member(1).Start())
		_, err := Start(ctx, opts)
		if e, ok := errors.AsType[*PortError](err); !ok || !errors.Is(err, syscall.EADDRINUSE) || e.Addr != at(0) {
			t.Errorf("a second set on the same ports: %v", err)
		}
		s.Close()
	}
}

// TestNoSuchPort adds a member to a set that has the last port.
func TestNoSuchPort(t *testing.T) {
	t.Parallel()
	opts := Options{Address: "127.0.0.1", Port: 65530}
	if _, err := opts.reserve(t.Context(), 6); err == nil {
		t.Error("port 65536 was reserved")
	}
	opts = Options{Address: "203.0.113.7", Port: 1 + 1<<15}
	if _, err := opts.reserve(t.Context(), 0); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("an address of another machine: %v", err)
	}
}

func TestIPv6(t *testing.T) {
	t.Parallel()
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skipf("there is no IPv6 here: %v", err)
	} else {
		succeed(t, l.Close())
	}
	s := StartTest(t, Options{Address: "::1"})
	conn := must[net.Conn](t)(net.DialTimeout("tcp", s.Member(0).Host(), 5*time.Second))
	succeed(t, conn.Close())
}
