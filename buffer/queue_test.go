package buffer

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/oplogrep/replicator/oplog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mib = 1 << 20

// running is a Queue that runs in a bubble.
type running struct {
	t *testing.T
	*Queue
	in, out chan oplog.Reply
	done    chan error
	sent    int
}

// start runs a Queue that has room for 64 MiB and its headroom.
func start(ctx context.Context, t *testing.T, cfg Config) *running {
	t.Helper()
	if cfg.Limit == 0 {
		cfg.Limit, cfg.headroom = 96*mib, 32*mib
	}
	q, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &running{t: t, Queue: q, in: make(chan oplog.Reply), out: make(chan oplog.Reply), done: make(chan error, 1)}
	go func() { r.done <- q.Run(ctx, r.in, r.out) }()
	return r
}

// offer sends a reply of this size and reports whether it was received.
func (r *running) offer(bytes int64) bool {
	synctest.Wait()
	select {
	case r.in <- oplog.Reply{Bytes: bytes, Received: time.Now(), Entries: make([]oplog.Entry, r.sent+1)}:
		r.sent++
		return true
	default:
		return false
	}
}

// take receives a reply and returns its number, from 1; 0 for none.
func (r *running) take() int {
	synctest.Wait()
	select {
	case reply := <-r.out:
		synctest.Wait()
		return len(reply.Entries)
	default:
		return 0
	}
}

func (r *running) want(what string, got, want any) {
	r.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		r.t.Errorf("%s: (-want +got)\n%s", what, diff)
	}
}

func TestBackPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		q := start(t.Context(), t, Config{Limit: 96 * mib, headroom: 32 * mib, Registry: reg})
		q.want("a first reply", q.offer(40*mib), true)
		q.want("a second one, which has to wait for room", q.offer(44*mib), true)
		q.want("a third one", q.offer(1), false)
		time.Sleep(3 * time.Second)
		q.want("waits", q.Stats(), Stats{
			Buffered: 40 * mib, Queued: 40 * mib, Replies: 1, Oldest: time.Now().Add(-3 * time.Second), Waiting: true, Limit: 64 * mib,
		})
		q.want("gauges", metricValue(t, reg, "replicator_buffer_oldest_age_seconds"), 3.0)
		q.want("the first one", q.take(), 1)
		q.want("what is sent but not applied counts", q.take(), 0)
		q.Release(10 * mib)
		q.want("a part of it is not enough", q.take(), 0)
		q.Release(10 * mib)
		q.want("once there is room", q.take(), 2)
		q.want("then there is no more", q.offer(1), false)
		q.Release(20 * mib)
		q.want("when it is released", q.offer(1), true)
		q.want("the third one", q.take(), 3)
		q.want("waits, counted", metricValue(t, reg, "replicator_buffer_waits_total"), 1.0)
		q.want("waited", metricValue(t, reg, "replicator_buffer_wait_seconds_total"), 3.0)
		close(q.in)
		q.want("the end", <-q.done, nil)
		if _, open := <-q.out; open {
			t.Error("out is open")
		}
		q.Release(44*mib + 1)
		q.want("buffered in the end", q.Stats().Buffered, int64(0))
	})
}

func metricValue(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	t.Errorf("no metric %s", name)
	return 0
}

// TestLargest: a reply that is larger than the limit passes alone.
func TestLargest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := start(t.Context(), t, Config{})
		q.want("a reply larger than the limit", q.offer(200*mib), true)
		q.want("another one", q.offer(1), false)
		q.want("the large one", q.take(), 1)
		q.want("after the large one", q.offer(1), false)
		q.Release(200 * mib)
		q.want("after it", q.offer(1), true)
		q.want("a large one after a small one", q.offer(200*mib), true)
		q.want("the small one", q.take(), 2)
		q.want("the large one has to wait", q.take(), 0)
		q.Release(1)
		q.want("nothing is buffered", q.take(), 3)
		close(q.in)
		q.Release(200 * mib)
		q.want("the end", <-q.done, nil)
	})
}

func TestCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := start(t.Context(), t, Config{replies: 2})
		for range 2 {
			q.want("there is room", q.offer(1), true)
		}
		q.want("too many", q.offer(1), false)
		q.want("the first", q.take(), 1)
		q.want("one was sent", q.offer(1), true)
		close(q.in)
		for n := 2; n <= 3; n++ {
			q.want("the rest, in order", q.take(), n)
		}
		q.want("the end", <-q.done, nil)
	})
}

// TestCancel: canceling ends Run whatever it waits for, and Run can be called again.
func TestCancel(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before func(q *running)
	}{
		{"nothing there", func(*running) {}},
		{"nobody takes", func(q *running) { q.offer(1) }},
		{"no room", func(q *running) { q.offer(64 * mib); q.offer(1); q.take() }},
		{"closed", func(q *running) { q.offer(1); close(q.in) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				q := start(ctx, t, Config{})
				tt.before(q)
				synctest.Wait()
				why := errors.New("the attempt is over")
				cancel(why)
				if err := <-q.done; !errors.Is(err, why) {
					t.Errorf("Run: %v, want %v", err, why)
				}
				if _, open := <-q.out; open {
					t.Error("out is open, or has what was dropped")
				}
				q.in, q.out = make(chan oplog.Reply), make(chan oplog.Reply)
				go func() { q.done <- q.Run(t.Context(), q.in, q.out) }()
				q.want("after a new start", q.offer(64*mib), true)
				close(q.in)
				q.want("the same", q.take(), q.sent)
				q.Release(64 * mib)
				q.want("the end", <-q.done, nil)
			})
		})
	}
}

// TestLateRelease: bytes sent before the end may be released after it.
func TestLateRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		q := start(ctx, t, Config{})
		q.offer(5)
		q.offer(6)
		q.take()
		cancel(nil)
		if err := <-q.done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		q.Release(5)
		q.want("buffered", q.Stats().Buffered, int64(0))
	})
}

func TestReleaseTooMuch(t *testing.T) {
	q, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if what, ok := recover().(string); !ok || !strings.Contains(what, "1 bytes are released, 0 are buffered") {
			t.Errorf("recovered %v", what)
		}
	}()
	q.Release(1)
}

func TestConfig(t *testing.T) {
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, ""},
		{Config{Limit: 32 * mib}, ""},
		{Config{Limit: 31 * mib}, "want 33554432 or more"},
	} {
		_, err := New(tt.cfg)
		if got := errText(err); tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%+v: %q, want %q", tt.cfg, got, tt.want)
		}
	}
}

// TestReplyBytes: two replies of the size that is asked for fit into the headroom.
func TestReplyBytes(t *testing.T) {
	for limit, want := range map[int64]int64{32 * mib: 8 * mib, 64 * mib: 16 * mib, 96 * mib: 0, 256 * mib: 0} {
		if got := ReplyBytes(limit); got != want {
			t.Errorf("with %d MiB: %d bytes, want %d", limit/mib, got, want)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestRegistry: a second Queue continues the metrics of the first.
func TestRegistry(t *testing.T) {
	reg := prometheus.NewRegistry()
	for range 2 {
		if _, err := New(Config{Registry: reg}); err != nil {
			t.Fatal(err)
		}
	}
	if n := metricValue(t, reg, "replicator_buffer_limit_bytes"); n != 208*mib {
		t.Errorf("a limit of %v", n)
	}
}

// TestAllocs: passing a reply on allocates only its place in the queue.
func TestAllocs(t *testing.T) {
	q, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	in, out := make(chan oplog.Reply), make(chan oplog.Reply)
	done := make(chan error, 1)
	go func() { done <- q.Run(t.Context(), in, out) }()
	got := testing.AllocsPerRun(1000, func() {
		in <- oplog.Reply{Bytes: 100}
		r := <-out
		q.Release(r.Bytes)
	})
	close(in)
	if err := <-done; err != nil || got > 0 {
		t.Errorf("%v allocations per reply, %v", got, err)
	}
}

func BenchmarkQueue(b *testing.B) {
	q, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	in, out := make(chan oplog.Reply), make(chan oplog.Reply)
	done := make(chan error, 1)
	go func() { done <- q.Run(b.Context(), in, out) }()
	b.ReportAllocs()
	for b.Loop() {
		in <- oplog.Reply{Bytes: 100}
		r := <-out
		q.Release(r.Bytes)
	}
	close(in)
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
