package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("SPOOL_KILL_DIR"); dir != "" {
		writeUntilKilled(dir)
	}
	goleak.VerifyTestMain(m)
}

const (
	mib = 1 << 20
	gib = 1 << 30
)

var base = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

func at(n int) oplog.OpTime { return oplog.NewOpTime(1000, uint32(n), 1) }

// entry is number n, with so many bytes more than it needs. Every fifth one is a
// command.
func entry(t testing.TB, n, pad int) oplog.Entry {
	_, doc := bsoncore.AppendDocumentStart(nil)
	if n%5 == 0 {
		doc = bsoncore.AppendStringElement(doc, "op", "c")
		doc = bsoncore.AppendStringElement(doc, "ns", "db.$cmd")
		doc = bsoncore.AppendDocumentElement(doc, "o", bsoncore.NewDocumentBuilder().AppendString("create", fmt.Sprintf("c%d", n)).Build())
	} else {
		doc = bsoncore.AppendStringElement(doc, "op", "i")
		doc = bsoncore.AppendStringElement(doc, "ns", "db.c")
		doc = bsoncore.AppendDocumentElement(doc, "o", bsoncore.NewDocumentBuilder().AppendInt32("_id", int32(n)).
			AppendBinary("pad", 0, make([]byte, pad)).Build())
	}
	doc = bsoncore.AppendBinaryElement(doc, "ui", 4, []byte("0123456789abcdef"))
	doc = bsoncore.AppendTimestampElement(doc, "ts", at(n).TS.T, at(n).TS.I)
	doc = bsoncore.AppendInt64Element(doc, "t", at(n).Term)
	doc = bsoncore.AppendInt64Element(doc, "v", 2)
	doc = bsoncore.AppendDateTimeElement(doc, "wall", 1_700_000_000_000)
	doc = must.Get(bsoncore.AppendDocumentEnd(doc, 0))(t)
	return must.Get(oplog.ParseEntry(doc))(t)
}

// reply has entries of these numbers.
func reply(t testing.TB, pad int, numbers ...int) oplog.Reply {
	r := oplog.Reply{Received: base.Add(time.Duration(numbers[0]))}
	for _, n := range numbers {
		e := entry(t, n, pad)
		r.Entries = append(r.Entries, e)
		r.Bytes += int64(len(e.Raw)) + entrySize
	}
	return r
}

func numbers(r oplog.Reply) (list []int) {
	for i := range r.Entries {
		list = append(list, int(r.Entries[i].OpTime.TS.I))
	}
	return list
}

func sequence(from, to int) (list []int) {
	for n := from; n <= to; n++ {
		list = append(list, n)
	}
	return list
}

// hardware is a disk with configurable free space.
type hardware struct {
	mu   sync.Mutex
	free int64
	// left is how many bytes can be written before one write fails in the middle,
	// negative for no limit.
	left  int
	syncs int
	fault error
}

func newHardware() *hardware { return &hardware{free: 1 << 50, left: -1} }

// set changes the state.
func (d *hardware) set(free int64, left int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free, d.left = free, left
}

func (d *hardware) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = err
}

// synced returns the number of syncs.
func (d *hardware) synced() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.syncs
}

func (d *hardware) disk(full error) disk {
	return disk{
		open: os.OpenFile,
		write: func(f *os.File, b []byte, at int64) (int, error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.left < 0 || d.left >= len(b) {
				if d.left > 0 {
					d.left -= len(b)
				}
				return f.WriteAt(b, at)
			}
			n, err := f.WriteAt(b[:d.left], at)
			d.left = 0
			return n, errors.Join(err, full)
		},
		sync: func(*os.File) error {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.syncs++
			return d.fault
		},
		free: func(string) (int64, error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.free, nil
		},
	}
}

// openTest opens a spool whose disk does not sync, so that tests are fast.
func openTest(t testing.TB, cfg Config) (*Spool, error) {
	t.Helper()
	if cfg.ID == "" {
		cfg.ID = "link/1"
	}
	return open(cfg, newHardware().disk(nil))
}

