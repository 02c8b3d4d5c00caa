package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/pipeline"
)

// drain stops hard when what was read could not be applied in time. It is called
// when the first signal has come, and returns when all has ended.
func (c *runCommand) drain(hard context.Context, stop context.CancelCauseFunc, snapshot func() pipeline.Snapshot, log *slog.Logger) {
	text := "draining: nothing more is read, what was read is applied; another signal stops at once"
	switch s := snapshot(); {
	case copyUnderWay(&s):
		text = "ending in the middle of the copy: the next start goes on where it is"
	case s.Copy != nil && s.Copy.Spool != nil:
		text = "ending while the log is still on disk: the next start goes on with it"
	}
	log.LogAttrs(hard, slog.LevelInfo, text, slog.Duration(keyTimeout, c.DrainTimeout))
	timer := time.NewTimer(c.DrainTimeout)
	defer timer.Stop()
	select {
	case <-timer.C:
		stop(pipeline.ErrStopped)
	case <-hard.Done():
	}
}
