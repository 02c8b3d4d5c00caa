package initialsync

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/oplog"
)

// inBubble hides a *testing.T, whose deadline does not apply in a bubble.
type inBubble struct{ *testing.T }

// overflowModel is a consistent link without a copy: a source with entries 1 to newest, of
// which those before oldest are gone, and what a log on disk has to contain.
type overflowModel struct {
	*logWorld
	rt     *rapid.T
	ctx    context.Context //nolint:containedctx // of the bubble
	stop   context.CancelCauseFunc
	newest uint32
	// applied is the checkpoint. first and last are on disk, 0 if nothing is; storing means
	// that the source is read from there.
	applied, first, last uint32
	storing              bool
}

// boot starts a process.
func (m *overflowModel) boot() {
	m.Log = NewLog(LogConfig{Link: "l", Dir: m.cfg.Dir, SourceWait: time.Hour, Run: m.run})
	m.instance = "of the test"
	ctx, stop := context.WithCancelCause(m.t.Context())
	m.ctx, m.stop, m.storing = ctx, stop, false
}

// start is what an overflow does, and an attempt that reads through the spool.
func (m *overflowModel) start() {
	m.must(m.Start(m.ctx, m.ctx, nil, fetcher.Config{From: testTime(m.applied), Resolver: m.fetch.Resolver}))
	if m.storing {
		return
	}
	m.storing = true
	from := m.last // is sent again
	if from == 0 {
		m.first, from = m.applied, m.applied
	}
	m.feed(from)
}

// feed has the fetcher send what the source has, from an entry on.
func (m *overflowModel) feed(from uint32) {
	for ; m.storing && from <= m.newest; from += 3 {
		var numbers []uint32
		for n := from; n <= min(m.newest, from+2); n++ {
			numbers = append(numbers, n)
		}
		m.store(m.ctx, numbers...)
		m.last = m.newest
	}
}

// attempt reads so many entries, through the spool if that serves, and applies them.
func (m *overflowModel) attempt(n uint32) {
	serves, err := m.Serves(nil, testTime(m.applied))
	m.must(err)
	if want := m.last > m.applied; serves != want {
		m.rt.Fatalf("at %d the spool serves: %t; it has %d to %d", m.applied, serves, m.first, m.last)
	}
	until := min(m.applied+n, m.newest)
	if !serves {
		m.must(m.Remove())
		m.first, m.last, m.storing = 0, 0, false
		m.applied = until
		return
	}
	m.start()
	got, err := m.read(m.ctx, m.ctx, testTime(until))
	m.must(err)
	for i, number := range got {
		if number != m.applied+uint32(i) {
			m.rt.Fatalf("entry %d was sent at the place of %d: %v", number, m.applied+uint32(i), got)
		}
	}
	if len(got) == 0 || got[len(got)-1] != until {
		m.rt.Fatalf("sent were %v, want all from %d to %d", got, m.applied, until)
	}
	m.applied = until
	m.must(m.Forget(testTime(until)))
}

// TestOverflowModel: whatever happens, in whatever order, the entries read through the
// spool begin at the checkpoint and have no gap, and the spool is used for as long as it has
// entries that are not applied.
func TestOverflowModel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(inBubble{t}, func(rt *rapid.T) {
			m := &overflowModel{logWorld: newLogWorld(t), rt: rt, newest: 1, applied: 1}
			m.boot()
			rt.Repeat(map[string]func(*rapid.T){
				"write": func(rt *rapid.T) {
					was := m.newest
					m.newest += rapid.Uint32Range(1, 9).Draw(rt, "entries")
					m.feed(was + 1)
				},
				"overflow": func(*rapid.T) {
					m.must(m.Prepare(nil))
					m.start()
				},
				"attempt": func(rt *rapid.T) { m.attempt(rapid.Uint32Range(0, 9).Draw(rt, "entries")) },
				"restart": func(*rapid.T) {
					m.stop(nil)
					m.must(m.Close())
					m.boot()
				},
			})
			m.stop(nil)
			m.must(m.Close())
		})
	})
}

