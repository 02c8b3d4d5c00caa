package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// drain cancels the run if the entries read are not applied in time. It is
// called after the first signal, and returns when the run has ended.
func (c *runCommand) drain(hard context.Context, stop context.CancelCauseFunc, snapshot func() monitor.Snapshot, log *slog.Logger) {
	const (
		draining = "draining: reading has stopped, entries already read are applied; another signal stops at once"
		copying  = "stopping during the copy: the next start resumes it"
		leftOut  = "draining: reading has stopped, entries already read are applied; resyncs resume at the next start"
		standby  = "stopping: this process stands by"
		onDisk   = "stopping while spooled entries are not applied yet: the next start resumes there"
	)
	timeout := slog.Duration(keyTimeout, c.DrainTimeout)
	switch s := snapshot(); {
	case s.State == monitor.Standby:
		log.LogAttrs(hard, slog.LevelInfo, standby)
	case copyUnderWay(&s):
		log.LogAttrs(hard, slog.LevelInfo, copying, timeout)
	case s.Spool != nil:
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
		stop(failure.ErrStopped)
	case <-hard.Done():
	}
}
