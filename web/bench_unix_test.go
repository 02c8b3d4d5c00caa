//go:build unix

package web

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// cpuTime returns the CPU time of the process, in user and system mode.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkStreams measures what 200 clients of /events cost that take each status, and one that takes
// nothing, with the clients' own work: an operation is one second, %core the share of a core that it takes.
func BenchmarkStreams(b *testing.B) {
	const clients = 200
	body := strings.Repeat("x", 4600)
	cfg := config(nil)
	cfg.Link.Status = func() any { return body }
	s, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(b.Context())
	var all sync.WaitGroup
	all.Go(func() {
		if err := s.Serve(ctx, l); err != nil {
			b.Error(err)
		}
	})
	var got sync.WaitGroup // the first status of each client
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		if _, err := fmt.Fprint(c, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			b.Fatal(err)
		}
		return c
	}
	slow := dial()
	for range clients {
		c := dial()
		got.Add(1)
		all.Go(func() {
			defer func() { _ = c.Close() }()
			first := sync.OnceFunc(got.Done)
			for r := bufio.NewReader(c); ; {
				line, err := r.ReadString('\n')
				if err != nil {
					return
				}
				if strings.HasPrefix(line, "data: ") {
					first()
				}
			}
		})
	}
	got.Wait()
	b.ResetTimer()
	before, began := cpuTime(b), time.Now()
	for range b.N {
		time.Sleep(statusEvery)
	}
	b.ReportMetric(100*(cpuTime(b)-before).Seconds()/time.Since(began).Seconds(), "%core")
	b.StopTimer()
	stop(nil)
	_ = slow.Close()
	all.Wait()
}
