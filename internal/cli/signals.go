package cli

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/oplogrep/replicator/pipeline/failure"
)

// Ends says when a command must end: when Soft is done it drains, when Hard is
// done it stops at once.
type Ends struct{ Soft, Hard context.Context }

// SameSignal is how long after a signal another one counts as the same: timeout(1)
// and shells send one to a process and to its group.
const SameSignal = 500 * time.Millisecond

// oneSignal waits for a signal; it is false if done is first.
func oneSignal(signals <-chan os.Signal, done <-chan struct{}) bool {
	select {
	case <-signals:
		return true
	case <-done:
		return false
	}
}

// quiet consumes repetitions of the signal just received; it is false if done is
// first.
func quiet(signals <-chan os.Signal, done <-chan struct{}) bool {
	same := time.NewTimer(SameSignal)
	defer same.Stop()
	for {
		select {
		case <-signals:
		case <-same.C:
			return true
		case <-done:
			return false
		}
	}
}

// awaitSignals returns Ends that the first and the second SIGINT or SIGTERM end; one
// that follows within half a second counts as the same. A third one kills the
// program, as it would without this.
func awaitSignals(ctx context.Context) (e Ends, release func()) {
	soft, endSoft := context.WithCancelCause(ctx)
	hard, endHard := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		if !oneSignal(signals, done) {
			return
		}
		endSoft(context.Canceled)
		if !quiet(signals, done) || !oneSignal(signals, done) {
			return
		}
		endHard(failure.ErrStopped)
		signal.Stop(signals)
	})
	return Ends{soft, hard}, func() {
		close(done)
		wait.Wait()
		signal.Stop(signals)
		endSoft(nil)
		endHard(nil)
	}
}
