package cli

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/oplogrep/replicator/pipeline/failure"
)

// Ends says when a command must end: when Soft is done it drains, when Hard is
// done it stops at once.
type Ends struct {
	Soft, Hard context.Context
	reloads    *atomic.Bool
}

// Reloads makes SIGHUP end nothing from now on: the command has another meaning for it.
func (e Ends) Reloads() {
	if e.reloads != nil {
		e.reloads.Store(true)
	}
}

// OutlastOutput makes writes to an output that nothing reads any more, as of a program that collects logs and has ended, fail instead of
// ending the process. It is for commands that mirror: they go on without a log.
func OutlastOutput() { signal.Ignore(syscall.SIGPIPE) }

// SameSignal is how long after a signal another one counts as the same: timeout(1)
// and shells send one to a process and to its group.
const SameSignal = 500 * time.Millisecond

// oneSignal waits for a signal, one that hangs up only if that counts; it is nil if done is first.
func oneSignal(signals <-chan os.Signal, done <-chan struct{}, hangupCounts func() bool) os.Signal {
	for {
		select {
		case s := <-signals:
			if s != syscall.SIGHUP || hangupCounts() {
				return s
			}
		case <-done:
			return nil
		}
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

// obey calls soft with the first signal that counts, and hard after a second one, which cannot be one that hangs up.
func obey(signals <-chan os.Signal, done <-chan struct{}, hangupCounts func() bool, soft func(first os.Signal), hard func()) {
	first := oneSignal(signals, done, hangupCounts)
	if first == nil {
		return
	}
	soft(first)
	if quiet(signals, done) && oneSignal(signals, done, func() bool { return false }) != nil {
		hard()
	}
}

// awaitSignals returns Ends that the first and the second SIGINT or SIGTERM end; one
// that follows within half a second counts as the same. A third one kills the
// program, as it would without this. SIGHUP, as when the terminal is closed, counts as the first
// but not as the second, unless the process was started to ignore it, as by nohup.
func awaitSignals(ctx context.Context) (e Ends, release func()) {
	soft, endSoft := context.WithCancelCause(ctx)
	hard, endHard := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	var reloads atomic.Bool
	done := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		obey(signals, done, func() bool { return !reloads.Load() }, func(first os.Signal) {
			if first == syscall.SIGHUP {
				OutlastOutput() // the programs that read it may have ended by the same signal
			}
			endSoft(context.Canceled)
		}, func() {
			endHard(failure.ErrStopped)
			signal.Stop(signals)
		})
	})
	return Ends{Soft: soft, Hard: hard, reloads: &reloads}, func() {
		close(done)
		wait.Wait()
		signal.Stop(signals)
		endSoft(nil)
		endHard(nil)
	}
}
