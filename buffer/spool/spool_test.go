package spool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// TestStoreThenRead follows a copy: the oplog is stored while documents are copied,
// then read, over several processes.
func TestStoreThenRead(t *testing.T) {
	cfg := Config{Dir: t.TempDir(), SegmentBytes: 2000}
	s := mustOpen(t, cfg)
	if _, _, ok := s.Bounds(); ok {
		t.Error("a new spool has entries")
	}
	storeAll(t, s, reply(t, 10, 1, 2, 3), reply(t, 10, sequence(4, 30)...))
	must.Succeed(t, s.Close())
	s = mustOpen(t, cfg)
	first, last, ok := s.Bounds()
	want(t, "bounds", []any{first, last, ok}, []any{at(1), at(30), true})
	storeAll(t, s, reply(t, 10, 30, 31), reply(t, 10, sequence(32, 40)...))
	must.Succeed(t, s.Start(at(2)))
	got, err := drain(t, s, reply(t, 10, 40), reply(t, 10, 41, 42))
	want(t, "the end", err, nil)
	want(t, "entries", allNumbers(got), sequence(2, 42))
	want(t, "when it was received", got[1].Received.Equal(base.Add(4)), true)
	want(t, "bytes of an entry", string(got[0].Entries[0].Raw), string(entry(t, 2, 10).Raw))
	want(t, "memory", s.Stats(), buffer.Stats{Released: s.Stats().Released, Limit: 192 * mib})
	got, err = drain(t, s)
	want(t, "again", err, nil)
	want(t, "from the first on", allNumbers(got), sequence(1, 42))
}

func TestStart(t *testing.T) {
	s := mustOpen(t, Config{Dir: t.TempDir(), SegmentBytes: 1000})
	must.Succeed(t, s.Start(at(5)))
	_, err := drain(t, s, reply(t, 0, 6))
	if !errors.Is(err, ErrOrder) || !strings.Contains(err.Error(), "the first entry is 1000:6 t1, want 1000:5 t1") {
		t.Errorf("another entry came first: %v", err)
	}
	must.Succeed(t, s.Start(at(5)))
	got, err := drain(t, s, reply(t, 0, 5, 6, 7), reply(t, 0, 9), reply(t, 0, sequence(11, 30)...), reply(t, 0, 33))
	want(t, "the end", err, nil)
	want(t, "all that came", len(allNumbers(got)), 25)
	for n := 4; n <= 34; n++ {
		err := s.Start(at(n))
		if has := slices.Contains(allNumbers(got), n); has != (err == nil) || !has && !errors.Is(err, ErrMissing) {
			t.Errorf("start at %d: %v", n, err)
		}
		if err == nil {
			again, err := drain(t, s)
			if err != nil || allNumbers(again)[0] != n {
				t.Errorf("start at %d: %v %v", n, allNumbers(again), err)
			}
		}
	}
	other := oplog.NewOpTime(1000, 9, 2)
	if err := s.Start(other); !errors.Is(err, ErrMissing) {
		t.Errorf("an entry of another term: %v", err)
	}
}

func TestOrder(t *testing.T) {
	for name, tt := range map[string]struct {
		replies [][]int
		fault   string
	}{
		"begins with the last":  {[][]int{{10, 11}}, ""},
		"begins after the last": {[][]int{{12}}, ""},
		"the last twice":        {[][]int{{10, 10}}, "entry 1000:10 t1 came after entry 1000:10 t1"},
		"the last again":        {[][]int{{10}, {10}}, "entry 1000:10 t1 came after entry 1000:10 t1"},
		"the last, later":       {[][]int{{11}, {10}}, "entry 1000:10 t1 came after entry 1000:11 t1"},
		"before the last":       {[][]int{{9, 10}}, "entry 1000:9 t1 came after entry 1000:10 t1"},
		"back in a reply":       {[][]int{{11, 13, 12}}, "entry 1000:12 t1 came after entry 1000:13 t1"},
		"twice":                 {[][]int{{11}, {11}}, "entry 1000:11 t1 came after entry 1000:11 t1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := mustOpen(t, Config{Dir: t.TempDir()})
			storeAll(t, s, reply(t, 0, 10))
			var replies []oplog.Reply
			for _, list := range tt.replies {
				replies = append(replies, reply(t, 0, list...))
			}
			err := tryStore(t, s, replies...)
			if tt.fault == "" && err != nil || tt.fault != "" && (!errors.Is(err, ErrOrder) || !strings.Contains(err.Error(), tt.fault)) {
				t.Errorf("%v, want %q", err, tt.fault)
			}
		})
	}
}

