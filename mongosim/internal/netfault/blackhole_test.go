package netfault_test

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/mongosim/internal/netfault"
)

func TestBlackHoleHoldsBack(t *testing.T) {
	for name, tc := range map[string]struct {
		text    string
		in, out bool // what gets through
	}{
		"drop":          {"drop", false, false},
		"half-open in":  {"half-open in", false, true},
		"half-open out": {"half-open out", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			pair(t, []string{tc.text}, func(t *testing.T, n *netfault.Network, a *netfault.Conn, b net.Conn) {
				for way, held := range map[string]bool{"in": !tc.in, "out": !tc.out} {
					from, to := net.Conn(a), b
					if way == "in" {
						from, to = b, a
					}
					start := time.Now()
					want := time.Duration(0)
					if held {
						want = time.Second
						time.AfterFunc(want, n.HealAll)
					}
					go write(t, from, "late")
					expect(t, to, "late")
					took(t, way, start, want)
					set(t, n, "a", "b", tc.text)
				}
			})
		})
	}
}

func TestDeadlinesHoldInABlackHole(t *testing.T) {
	for _, before := range [][]string{{"drop"}, {"latency 1ms", "drop"}} {
		pair(t, before, func(t *testing.T, _ *netfault.Network, a *netfault.Conn, _ net.Conn) {
			start := time.Now()
			if err := a.SetDeadline(start.Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			for name, op := range map[string]func([]byte) (int, error){"read": a.Read, "write": a.Write} {
				if n, err := op(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%s: %d, %v", name, n, err)
				}
				took(t, name, start, time.Second)
			}
			// A deadline that is moved counts for those that wait already.
			_ = a.SetDeadline(time.Time{})
			time.AfterFunc(time.Second, func() { _ = a.SetDeadline(time.Now()) })
			if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(err)
			}
			took(t, "the moved one", start, 2*time.Second)
		})
	}
}

func TestWhatArrivesUnderABlackHoleIsHeld(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *netfault.Network, a *netfault.Conn, b net.Conn) {
		start := time.Now()
		go func() {
			synctest.Wait() // a is reading
			set(t, n, "a", "b", "drop")
			write(t, b, "abc")
			_ = b.Close()
			time.Sleep(time.Second)
			n.HealAll()
		}()
		if got, err := io.ReadAll(a); err != nil || string(got) != "abc" {
			t.Errorf("got %q, %v", got, err)
		}
		took(t, "reading", start, time.Second)
	})
}

func TestFrozenEndMissesItsDeadlines(t *testing.T) {
	pair(t, []string{"freeze"}, func(t *testing.T, n *netfault.Network, a *netfault.Conn, b net.Conn) {
		start := time.Now()
		_ = a.SetDeadline(start.Add(time.Second))
		time.AfterFunc(time.Minute, n.HealAll)
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		took(t, "the read", start, time.Minute)
		// The same if it is frozen while it reads or writes.
		for name, op := range map[string]func([]byte) (int, error){"read": a.Read, "write": a.Write} {
			start := time.Now()
			_ = a.SetDeadline(start.Add(time.Second))
			time.AfterFunc(500*ms, func() { set(t, n, "a", "b", "freeze") })
			time.AfterFunc(time.Minute, n.HealAll)
			if _, err := op(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error(err)
			}
			took(t, name, start, time.Minute)
		}
		// Its other end has deadlines all the same.
		_ = b.SetReadDeadline(time.Now())
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	})
}