// TestOverflowRecover: what failed of a consistent link's spooling decides whether the link
// ends, and whether the files stay.
func TestOverflowRecover(t *testing.T) {
	t.Parallel()
	of := errors.New("of the attempt")
	for name, tt := range map[string]struct {
		err   error
		local bool
		ends  bool // the link
		stays bool // the spool on disk
	}{
		"the disk":      {err: errors.New("no space"), local: true, stays: true},
		"the source":    {err: errors.New("no member"), stays: true},
		"other history": {err: fetcher.ErrOtherHistory, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, ctx := newStored(t, 1, 2, 3), t.Context()
				w.ends <- tt.err
				synctest.Wait()
				w.storing.local = tt.local
				if err := w.wait(ctx); (err == nil) != tt.local {
					t.Errorf("an attempt that reads it ends with %v", err)
				}
				if err := w.Recover(ctx, ctx, of); (err != nil) != tt.ends {
					t.Errorf("the link ends with %v", err)
				}
				w.must(w.Close())
				if stays, err := w.Serves(nil, testTime(1)); err != nil || stays != tt.stays {
					t.Errorf("the files are used afterwards: %t, %v", stays, err)
				}
				w.must(w.Remove())
			})
		})
	}
}

// TestOverflowDrained: the spool is left once all that is stored is in memory, and also
// if nothing is stored any more and all of it is applied; but if applying the rest took long,
// it is used again.
func TestOverflowDrained(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newStored(t, 1, 2, 3, 100), t.Context()
		at := checkpoint.Progress{FetchFrom: testTime(99), Durable: testTime(99)}
		drained := func() bool {
			t.Helper()
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			is, err := w.Drained(ctx, 0, func() (checkpoint.Progress, bool) { return at, false })
			w.must(err)
			return is
		}
		serves := func(want bool) {
			t.Helper()
			if is, err := w.Serves(nil, testTime(2)); err != nil || is != want {
				t.Errorf("it serves: %t, %v", is, err)
			}
		}
		out := make(chan oplog.Reply)
		reading, end := context.WithCancelCause(ctx)
		read := make(chan error, 1)
		go func() { read <- w.Read(reading, reading, oplog.OpTime{}, out) }()
		synctest.Wait()
		if !drained() {
			t.Error("all of it is in memory, and it is not drained")
		}
		serves(false)
		time.Sleep(2 * drainTime)
		serves(true)
		end(errStop)
		if err := <-read; !errors.Is(err, errStop) {
			t.Error(err)
		}
		at.FetchFrom = testTime(2) // of an open transaction
		if at.Durable = testTime(100); drained() {
			t.Error("drained while more is stored")
		}
		w.ends <- errors.New("no space")
		synctest.Wait()
		if !drained() {
			t.Error("nothing is stored any more, all is applied, and it is not drained")
		}
		w.must(w.Remove())
	})
}

// TestOverflowNotInMemory: the spool is not left while some of it is on disk alone, although
// that covers a few seconds only.
func TestOverflowNotInMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newLogWorld(t)
		w.cfg.Memory = func() int64 { return 2 } // one reply
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w.must(w.Start(ctx, ctx, nil, w.fetch))
		w.store(ctx, 1)
		w.store(ctx, 2)
		read := make(chan error, 1)
		go func() { read <- w.Read(ctx, ctx, oplog.OpTime{}, make(chan oplog.Reply)) }()
		synctest.Wait()
		drained, err := w.Drained(ctx, 0, func() (checkpoint.Progress, bool) {
			return checkpoint.Progress{FetchFrom: testTime(1), Durable: testTime(1)}, false
		})
		if w.must(err); drained {
			t.Error("drained while the second reply is not in memory")
		}
		if err := <-read; !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		w.must(w.Remove())
	})
}