func TestInUse(t *testing.T) {
	cfg := Config{Dir: filepath.Join(t.TempDir(), "a", "b")}
	s := mustOpen(t, cfg)
	// A process that was suspended keeps the lock, and only an operator can end it.
	who := fmt.Sprintf("uses the directory: process %d on ", os.Getpid())
	if _, err := openTest(t, cfg); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), who) || !strings.Contains(err.Error(), "kill -CONT") {
		t.Errorf("a second spool: %v", err)
	}
	if err := Clear(cfg.Dir); !errors.Is(err, ErrInUse) {
		t.Errorf("clear: %v", err)
	}
	storeAll(t, s, reply(t, 0, 1))
	must.Succeed(t, s.Remove())
	if left, err := os.ReadDir(cfg.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left: %v %v", left, err)
	}
	for what, err := range map[string]error{
		"store":    s.Store(t.Context(), nil),
		"start":    s.Start(at(1)),
		"forget":   s.Forget(at(1)),
		"wait":     s.WaitFor(t.Context(), at(2).TS),
		"commands": s.Commands(t.Context(), at(0), at(9).TS, nil),
	} {
		if !errors.Is(err, errClosed) {
			t.Errorf("%s of a closed spool: %v", what, err)
		}
	}
	s = mustOpen(t, cfg)
	if _, _, ok := s.Bounds(); ok {
		t.Error("it has entries again")
	}
}

func TestAnotherID(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, Config{Dir: dir, ID: "link/1", SegmentBytes: 200})
	storeAll(t, s, reply(t, 0, 1), reply(t, 0, 2), reply(t, 0, 3))
	must.Succeed(t, s.Close())
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "mine.txt"), []byte("keep"), 0o600))
	var l eventLog
	s = mustOpen(t, Config{Dir: dir, ID: "link/2", Observer: l.observe})
	want(t, "events", l.take(), []string{"files of another spool removed"})
	want(t, "files", files(t, dir), nil)
	if _, err := os.Stat(filepath.Join(dir, "mine.txt")); err != nil {
		t.Error(err)
	}
	storeAll(t, s, reply(t, 0, 1))
}

func TestForget(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, Config{Dir: dir, SegmentBytes: 700})
	for n := 1; n <= 20; n++ {
		storeAll(t, s, reply(t, 100, n))
	}
	total := len(files(t, dir))
	bytes := s.Disk().Bytes
	must.Succeed(t, s.Forget(at(11)))
	first, last, ok := s.Bounds()
	if !ok || first.Before(at(9)) || first.After(at(11)) || last != at(20) {
		t.Errorf("bounds %s %s", first, last)
	}
	if n := len(files(t, dir)); n >= total || s.Disk().Bytes >= bytes {
		t.Errorf("%d of %d files, %d of %d bytes", n, total, s.Disk().Bytes, bytes)
	}
	must.Succeed(t, s.Forget(at(100)))
	want(t, "the one that is written", len(files(t, dir)), 1)
	err := s.Commands(t.Context(), at(1), at(20).TS, func(*oplog.Entry) error { return nil })
	if !errors.Is(err, ErrMissing) {
		t.Errorf("commands that were let go: %v", err)
	}
	if err := s.Start(at(3)); !errors.Is(err, ErrMissing) {
		t.Error(err)
	}
	storeAll(t, s, reply(t, 100, 20, 21))
	got, err := drain(t, s)
	want(t, "the end", err, nil)
	want(t, "the last one", allNumbers(got)[len(allNumbers(got))-1], 21)
	sum := int64(0)
	for _, path := range files(t, dir) {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		sum += info.Size()
	}
	want(t, "bytes", s.Disk().Bytes, sum)
}

