package spool

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// TestRead reads while one Store after the other stores.
func TestRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		s := mustOpen(t, Config{Dir: t.TempDir(), SegmentBytes: 500})
		must.Succeed(t, s.Start(at(3)))
		r := &running{Spool: s, t: t, out: make(chan oplog.Reply), done: make(chan error, 1)}
		go func() { r.done <- s.Read(ctx, r.out) }()
		want(t, "nothing there", r.takeNumbers(), nil)
		if !errors.Is(tryStore(t, s, reply(t, 0, 2, 3)), ErrOrder) {
			t.Error("it begins with another entry")
		}
		storeAll(t, s, reply(t, 0, 3), reply(t, 100, 4))
		storeAll(t, s, reply(t, 0, 4, 5))
		want(t, "first", r.takeNumbers(), []int{3})
		for what, err := range map[string]error{
			"another reader": s.Read(ctx, make(chan oplog.Reply)),
			"start":          s.Start(at(3)),
			"close":          s.Close(),
		} {
			if !errors.Is(err, errRunning) {
				t.Errorf("%s: %v", what, err)
			}
		}
		want(t, "second", r.takeNumbers(), []int{4})
		want(t, "third", r.takeNumbers(), []int{5})
		must.Succeed(t, s.Forget(at(5)))
		storeAll(t, s, reply(t, 0, 5, 6))
		want(t, "fourth", r.takeNumbers(), []int{6})
		cancel(nil)
		if err := <-r.done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		// Between Start and Read something is stored.
		s2 := mustOpen(t, Config{Dir: t.TempDir()})
		must.Succeed(t, s2.Start(at(3)))
		storeAll(t, s2, reply(t, 0, 1, 2, 3), reply(t, 0, 4))
		got, err := drain(t, s2)
		want(t, "the end", err, nil)
		want(t, "from there on", allNumbers(got), []int{3, 4})
		r = startRun(t.Context(), t, s2)
		synctest.Wait()
		close(r.in)
		for got := range r.out {
			s2.Release(got.Bytes)
		}
		want(t, "the end", <-r.done, nil)
	})
}

// TestRunAgain: reading ends with its context at any point, and resumes elsewhere.
func TestRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, Config{Dir: t.TempDir(), SegmentBytes: 500})
		why := errors.New("the attempt is over")
		for i := range 5 {
			ctx, cancel := context.WithCancelCause(t.Context())
			begin := max(1, i)
			if i > 0 {
				must.Succeed(t, s.Start(at(begin)))
			}
			r := startRun(ctx, t, s)
			if i > 0 {
				r.offer(reply(t, 50, 3*i, 3*i+1))
			} else {
				r.offer(reply(t, 50, 1))
			}
			r.offer(reply(t, 50, 3*i+2))
			r.offer(reply(t, 50, 3*i+3))
			for n := begin; n <= 3*i+3; {
				list := r.takeNumbers()
				if len(list) == 0 || list[0] != n {
					t.Fatalf("round %d: %v, want %d", i, list, n)
				}
				n += len(list)
				if n == 3*i+2 && i%2 == 1 {
					break // what waits is dropped
				}
			}
			if err := s.Start(at(1)); !errors.Is(err, errRunning) {
				t.Error(err)
			}
			if err := s.Close(); !errors.Is(err, errRunning) {
				t.Error(err)
			}
			if err := s.Store(ctx, nil); !errors.Is(err, errRunning) {
				t.Error(err)
			}
			cancel(why)
			if err := <-r.done; !errors.Is(err, why) {
				t.Errorf("%v, want %v", err, why)
			}
			if _, open := <-r.out; open {
				t.Error("out is open")
			}
			s.Release(s.Stats().Buffered)
		}
	})
}

// TestParts: a large reply is stored in parts, which fit into memory one by one.
func TestParts(t *testing.T) {
	s := mustOpen(t, Config{Dir: t.TempDir(), SegmentBytes: 6 * mib})
	storeAll(t, s, reply(t, 200, 1), reply(t, 100_000, sequence(2, 200)...), reply(t, 5*mib, 201), reply(t, 0, sequence(202, 20_000)...))
	got, err := drain(t, s)
	want(t, "the end", err, nil)
	want(t, "entries", allNumbers(got), sequence(1, 20_000))
	if len(got) < 6 {
		t.Errorf("%d replies", len(got))
	}
	for _, r := range got[1:4] {
		if !r.Received.Equal(base.Add(2)) {
			t.Errorf("a part was received at %s", r.Received)
		}
	}
}

