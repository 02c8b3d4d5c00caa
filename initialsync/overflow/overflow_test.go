package overflow

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/oplog"
)

// TestStandstill: nothing is read, and nothing applied, for five seconds.
func TestStandstill(t *testing.T) {
	t.Parallel()
	full := buffer.Stats{Buffered: 10, Waiting: true}
	began := time.Unix(1_700_000_000, 0)
	for _, tt := range []struct {
		name  string
		at    func(second int) buffer.Stats
		ended bool
		want  int // the first second at which it stands, -1 for never
	}{
		{"the buffer is full", func(int) buffer.Stats { return full }, false, 5},
		{"there is room", func(int) buffer.Stats { return buffer.Stats{Buffered: 10} }, false, -1},
		{"reading has ended", func(int) buffer.Stats { return buffer.Stats{Buffered: 10} }, true, 5},
		{"all is applied, and reading has ended", func(int) buffer.Stats { return buffer.Stats{} }, true, -1},
		{"something is applied every four seconds", func(s int) buffer.Stats {
			b := full
			b.Released = int64(s/4) + 1
			return b
		}, false, -1},
		{"something was applied once", func(s int) buffer.Stats {
			b := full
			b.Released = int64(min(s/4, 1))
			return b
		}, false, 10},
		{"there was room once", func(s int) buffer.Stats {
			b := full
			b.Waiting = s != 4
			return b
		}, false, 10},
	} {
		var s standstill
		got := -1
		for second := 0; second <= 20 && got < 0; second++ {
			if s.look(began.Add(time.Duration(second)*time.Second), tt.at(second), tt.ended) {
				got = second
			}
		}
		if got != tt.want {
			t.Errorf("%s: after %d s, want %d", tt.name, got, tt.want)
		}
	}
}

// TestPausedReason: of a link that is paused it is said that its buffer is full only if it is. An attempt that is to end,
// such as for a resync, reads nothing more either.
func TestPausedReason(t *testing.T) {
	t.Parallel()
	for bytes, want := range map[int64]string{
		1 << 10:  "the link is paused, and the attempt has ended reading",
		64 << 20: "the link is paused, and the buffer is full",
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancelCause(t.Context())
			var running sync.WaitGroup
			defer running.Wait()
			defer stop(nil)
			queue := must.Get(buffer.New(buffer.Config{Limit: 32 << 20}))(t)
			in, read := make(chan oplog.Reply, 2), make(chan struct{})
			for range cap(in) {
				in <- oplog.Reply{Bytes: bytes}
			}
			running.Go(func() { _ = queue.Run(ctx, in, make(chan oplog.Reply)) })
			synctest.Wait()
			close(read)
			o := New(Config{Fetch: fromState, Paused: func() bool { return true }, Show: Show{RunsShort: func() string { return "" }}}, nil)
			a, now := o.Begin(AttemptConfig{Queue: queue, Read: read}), time.Now()
			var s standstill
			a.reason(&s, now)
			if got := a.reason(&s, now.Add(standsAfter)); got != want {
				t.Errorf("%d bytes: %q, want %q", bytes, got, want)
			}
		})
	}
}

// TestOverflowFrom: the oplog is spooled from the last checkpoint on.
func TestOverflowFrom(t *testing.T) {
	t.Parallel()
	at := func(n uint32) oplog.OpTime { return oplog.NewOpTime(1000, n, 1) }
	o := New(Config{Fetch: fromState}, nil)
	a := o.Begin(AttemptConfig{State: checkpoint.State{FetchFrom: at(1), Applied: at(2)}})
	if from := a.fetchConfig().From; !from.Equal(at(1)) {
		t.Errorf("from %s", from)
	}
	o.Advanced(checkpoint.Progress{FetchFrom: at(5), Applied: at(8)})
	if from := a.fetchConfig().From; !from.Equal(at(5)) {
		t.Errorf("from %s", from)
	}
}

func fromState(_ checkpoint.Source, st checkpoint.State) fetcher.Config {
	return fetcher.Config{From: st.FetchFrom}
}

// TestLater: a quarter of what the source has may be deleted until it is read.
func TestLater(t *testing.T) {
	t.Parallel()
	if got := later(oplog.NewOpTime(1000, 7, 1), oplog.NewOpTime(1040, 1, 1)); got.T != 1010 {
		t.Errorf("from %v on", got)
	}
}

// TestOverflowReadsOn: reading has ended for a spool, and that cannot be filled. The attempt
// leaves an index build if the next one can read on from the source, unless the run ends.
func TestOverflowReadsOn(t *testing.T) {
	t.Parallel()
	from := oplog.NewOpTime(1000, 1, 1)
	for name, tt := range map[string]struct{ fails, has, told, leaves bool }{
		"the source has it":         {fails: true, has: true, leaves: true},
		"the source has lost it":    {fails: true},
		"it is told to end":         {fails: true, has: true, told: true},
		"the spool has nothing yet": {has: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancelCause(t.Context())
				queue := must.Get(buffer.New(buffer.Config{Limit: 32 << 20}))(t)
				full, unread := make(chan oplog.Reply), make(chan oplog.Reply)
				log := initialsync.NewLog(initialsync.LogConfig{Link: "l", Dir: t.TempDir(), Run: func(ctx context.Context, _ *fetcher.Fetcher, out chan<- oplog.Reply) error {
					defer close(out)
					<-ctx.Done()
					return context.Cause(ctx)
				}})
				o := New(Config{
					Fetch: fromState, Paused: func() bool { return false },
					Reaches: func(_ context.Context, at oplog.OpTime) bool { return tt.has && at.Equal(from) },
					Show: Show{
						MostLag: func() time.Duration { return 0 }, RunsShort: func() string { return "" },
						Oldest: func(context.Context) (oplog.OpTime, bool) { return oplog.OpTime{}, false },
						Spools: func(*spool.Spool, string) {}, Relays: func(string) {},
					},
				}, log)
				read, ended, left := make(chan struct{}), false, false
				a := o.Begin(AttemptConfig{
					State: checkpoint.State{FetchFrom: from, Applied: from}, Queue: queue, Fetcher: &fetcher.Fetcher{}, Read: read,
					End:   sync.OnceFunc(func() { ended = true; close(read) }),
					Leave: func() { left = true },
					Told:  func() bool { return ended && tt.told },
					Start: func(cfg fetcher.Config) error {
						if tt.fails {
							return errors.New("no space left on device")
						}
						return log.Start(ctx, ctx, nil, cfg)
					},
				})
				var running sync.WaitGroup
				running.Go(func() { _ = queue.Run(ctx, full, unread) })
				running.Go(func() { must.Succeed(t, a.Run(ctx)) })
				full <- oplog.Reply{Bytes: 32 << 20}
				time.Sleep(standsAfter + 10*time.Second)
				synctest.Wait()
				if !ended || left != tt.leaves {
					t.Errorf("it has ended reading: %t, and left the build: %t", ended, left)
				}
				stop(nil)
				running.Wait()
				must.Succeed(t, log.Close())
			})
		})
	}
}

// TestSooner: the source must have more than the entry itself, if much follows that.
func TestSooner(t *testing.T) {
	t.Parallel()
	for _, tt := range [][3]uint32{{1000, 1160, 990}, {1000, 1001, 1000}, {1000, 0, 1000}, {10, 1010, 0}} {
		if got := sooner(oplog.NewOpTime(tt[0], 1, 1), oplog.NewOpTime(tt[1], 1, 1)); got.TS.T != tt[2] {
			t.Errorf("from %d, when %d was read: %s", tt[0], tt[1], got)
		}
	}
}
