package netfault_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/mongosim/internal/netfault"
)

func TestPerfectLink(t *testing.T) {
	pair(t, nil, func(t *testing.T, _ *netfault.Network, a *netfault.Conn, b net.Conn) {
		go write(t, b, "hello")
		expect(t, a, "hello")
		go write(t, a, "bye")
		expect(t, b, "bye")
		if a.LocalAddr() == nil || a.RemoteAddr() == nil {
			t.Error("no addresses")
		}
		if n, err := a.Read(nil); n != 0 || err != nil {
			t.Errorf("reading nothing: %d, %v", n, err)
		}
		_ = b.Close()
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestLatency(t *testing.T) {
	pair(t, []string{"latency 5ms out", "latency 3ms in"}, func(t *testing.T, _ *netfault.Network, a *netfault.Conn, b net.Conn) {
		start := time.Now()
		write(t, a, "ping")
		took(t, "sending", start, 0)
		expect(t, b, "ping")
		took(t, "the way there", start, 5*ms)
		go write(t, b, "pong")
		expect(t, a, "pong")
		took(t, "both ways", start, 8*ms)
	})
}

func TestLatencyIsNoLimitOnThroughput(t *testing.T) {
	pair(t, []string{"latency 50ms"}, func(t *testing.T, _ *netfault.Network, a *netfault.Conn, b net.Conn) {
		big := bytes.Repeat([]byte("x"), 1<<20)
		for name, way := range map[string][2]net.Conn{"out": {a, b}, "in": {b, a}} {
			start := time.Now()
			go func() {
				for range 3 {
					write(t, way[0], string(big))
				}
			}()
			if _, err := io.ReadFull(way[1], make([]byte, 3<<20)); err != nil {
				t.Error(err)
			}
			took(t, name, start, 50*ms)
		}
	})
}

func TestLatencyWithJitterKeepsTheOrder(t *testing.T) {
	pair(t, []string{"latency 1ms jitter=20ms"}, func(t *testing.T, _ *netfault.Network, a *netfault.Conn, b net.Conn) {
		const text = "abcdefghijklmnopqrstuvwxyz"
		for name, way := range map[string][2]net.Conn{"out": {a, b}, "in": {b, a}} {
			t.Log(name)
			go func() {
				for i := range text {
					write(t, way[0], text[i:i+1])
				}
			}()
			expect(t, way[1], text)
		}
	})
}

func TestHealedLatency(t *testing.T) {
	pair(t, []string{"latency 5ms"}, func(t *testing.T, n *netfault.Network, a *netfault.Conn, b net.Conn) {
		write(t, a, "1")
		n.HealAll()
		write(t, a, "2")
		start := time.Now()
		expect(t, b, "12") // 2 does not overtake 1
		took(t, "what was sent before", start, 5*ms)
		write(t, a, "3")
		expect(t, b, "3")
		took(t, "what was sent after", start, 5*ms)
	})
}

func TestEndOfStreamIsLateToo(t *testing.T) {
	pair(t, []string{"latency 5ms"}, func(t *testing.T, _ *netfault.Network, a *netfault.Conn, b net.Conn) {
		start := time.Now()
		go func() {
			write(t, b, "last")
			_ = b.Close()
		}()
		if got, err := io.ReadAll(a); err != nil || string(got) != "last" {
			t.Errorf("got %q, %v", got, err)
		}
		took(t, "the end", start, 5*ms)
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the second time: %v", err)
		}
	})
}

func TestLatencyThatComesWhileReading(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *netfault.Network, a *netfault.Conn, b net.Conn) {
		start := time.Now()
		go func() {
			synctest.Wait() // a is reading
			set(t, n, "a", "b", "latency 5ms")
			write(t, b, "x")
		}()
		expect(t, a, "x")
		took(t, "reading", start, 5*ms)
	})
}
