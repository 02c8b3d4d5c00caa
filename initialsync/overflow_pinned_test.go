package initialsync

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// fill has entries fetched, from a number on, until the spool is full, and returns the last one
// in it. Then no more are sent.
func (w *logWorld) fill(ctx context.Context, from uint32) (last oplog.OpTime) {
	w.t.Helper()
	filling, stop := context.WithCancelCause(ctx)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for big := string(make([]byte, 40<<10)); filling.Err() == nil; from++ {
			select {
			case w.replies <- oplog.Reply{Entries: []oplog.Entry{testEntry(w.t, from, "d.c", big)}}:
			case <-filling.Done():
			}
		}
	}()
	synctest.Wait()
	stop(nil)
	<-sent
	disk := w.Spool().Disk()
	if !disk.Full {
		w.t.Fatal("it is not full")
	}
	return disk.Last
}

// TestOverflowPinned: all that is on disk is applied, and nothing more can be stored there while
// an open transaction needs its beginning. The source is asked for that once. If it does not have
// it, the link ends and says why, until the transaction has ended.
func TestOverflowPinned(t *testing.T) {
	t.Parallel()
	for name, faulty := range map[string]bool{"full": false, "faulty": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, ctx := newLogWorld(t), t.Context()
				w.cfg.Limit = 512 << 10 // files of 64 KiB
				at := checkpoint.Progress{FetchFrom: testTime(2)}
				broken := errors.New("input/output error")
				// attempt reads the spool until it is to be left.
				attempt := func(from uint32) (bool, error) {
					t.Helper()
					w.must(w.Start(ctx, ctx, nil, w.fetch))
					if faulty {
						w.store(ctx, from, from+1, from+2)
						w.ends <- broken
						synctest.Wait()
						at.Durable, w.storing.local, w.storing.at = testTime(from+2), true, time.Now()
					} else {
						at.Durable = w.fill(ctx, from)
					}
					limited, cancel := context.WithTimeout(ctx, time.Minute)
					defer cancel()
					return w.Drained(limited, 0, func() (checkpoint.Progress, bool) { return at, false })
				}
				if drained, err := attempt(1); !drained || err != nil {
					t.Fatalf("the source is not asked: %t, %v", drained, err)
				}
				last := func() uint32 { return at.Durable.TS.T - testTime(0).TS.T }
				w.Leave()
				if !w.Resume(testTime(2)) {
					t.Fatal("what is on disk is not used again")
				}
				drained, err := attempt(last())
				if _, full := errors.AsType[*spool.FullError](err); drained || full == faulty || errors.Is(err, broken) != faulty {
					t.Errorf("left again: %t, %v", drained, err)
				}
				w.Leave()
				at.FetchFrom = testTime(3)
				if drained, err := attempt(last()); !drained || err != nil {
					t.Errorf("the source is not asked for what follows the transaction: %t, %v", drained, err)
				}
				w.must(w.Remove())
			})
		})
	}
}
