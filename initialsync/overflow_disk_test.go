package initialsync

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/oplog"
)

// block makes the first file of the spool one that can neither be created nor removed.
func (w *logWorld) block() (unblock func()) {
	name := filepath.Join(w.dir, "000000000001.spool")
	_ = os.Rename(name, name+".was")
	w.must(os.MkdirAll(filepath.Join(name, "x"), 0o700))
	return func() { w.must(os.RemoveAll(name)) }
}

// TestOverflowDisk: a disk that fails ends the spooling of a consistent link, also of one
// whose copy has ended meanwhile, not the attempt that reads it.
func TestOverflowDisk(t *testing.T) {
	t.Parallel()
	for name, copied := range map[string]bool{"without a copy": false, "after a copy": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newLogWorld(t)
				ctx := t.Context()
				if copied {
					w.must(w.Start(ctx, ctx, w.copy, w.fetch))
					done := *w.copy
					done.Phase = checkpoint.Copied
					w.must(w.Start(ctx, ctx, &done, w.fetch)) // the next attempt
				} else {
					w.must(w.Start(ctx, ctx, nil, w.fetch))
				}
				synctest.Wait()
				w.block()
				w.replies <- oplog.Reply{Entries: []oplog.Entry{testEntry(t, 1, "d.c", "x")}}
				synctest.Wait()
				if w.Storing() || !w.storing.local {
					t.Errorf("spooling ended: %t, with %v", !w.Storing(), w.storing.err)
				}
				w.must(w.wait(ctx))
				w.must(w.Recover(ctx, ctx, errors.New("of the attempt")))
			})
		})
	}
}

// TestOverflowReadOnly: a disk from which nothing can be removed any more ends neither a
// checkpoint of a consistent link, nor its reading into memory, nor a run. Files no
// longer needed are removed once that is possible.
func TestOverflowReadOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newLogWorld(t)
		w.cfg.Limit = 512 << 10 // files of 64 KiB
		ctx := t.Context()
		w.must(w.Start(ctx, ctx, nil, w.fetch))
		big := string(make([]byte, 40<<10))
		for n := uint32(1); n <= 4; n++ {
			w.replies <- oplog.Reply{Entries: []oplog.Entry{testEntry(t, n, "d.c", big)}}
			w.must(w.Spool().WaitFor(ctx, testTime(n).TS))
		}
		unblock := w.block()
		w.must(w.Forget(testTime(3)))
		if first, _, _ := w.Spool().Bounds(); !first.Equal(testTime(1)) {
			t.Errorf("what could not be removed is forgotten: it begins at %s", first)
		}
		unblock()
		w.must(w.Forget(testTime(4)))
		if first, _, _ := w.Spool().Bounds(); !first.Equal(testTime(3)) && !first.Equal(testTime(4)) {
			t.Errorf("it begins at %s", first)
		}
		w.block()
		w.must(w.Recover(ctx, ctx, &spool.DamagedError{File: "x", Err: errors.New("of the test")}))
		if serves, err := w.Serves(nil, testTime(3)); err != nil || serves {
			t.Errorf("files that can be neither read nor removed are used: %t, %v", serves, err)
		}
	})
}

// TestOverflowUnreadable: a file that cannot be read is not damaged: the spool is read again
// from the files.
func TestOverflowUnreadable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newStored(t, 1, 2, 3), t.Context()
		w.must(w.Recover(ctx, ctx, &spool.ReadError{File: "x", Err: syscall.EIO}))
		if w.Spool() != nil || w.Storing() {
			t.Error("the spool is still open")
		}
		if serves, err := w.Serves(nil, testTime(1)); err != nil || !serves {
			t.Errorf("the files are read: %t, %v", serves, err)
		}
		w.must(w.Remove())
	})
}

// TestOverflowAgain: in an attempt that reads the spool, fetching into it begins again once
// the disk, which had failed, can be written to.
func TestOverflowAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newStored(t, 1, 2, 3), t.Context()
		drained := func(within time.Duration) bool {
			t.Helper()
			ctx, cancel := context.WithTimeout(ctx, within)
			defer cancel()
			is, err := w.Drained(ctx, 0, func() (checkpoint.Progress, bool) {
				return checkpoint.Progress{FetchFrom: testTime(1), Durable: testTime(1)}, false
			})
			w.must(err)
			return is
		}
		w.ends <- nil
		synctest.Wait()
		w.storing.err, w.storing.local = errors.New("input/output error"), true
		w.storing.at = time.Now()
		if drained(storeAgain - time.Second) {
			t.Error("the attempt ends at once")
		}
		probe := filepath.Join(w.dir, "probe")
		w.must(os.MkdirAll(filepath.Join(probe, "x"), 0o700))
		if drained(3 * storeAgain) {
			t.Error("the attempt ends although the disk still fails")
		}
		w.must(os.RemoveAll(probe))
		if !drained(2 * storeAgain) {
			t.Error("the attempt does not end for the spool to be opened again")
		}
		if serves, err := w.Serves(nil, testTime(1)); err != nil || !serves {
			t.Errorf("the files are read: %t, %v", serves, err)
		}
		w.must(w.Start(ctx, ctx, nil, w.fetch))
		w.store(ctx, 3, 4)
		w.must(w.Remove())
	})
}

// TestOverflowOfAnotherHistory: entries found on disk are sent once the source has shown
// that the last of them is in its history.
func TestOverflowOfAnotherHistory(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		ends error
		want int
	}{"it is": {nil, 4}, "it is not": {fetcher.ErrOtherHistory, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, ctx := newStored(t, 1, 2, 3), t.Context()
				w.must(w.Close())
				w.must(w.Start(ctx, ctx, nil, w.fetch)) // another process
				out, done, sent := make(chan oplog.Reply), make(chan error, 1), 0
				go func() { done <- w.Read(ctx, ctx, testTime(4), out) }()
				time.Sleep(time.Hour)
				synctest.Wait()
				select {
				case <-out:
					t.Fatal("it is sent although the source has not answered")
				default:
				}
				if tt.ends != nil {
					w.ends <- tt.ends
				} else {
					w.store(ctx, 3, 4)
				}
				for r := range out {
					sent += len(r.Entries)
				}
				if err := <-done; !errors.Is(err, tt.ends) || sent != tt.want {
					t.Errorf("%d entries were sent, then %v", sent, err)
				}
				if again := w.Disown(); again != (tt.ends != nil) || again && w.Spool() != nil {
					t.Errorf("it can be read from the checkpoint instead: %t", again)
				}
				w.must(w.Remove())
			})
		})
	}
}

// TestOverflowLeftOver: a useless spool is removed without being read. One that another
// process uses is useful only while the source does not have its entries.
func TestOverflowLeftOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newStored(t, 1, 2, 3)
		other := NewLog(w.cfg)
		if serves, err := other.Serves(nil, testTime(1)); err != nil || serves {
			t.Errorf("a spool that is in use serves: %t, %v", serves, err)
		}
		if !other.Resume(testTime(1)) {
			t.Error("it is not waited for, although the source does not have the entry")
		}
		w.must(w.Close())
		if serves, err := other.Serves(nil, testTime(3)); err != nil || serves || other.Resume(testTime(3)) || other.Spool() != nil {
			t.Errorf("a spool that ends at the checkpoint serves: %t, %v, or is open", serves, err)
		}
		if left, err := filepath.Glob(filepath.Join(w.dir, "*.spool")); err != nil || len(left) > 0 {
			t.Errorf("it is not removed: %v, %v", left, err)
		}
	})
}
