package netfault_test

import (
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/mongosim/fault"
	"github.com/oplogrep/replicator/mongosim/internal/netfault"
)

// harmlessFaults are those that break no connection.
func harmlessFaults() *rapid.Generator[fault.Fault] {
	return rapid.Custom(func(t *rapid.T) fault.Fault {
		kinds := []fault.Kind{fault.Latency, fault.Drop, fault.HalfOpen, fault.Rate, fault.Freeze}
		f := fault.Fault{Kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
		some := rapid.SampledFrom([]fault.Direction{fault.Both, fault.In, fault.Out})
		switch f.Kind {
		case fault.Latency:
			duration := rapid.Int64Range(0, int64(24*time.Hour))
			f.Delay = time.Duration(duration.Draw(t, "delay"))
			f.Jitter = time.Duration(duration.Draw(t, "jitter"))
			f.Direction = some.Draw(t, "direction")
		case fault.HalfOpen:
			f.Direction = rapid.SampledFrom([]fault.Direction{fault.In, fault.Out}).Draw(t, "direction")
		case fault.Rate:
			f.Bytes = rapid.Int64Min(1).Draw(t, "bytes")
			f.Direction = some.Draw(t, "direction")
		case fault.Drop, fault.Freeze, fault.Cut, fault.Reset:
		}
		return f
	})
}

// Whatever happens to a link short of breaking it, all bytes sent arrive, in
// order.
func TestNothingIsLostOrReordered(t *testing.T) {
	harmless := harmlessFaults()
	type change struct {
		after  time.Duration
		faults []fault.Fault
	}
	changes := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) change {
		c := change{after: time.Duration(rapid.IntRange(0, 50).Draw(t, "after")) * ms}
		for _, f := range rapid.SliceOfN(harmless, 0, 3).Draw(t, "faults") {
			f.Delay %= 30 * ms
			f.Jitter %= 30 * ms
			c.faults = append(c.faults, f)
		}
		return c
	}), 0, 8)
	rapid.Check(t, func(rt *rapid.T) {
		plan := changes.Draw(rt, "changes")
		sizes := rapid.SliceOfN(rapid.IntRange(1, 3000), 1, 10).Draw(rt, "writes")
		seed := rapid.Uint64().Draw(rt, "seed")
		var wrong error
		synctest.Test(t, func(*testing.T) {
			n := netfault.NewNetwork(seed)
			a, b := pipe(n)
			var all sync.WaitGroup
			all.Go(func() {
				for _, c := range plan {
					time.Sleep(c.after)
					wrong = errors.Join(wrong, n.Set("a", "b", c.faults...))
				}
				time.Sleep(10 * ms)
				n.HealAll()
			})
			for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
				total, next := 0, byte(0)
				for _, size := range sizes {
					total += size
				}
				all.Go(func() {
					for _, size := range sizes {
						p := make([]byte, size)
						for i := range p {
							p[i], next = next, next+1
						}
						if _, err := way[0].Write(p); err != nil {
							panic(err) // the other end would wait for ever
						}
						time.Sleep(ms)
					}
				})
				all.Go(func() {
					got := make([]byte, total)
					if _, err := io.ReadFull(way[1], got); err != nil {
						panic(err)
					}
					for i := range got {
						if got[i] != byte(i) {
							panic("bytes are missing or out of order")
						}
					}
				})
			}
			all.Wait()
			_, _ = a.Close(), b.Close()
		})
		if wrong != nil {
			rt.Fatal(wrong)
		}
	})
}

// tcp returns both ends of a connection; that of a is wrapped.
func tcp(t testing.TB, n *netfault.Network) (a *netfault.Conn, b net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	if b, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	under, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return n.Conn("a", "b", under), b
}

func TestResetOverTCP(t *testing.T) {
	for _, text := range []string{"reset after=3 out", "cut"} {
		n := netfault.NewNetwork(1)
		a, b := tcp(t, n)
		set(t, n, "a", "b", text)
		_, _ = a.Write([]byte("abcdef"))
		if _, err := io.ReadAll(b); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: the other end sees %v", text, err)
		}
		_, _ = a.Close(), b.Close()
	}
}

func TestTCPLeavesNoGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	n := netfault.NewNetwork(1)
	set(t, n, "a", "b", "latency 2ms jitter=1ms")
	for range 5 {
		a, b := tcp(t, n)
		go func() { _, _ = io.Copy(b, b) }()
		start := time.Now()
		write(t, a, "there and back")
		expect(t, a, "there and back")
		if d := time.Since(start); d < 4*ms {
			t.Errorf("it took %v", d)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		_ = b.Close()
	}
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(ms)
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}