// TestSync: written data is synced within a second, and at the end.
func TestSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newHardware()
		s, err := open(Config{Dir: t.TempDir(), ID: "x"}, d.disk(nil))
		if err != nil {
			t.Fatal(err)
		}
		r := startStore(t.Context(), t, s)
		r.offer(reply(t, 0, 1))
		n := d.synced() // of the new file
		for i := range 30 {
			time.Sleep(95 * time.Millisecond)
			r.offer(reply(t, 0, i+2))
		}
		want(t, "in three seconds of writing", d.synced()-n, 2)
		time.Sleep(time.Minute)
		synctest.Wait()
		want(t, "in a minute of rest", d.synced()-n, 3)
		r.offer(reply(t, 0, 100))
		close(r.in)
		want(t, "the end", <-r.done, nil)
		want(t, "at the end", d.synced()-n, 4)
		gone := errors.New("the disk is gone")
		d.fail(gone)
		if err := tryStore(t, s, reply(t, 0, 101)); err == nil || !strings.Contains(err.Error(), gone.Error()) {
			t.Errorf("store: %v", err)
		}
		d.fail(nil)
		if err := tryStore(t, s, reply(t, 0, 102)); err == nil || !strings.Contains(err.Error(), "contents of the files on disk are unknown") {
			t.Errorf("after a failed sync: %v", err)
		}
		want(t, "close", s.Close(), nil)
	})
}

// TestNewFile: a new file and its name are synced before any record is written to it:
// otherwise a missing file could not be detected.
func TestNewFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, dir := newHardware().disk(nil), t.TempDir()
		var done []string
		note := func(what string, f *os.File) {
			name := "file"
			if f.Name() == dir {
				name = "folder"
			}
			done = append(done, what+" "+name)
		}
		write, sync := d.write, d.sync
		d.write = func(f *os.File, b []byte, at int64) (int, error) {
			note("write", f)
			return write(f, b, at)
		}
		d.sync = func(f *os.File) error {
			note("sync", f)
			return sync(f)
		}
		s := must.Get(open(Config{Dir: dir, ID: "x"}, d))(t)
		done = nil
		want(t, "store", tryStore(t, s, reply(t, 0, 1)), nil)
		want(t, "in this order", strings.Join(done, ", "), "write file, sync file, sync folder, write file, sync file")
		want(t, "close", s.Close(), nil)
	})
}

func TestWaitFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, Config{Dir: t.TempDir()})
		r := startStore(t.Context(), t, s)
		done := make(chan int, 10)
		for _, n := range []int{3, 1, 5} {
			go func() {
				if err := s.WaitFor(t.Context(), at(n).TS); err != nil {
					t.Error(err)
				}
				done <- n
			}()
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := make(chan error)
		go func() { gone <- s.WaitFor(ctx, at(50).TS) }()
		synctest.Wait()
		want(t, "nothing there", len(done), 0)
		for n, count := range []int{0, 0, 1, 1, 2, 2, 3} {
			if n > 0 && n%2 == 0 {
				r.offer(reply(t, 0, n))
			}
			want(t, "waited", len(done), count)
		}
		cancel(errors.New("enough"))
		if err := <-gone; err == nil || err.Error() != "enough" {
			t.Error(err)
		}
		want(t, "there already", s.WaitFor(t.Context(), at(6).TS), nil)
		want(t, "waiters", len(s.waiters), 0)
		close(r.in)
		want(t, "the end", <-r.done, nil)
		go func() { gone <- s.WaitFor(t.Context(), at(60).TS) }()
		synctest.Wait()
		must.Succeed(t, s.Close())
		if err := <-gone; !errors.Is(err, errClosed) {
			t.Errorf("after the end: %v", err)
		}
	})
}
