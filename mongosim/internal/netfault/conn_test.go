package netfault_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/mongosim/internal/netfault"
)

func TestSenderWaitsWhenTooMuchIsOnTheWay(t *testing.T) {
	pair(t, []string{"latency 1s"}, func(t *testing.T, _ *netfault.Network, a *netfault.Conn, b net.Conn) {
		big := bytes.Repeat([]byte("x"), 5<<20)
		if err := a.SetWriteDeadline(time.Now().Add(500 * ms)); err != nil {
			t.Fatal(err)
		}
		sent, err := a.Write(big)
		if sent >= len(big) || sent < 4<<20 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d bytes were sent, %v", sent, err)
		}
		if n, err := io.ReadFull(b, big[:sent]); err != nil {
			t.Errorf("%d of %d bytes arrived: %v", n, sent, err)
		}
	})
}

func TestReaderHoldsTheSenderBack(t *testing.T) {
	pair(t, []string{"latency 1ms"}, func(t *testing.T, _ *netfault.Network, a *netfault.Conn, b net.Conn) {
		_ = a.SetReadDeadline(time.Now().Add(ms))
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		_ = b.SetWriteDeadline(time.Now().Add(time.Second))
		if n, err := b.Write(make([]byte, 6<<20)); !errors.Is(err, os.ErrDeadlineExceeded) || n < 4<<20 {
			t.Errorf("%d bytes were taken with nobody reading, %v", n, err)
		}
	})
}

func TestDeadlinesOfAQueue(t *testing.T) {
	pair(t, []string{"latency 1s"}, func(t *testing.T, _ *netfault.Network, a *netfault.Conn, b net.Conn) {
		start := time.Now()
		go write(t, b, "x")
		_ = a.SetReadDeadline(start.Add(300 * ms))
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		took(t, "the deadline", start, 300*ms)
		_ = a.SetReadDeadline(time.Time{})
		expect(t, a, "x")
		took(t, "the data", start, time.Second)
		// Neither deadline reached the connection below.
		_ = a.SetDeadline(time.Now().Add(ms))
		time.Sleep(2 * ms)
		_ = a.SetDeadline(time.Time{})
		write(t, a, "y")
		expect(t, b, "y")
		go write(t, b, "z")
		expect(t, a, "z")
	})
}

func TestCut(t *testing.T) {
	for _, before := range [][]string{nil, {"latency 5ms"}, {"drop"}, {"freeze"}} {
		pair(t, before, func(t *testing.T, n *netfault.Network, a *netfault.Conn, b net.Conn) {
			time.AfterFunc(time.Second, func() { set(t, n, "b", "a", "cut") })
			if _, err := a.Read(make([]byte, 1)); !errors.Is(err, netfault.ErrCut) {
				t.Errorf("%v: read: %v", before, err)
			}
			if _, err := a.Write([]byte("x")); !errors.Is(err, netfault.ErrCut) {
				t.Errorf("%v: write: %v", before, err)
			}
			if _, err := b.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("%v: the other end: %v", before, err)
			}
			c, d := pipe(n)
			if _, err := c.Write([]byte("x")); !errors.Is(err, netfault.ErrCut) {
				t.Errorf("a new connection: %v", err)
			}
			if _, err := d.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("a new connection's other end: %v", err)
			}
			n.Heal("a", "b")
			if _, err := a.Write([]byte("x")); !errors.Is(err, netfault.ErrCut) {
				t.Errorf("healing brought a connection back: %v", err)
			}
			e, f := pipe(n)
			go write(t, e, "x")
			expect(t, f, "x")
			_, _ = c.Close(), e.Close()
		})
	}
}

func TestReset(t *testing.T) {
	for name, before := range map[string][]string{"direct": nil, "with latency": {"latency 1ms"}, "slow": {"rate 70"}} {
		t.Run(name, func(t *testing.T) {
			pair(t, append(before, "reset after=5 out"), func(t *testing.T, n *netfault.Network, a *netfault.Conn, b net.Conn) {
				go func() { _, _ = a.Write([]byte("abcdefgh")) }()
				if got, err := io.ReadAll(b); string(got) != "abcde" || err != nil {
					t.Errorf("%q arrived, %v", got, err)
				}
				if _, err := a.Write([]byte("x")); !errors.Is(err, netfault.ErrReset) {
					t.Errorf("afterwards: %v", err)
				}
				set(t, n, "a", "b", append(before, "reset after=5 in")...)
				c, d := pipe(n)
				go func() { _, _ = d.Write([]byte("abcdefgh")) }()
				if got, err := io.ReadAll(c); string(got) != "abcde" || !errors.Is(err, netfault.ErrReset) {
					t.Errorf("%q arrived, %v", got, err)
				}
				_, _ = c.Close(), d.Close()
			})
		})
	}
}

