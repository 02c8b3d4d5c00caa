package pipeline

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// TestDurableIsWhatWasWritten: a checkpoint makes durable what it contains, not
// operations applied while it was being written.
func TestDurableIsWhatWasWritten(t *testing.T) {
	at := func(s uint32) applier.Applied {
		o := oplog.NewOpTime(s, 1, 1)
		return applier.Applied{Progress: checkpoint.Progress{Applied: o, AppliedWall: int64(s) * 1000, FetchFrom: o}}
	}
	synctest.Test(t, func(t *testing.T) {
		written := make(chan struct{})
		var seen []checkpoint.Progress
		c := &checkpointer{
			interval: time.Second,
			advance: func(context.Context, applier.Applied) error {
				<-written
				return nil
			},
			observe:  func(p checkpoint.Progress) { seen = append(seen, p) },
			progress: at(10).Progress,
			reached:  func(p checkpoint.Progress) checkpoint.Progress { return p },
		}
		c.progress.Durable, c.progress.DurableWall = c.progress.Applied, c.progress.AppliedWall
		in, out := make(chan applier.Applied), make(chan checkpoint.Progress)
		done := make(chan error)
		go func() { done <- c.run(t.Context(), in, out) }()
		var told []checkpoint.Progress
		go func() {
			for p := range out {
				told = append(told, p)
			}
		}()
		time.Sleep(2 * time.Second) // of the bubble: the interval has passed
		in <- at(11)
		synctest.Wait() // the checkpoint at 11 is being written
		in <- at(12)
		synctest.Wait()
		written <- struct{}{}
		synctest.Wait()
		check := func(list []checkpoint.Progress, durable uint32) {
			t.Helper()
			p := list[len(list)-1]
			want := at(durable)
			if p.Applied != at(12).Applied || p.Durable != want.Applied || p.DurableWall != want.AppliedWall {
				t.Errorf("applied %s, durable %s (%d), want %s and %s", p.Applied, p.Durable, p.DurableWall, at(12).Applied, want.Applied)
			}
		}
		check(seen, 11)
		check(told, 11)
		close(in)
		written <- struct{}{}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		check(seen, 12)
		check(told, 12)
	})
}