// TestForgetAsStoreBegins: Store does not take the spool for empty while Forget removes the files: it may be unable to, or the process may end.
func TestForgetAsStoreBegins(t *testing.T) {
	for range 5 {
		dir, errBusy := t.TempDir(), errors.New("the file is busy")
		d := newHardware()
		on := d.disk(syscall.ENOSPC)
		var s *Spool
		in, stored := make(chan oplog.Reply), make(chan error, 1)
		on.remove = func(string) error {
			go func() { stored <- s.Store(t.Context(), in) }()
			for n := 0; n < 1000; {
				s.mu.Lock()
				if s.running {
					n++
				}
				s.mu.Unlock()
				runtime.Gosched()
			}
			return errBusy
		}
		cfg := Config{Dir: dir, ID: "x", SegmentBytes: 700}
		s = must.Get(open(cfg, on))(t)
		for n := 1; n <= 10; n++ {
			storeAll(t, s, reply(t, 100, n))
		}
		must.Succeed(t, (&writer{Spool: s}).finish()) // as for lack of room
		if err := s.Forget(at(100)); !errors.Is(err, errBusy) {
			t.Fatal(err)
		}
		in <- reply(t, 100, 10, 11)
		close(in)
		must.Succeed(t, <-stored)
		must.Succeed(t, s.Close())
		s = mustOpen(t, cfg)
		if first, last, _ := s.Bounds(); first != at(1) || last != at(11) {
			t.Fatalf("bounds %s %s", first, last)
		}
	}
}

// TestForgetUnread: entries that were not sent stay, whatever Forget is called with.
func TestForgetUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		s := mustOpen(t, Config{Dir: t.TempDir(), SegmentBytes: 700, Memory: 100})
		for n := 1; n <= 20; n++ {
			storeAll(t, s, reply(t, 100, n))
		}
		must.Succeed(t, s.Start(at(7)))
		for range 2 {
			must.Succeed(t, s.Forget(at(100)))
		}
		r := startRun(ctx, t, s)
		want(t, "the first", r.takeNumbers(), []int{7})
		must.Succeed(t, s.Forget(at(100)))
		s.Release(s.Stats().Buffered)
		want(t, "the second", r.takeNumbers(), []int{8})
		cancel(nil)
		if err := <-r.done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestMemory: like a Queue, it holds at most its limit, or a single reply.
func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, Config{Dir: t.TempDir(), Memory: 20_000})
		big := reply(t, 30_000, 1, 2)
		storeAll(t, s, big, reply(t, 3000, 3), reply(t, 3000, 4), reply(t, 6000, 6))
		r := startRun(t.Context(), t, s)
		want(t, "what is larger than all", r.takeNumbers(), []int{1, 2})
		want(t, "concurrently", r.takeNumbers(), nil)
		st := s.Stats()
		want(t, "stats", st, buffer.Stats{Buffered: big.Bytes, Oldest: st.Oldest, Waiting: true, Limit: 10_000})
		want(t, "oldest", st.Oldest.Equal(base.Add(1)), true)
		if !r.offer(reply(t, 0, 7)) {
			t.Error("storing does not go on")
		}
		s.Release(big.Bytes - 1)
		want(t, "not yet", r.takeNumbers(), []int{3})
		s.Release(1)
		want(t, "the third", r.takeNumbers(), []int{4})
		want(t, "no more room", r.takeNumbers(), nil)
		s.Release(s.Stats().Buffered)
		want(t, "the fifth", r.takeNumbers(), []int{6})
		want(t, "the one that came meanwhile", r.takeNumbers(), []int{7})
		s.Release(s.Stats().Buffered)
		at8 := reply(t, 0, 8)
		want(t, "at the end", r.offer(at8), true)
		got := r.take()
		if got == nil || &got.Entries[0] != &at8.Entries[0] {
			t.Error("what comes in when all is read takes the way over the disk")
		}
		close(r.in)
		want(t, "the end", <-r.done, nil)
		s.Release(s.Stats().Buffered)
	})
}

