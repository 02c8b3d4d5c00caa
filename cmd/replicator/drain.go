package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// drain cancels the run if the entries read are not applied in time. It is
// called after the first signal, and returns when the run has ended.
func (c *runCommand) drain(hard context.Context, stop context.CancelCauseFunc, snapshot func() monitor.Snapshot, log *slog.Logger) {
	const (
		draining = "draining: nothing more is read, what was read is applied; another signal stops at once"
		copying  = "ending in the middle of the copy: the next start goes on where it is"
		leftOut  = "draining: nothing more is read, what was read is applied; what is being copied again goes on with the next start"
		onDisk   = "ending while the log is still on disk: the next start goes on with it"
	)
	timeout := slog.Duration(keyTimeout, c.DrainTimeout)
	switch s := snapshot(); {
	case copyUnderWay(&s):
		log.LogAttrs(hard, slog.LevelInfo, copying, timeout)
	case s.Copy != nil && s.Copy.Spool != nil:
		log.LogAttrs(hard, slog.LevelInfo, onDisk, timeout)
	case len(s.LeftOut) > 0:
		log.LogAttrs(hard, slog.LevelInfo, leftOut, timeout, slog.Any(keyCopyLeftOut, leftOutNames(s.LeftOut)))
	default:
		log.LogAttrs(hard, slog.LevelInfo, draining, timeout)
	}
	timer := time.NewTimer(c.DrainTimeout)
	defer timer.Stop()
	select {
	case <-timer.C:
		stop(pipeline.ErrStopped)
	case <-hard.Done():
	}
}
