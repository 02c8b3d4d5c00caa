package checkpoint

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oplogrep/replicator/oplog"
)

// TestDurableIsWhatWasWritten: a checkpoint makes durable what it contains, not
// operations applied while it was being written. What may be reported ends where
// something is left out.
func TestDurableIsWhatWasWritten(t *testing.T) {
	at := func(s uint32) Applied {
		o := oplog.NewOpTime(s, 1, 1)
		return Applied{Progress: Progress{Applied: o, AppliedWall: int64(s) * 1000, FetchFrom: o}}
	}
	synctest.Test(t, func(t *testing.T) {
		written := make(chan struct{})
		var seen []Progress
		c := &Checkpointer{
			interval: time.Second,
			advance: func(context.Context, Applied) error {
				<-written
				return nil
			},
			moved:    func(p Progress) { seen = append(seen, p) },
			progress: at(10).Progress,
			gaps: func() Gaps {
				return Gaps{LeftOut: []LeftOut{{Since: at(11).Applied, Wall: at(11).AppliedWall}}}
			},
		}
		c.progress.Durable, c.progress.DurableWall = c.progress.Applied, c.progress.AppliedWall
		in, out := make(chan Applied), make(chan Progress)
		done := make(chan error)
		go func() { done <- c.Run(t.Context(), in, out) }()
		var told []Progress
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
		check := func(list []Progress, applied, durable uint32) {
			t.Helper()
			p := list[len(list)-1]
			want := at(durable)
			if p.Applied != at(applied).Applied || p.Durable != want.Applied || p.DurableWall != want.AppliedWall {
				t.Errorf("applied %s, durable %s (%d), want %s and %s", p.Applied, p.Durable, p.DurableWall, at(applied).Applied, want.Applied)
			}
		}
		check(seen, 12, 11)
		check(told, 11, 11)
		close(in)
		written <- struct{}{}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		check(seen, 12, 12)
		check(told, 11, 11)
	})
}