func TestResetCountsFromWhenItWasSet(t *testing.T) {
	pair(t, nil, func(t *testing.T, n *netfault.Network, a *netfault.Conn, b net.Conn) {
		go write(t, a, "before")
		expect(t, b, "before")
		set(t, n, "a", "b", "reset after=2")
		go write(t, a, "1")
		expect(t, b, "1")
		set(t, n, "a", netfault.Any, "rate 1000") // another fault does not start it again
		go func() { _, _ = a.Write([]byte("23")) }()
		if got, err := io.ReadAll(b); string(got) != "2" || err != nil {
			t.Errorf("%q arrived, %v", got, err)
		}
	})
	pair(t, []string{"reset after=0"}, func(t *testing.T, _ *netfault.Network, a *netfault.Conn, _ net.Conn) {
		if n, err := a.Read(make([]byte, 1)); n != 0 || !errors.Is(err, netfault.ErrReset) {
			t.Errorf("after 0 bytes: %d, %v", n, err)
		}
	})
	pair(t, []string{"reset after=0"}, func(t *testing.T, _ *netfault.Network, a *netfault.Conn, _ net.Conn) {
		if n, err := a.Write(make([]byte, 1)); n != 0 || !errors.Is(err, netfault.ErrReset) {
			t.Errorf("after 0 bytes: %d, %v", n, err)
		}
	})
}

func TestRate(t *testing.T) {
	for name, text := range map[string]string{"plain": "latency 0s", "with latency": "latency 1s"} {
		t.Run(name, func(t *testing.T) {
			pair(t, []string{text, "rate 1000"}, func(t *testing.T, _ *netfault.Network, a *netfault.Conn, b net.Conn) {
				for name, way := range map[string][2]net.Conn{"out": {a, b}, "in": {b, a}} {
					start := time.Now()
					go write(t, way[0], string(make([]byte, 2000)))
					expect(t, way[1], string(make([]byte, 2000)))
					// Twenty pieces, the first of which goes at once.
					want := 1900 * ms
					if text == "latency 1s" {
						want += time.Second
					}
					took(t, name, start, want)
					time.Sleep(time.Second)
				}
			})
		})
	}
}

func TestSlowestRateEndsWithItsFault(t *testing.T) {
	pair(t, []string{"rate 1"}, func(t *testing.T, n *netfault.Network, a *netfault.Conn, b net.Conn) {
		start := time.Now()
		time.AfterFunc(2500*ms, n.HealAll)
		go write(t, a, "abcdef")
		expect(t, b, "abc")
		took(t, "three bytes", start, 2*time.Second)
		expect(t, b, "def")
		took(t, "the rest", start, 2500*ms)
	})
}

func TestCloseDeliversWhatIsOnItsWay(t *testing.T) {
	pair(t, []string{"latency 5ms"}, func(t *testing.T, _ *netfault.Network, a *netfault.Conn, b net.Conn) {
		start := time.Now()
		write(t, a, "last words")
		go func() {
			_ = a.Close()
			took(t, "closing", start, 5*ms)
		}()
		if got, err := io.ReadAll(b); string(got) != "last words" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("write after close: %v", err)
		}
		if _, err := a.Read([]byte("x")); !errors.Is(err, net.ErrClosed) {
			t.Errorf("read after close: %v", err)
		}
		if err := a.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("second close: %v", err)
		}
	})
}

func TestCloseDoesNotWaitForever(t *testing.T) {
	for name, tc := range map[string]struct {
		then []string
		want time.Duration
	}{
		"the other end does not read": {[]string{"latency 5ms"}, 105 * ms},
		"a black hole":                {[]string{"latency 5ms", "drop"}, 0},
		"frozen":                      {[]string{"freeze"}, 0},
		"cut":                         {[]string{"cut"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			pair(t, []string{"latency 5ms"}, func(t *testing.T, n *netfault.Network, a *netfault.Conn, _ net.Conn) {
				write(t, a, "x")
				set(t, n, "a", "b", tc.then...)
				synctest.Wait()
				start := time.Now()
				_ = a.Close()
				took(t, "closing", start, tc.want)
			})
		})
	}
}

func TestBlockedCallsEndWithTheConnection(t *testing.T) {
	for _, texts := range [][]string{nil, {"drop"}, {"freeze"}, {"latency 5ms"}, {"rate 1"}} {
		pair(t, texts, func(t *testing.T, _ *netfault.Network, a *netfault.Conn, _ net.Conn) {
			var calls sync.WaitGroup
			calls.Go(func() {
				if _, err := a.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrClosedPipe) {
					t.Errorf("%v: read: %v", texts, err)
				}
			})
			for range 2 {
				calls.Go(func() {
					if _, err := a.Write(make([]byte, 5<<20)); !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrClosedPipe) {
						t.Errorf("%v: write: %v", texts, err)
					}
				})
			}
			synctest.Wait()
			_ = a.Close()
			calls.Wait()
		})
	}
}