// TestMemoryChanges: with less memory nothing more is read back until enough is released,
// with more it continues at once.
func TestMemoryChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, Config{Dir: t.TempDir(), Memory: 20_000})
		storeAll(t, s, reply(t, 3000, 1), reply(t, 3000, 2), reply(t, 3000, 3), reply(t, 3000, 4))
		s.SetMemory(8000)
		r := startRun(t.Context(), t, s)
		want(t, "one fits", r.takeNumbers(), []int{1})
		want(t, "no more", r.takeNumbers(), nil)
		want(t, "the limit", s.Stats().Limit, int64(4000))
		s.SetMemory(20_000)
		want(t, "the next", r.takeNumbers(), []int{2})
		s.SetMemory(8000)
		s.Release(s.Stats().Buffered)
		want(t, "the next, once they are released", r.takeNumbers(), []int{3})
		close(r.in)
		s.Release(s.Stats().Buffered)
		want(t, "the last", r.takeNumbers(), []int{4})
		want(t, "the end", <-r.done, nil)
		s.Release(s.Stats().Buffered)
	})
}

func TestCommands(t *testing.T) {
	s := mustOpen(t, Config{Dir: t.TempDir(), SegmentBytes: 1000})
	collect := func(after int, until bson.Timestamp) (list []int, err error) {
		err = s.Commands(t.Context(), at(after), until, func(e *oplog.Entry) error {
			list = append(list, int(e.OpTime.TS.I))
			return nil
		})
		return list, err
	}
	list, err := collect(1, at(9).TS)
	want(t, "of an empty spool", append([]any{err}, len(list)), []any{nil, 0})
	storeAll(t, s, reply(t, 0, sequence(5, 12)...), reply(t, 0, sequence(13, 20)...), reply(t, 0, sequence(22, 41)...))
	for _, tt := range []struct {
		after, until int
		want         []int
	}{
		{5, 41, []int{10, 15, 20, 25, 30, 35, 40}},
		{9, 100, []int{10, 15, 20, 25, 30, 35, 40}},
		{10, 15, []int{15}},
		{14, 14, nil},
		{20, 24, nil},
		{21, 25, []int{25}},
		{41, 60, nil},
		{60, 70, nil},
		{30, 20, nil},
	} {
		list, err := collect(tt.after, at(tt.until).TS)
		if err != nil {
			t.Error(err)
		}
		want(t, "commands", list, tt.want)
	}
	if _, err := collect(4, at(41).TS); !errors.Is(err, ErrMissing) {
		t.Errorf("after what is not there: %v", err)
	}
	enough := errors.New("enough")
	if err := s.Commands(t.Context(), at(5), at(41).TS, func(*oplog.Entry) error { return enough }); !errors.Is(err, enough) {
		t.Error(err)
	}
}

func TestConfig(t *testing.T) {
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "no directory is given\nspool: an ID of 0 bytes"},
		{Config{Dir: "x", ID: "y", Limit: -1}, "limit of -1 bytes"},
		{Config{Dir: "x", ID: strings.Repeat("y", 5000)}, "an ID of 5000 bytes"},
	} {
		if _, err := Open(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v", tt.cfg, err)
		}
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := mustOpen(t, Config{Dir: t.TempDir(), Registry: reg})
	storeAll(t, s, reply(t, 0, 1, 2, 3))
	want(t, "bytes", metricValue(t, reg, "replicator_spool_bytes"), float64(s.Disk().Bytes))
	want(t, "limit", metricValue(t, reg, "replicator_spool_limit_bytes"), 64*gib)
	want(t, "entries", metricValue(t, reg, "replicator_spool_entries"), 3)
	if _, err := drain(t, s); err != nil {
		t.Fatal(err)
	}
	want(t, "read back", metricValue(t, reg, "replicator_spool_read_back_entries_total"), 3)
	must.Succeed(t, s.Close())
	want(t, "after the end", metricValue(t, reg, "replicator_spool_bytes"), -1)
}
