package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/oplogrep/replicator/pipeline"
)

// ends says when a command has to end: when soft is done it comes to an end in
// order, when hard is done it stops where it is.
type ends struct{ soft, hard context.Context }

// awaitSignals returns ends that the first and the second SIGINT or SIGTERM bring
// about. A third one kills the program, as it would without this.
func awaitSignals() (e ends, release func()) {
	soft, endSoft := context.WithCancelCause(context.Background())
	hard, endHard := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		for _, end := range []func(){func() { endSoft(context.Canceled) }, func() { endHard(pipeline.ErrStopped) }} {
			select {
			case <-signals:
				end()
			case <-done:
				return
			}
		}
		signal.Stop(signals)
	})
	return ends{soft, hard}, func() {
		close(done)
		wait.Wait()
		signal.Stop(signals)
		endSoft(nil)
		endHard(nil)
	}
}