func mustOpen(t testing.TB, cfg Config) *Spool {
	t.Helper()
	s, err := openTest(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// storeAll stores replies.
func storeAll(t testing.TB, s *Spool, replies ...oplog.Reply) {
	t.Helper()
	must.Succeed(t, tryStore(t, s, replies...))
}

func tryStore(t testing.TB, s *Spool, replies ...oplog.Reply) error {
	return s.Store(t.Context(), feed(replies))
}

func feed(replies []oplog.Reply) chan oplog.Reply {
	in := make(chan oplog.Reply, len(replies))
	for _, r := range replies {
		in <- r
	}
	close(in)
	return in
}

// errAll ends reading where everything was handed on.
var errAll = errors.New("everything was handed on")

// both stores replies from in, and sends everything stored, until in is closed and all
// of it was sent (nil), ctx is done (its cause), or one of them fails.
func both(ctx context.Context, s *Spool, in <-chan oplog.Reply, out chan<- oplog.Reply) error {
	defer close(out)
	from, err := s.beginRead() // as Read does, before the first entry is stored
	if err != nil {
		return err
	}
	defer s.endRead()
	g, ctx := errgroup.WithContext(ctx)
	reading, end := context.WithCancelCause(ctx)
	defer end(nil)
	read, stored := make(chan oplog.Reply), make(chan struct{})
	g.Go(func() error {
		err := s.Store(ctx, in)
		if err == nil {
			close(stored)
		}
		return err
	})
	g.Go(func() error {
		defer close(read)
		err := s.handOnLoop(reading, read, from)
		if errors.Is(err, errAll) {
			return nil
		}
		return err
	})
	g.Go(func() error {
		var seen oplog.OpTime
		for more := stored; ; {
			select {
			case <-more:
				more = nil
			case r, ok := <-read:
				if !ok {
					return nil
				}
				seen = r.Entries[len(r.Entries)-1].OpTime
				select {
				case out <- r:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			if _, last, ok := s.Bounds(); more == nil && (!ok || seen == last) {
				end(errAll)
			}
		}
	})
	return g.Wait()
}

// drain runs s with replies, and returns what it sends.
func drain(t testing.TB, s *Spool, replies ...oplog.Reply) ([]oplog.Reply, error) {
	t.Helper()
	out := make(chan oplog.Reply)
	done := make(chan error, 1)
	go func() { done <- both(t.Context(), s, feed(replies), out) }()
	var got []oplog.Reply
	for r := range out {
		got = append(got, r)
		s.Release(r.Bytes)
	}
	return got, <-done
}

func allNumbers(replies []oplog.Reply) (list []int) {
	for _, r := range replies {
		list = append(list, numbers(r)...)
	}
	return list
}

func files(t testing.TB, dir string) (paths []string) {
	t.Helper()
	list := must.Get(listFiles(dir))(t)
	for _, g := range list {
		paths = append(paths, g.path)
	}
	return paths
}

func want[V any](t testing.TB, what string, got, want V) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: (-want +got)\n%s", what, diff)
	}
}

// running is a Spool that runs in a bubble.
type running struct {
	*Spool
	t       *testing.T
	in, out chan oplog.Reply
	done    chan error
}

// eventLog has the events since the last look.
type eventLog struct{ list []string }

func (l *eventLog) observe(e event.Event) {
	l.list = append(l.list, e.Message())
}

func (l *eventLog) take() []string {
	list := l.list
	l.list = nil
	return list
}

func startRun(ctx context.Context, t *testing.T, s *Spool) *running {
	r := &running{Spool: s, t: t, in: make(chan oplog.Reply), out: make(chan oplog.Reply), done: make(chan error, 1)}
	go func() { r.done <- both(ctx, s, r.in, r.out) }()
	return r
}

func startStore(ctx context.Context, t *testing.T, s *Spool) *running {
	r := &running{Spool: s, t: t, in: make(chan oplog.Reply), out: make(chan oplog.Reply), done: make(chan error, 1)}
	go func() { r.done <- s.Store(ctx, r.in) }()
	return r
}

// offer sends a reply and reports whether it was taken.
func (r *running) offer(reply oplog.Reply) bool {
	synctest.Wait()
	select {
	case r.in <- reply:
		synctest.Wait()
		return true
	default:
		return false
	}
}

// take receives a reply, nil for none.
func (r *running) take() *oplog.Reply {
	synctest.Wait()
	select {
	case reply, ok := <-r.out:
		if !ok {
			return nil
		}
		synctest.Wait()
		return &reply
	default:
		return nil
	}
}

func (r *running) takeNumbers() []int {
	reply := r.take()
	if reply == nil {
		return nil
	}
	return numbers(*reply)
}

// metricValue returns -1 if there is no such metric.
func metricValue(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families := must.Get(reg.Gather())(t)
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return -1
}
