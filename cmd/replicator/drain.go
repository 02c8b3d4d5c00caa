package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/pipeline"
)

// drain stops hard when what was read could not be applied in time. It is called
// when the first signal has come, and returns when all has ended.
func (c *runCommand) drain(hard context.Context, stop context.CancelCauseFunc, log *slog.Logger) {
	log.LogAttrs(hard, slog.LevelInfo, "draining: nothing more is read, what was read is applied; another signal stops at once",
		slog.Duration(keyTimeout, c.DrainTimeout))
	timer := time.NewTimer(c.DrainTimeout)
	defer timer.Stop()
	select {
	case <-timer.C:
		stop(pipeline.ErrStopped)
	case <-hard.Done():
	}
}
