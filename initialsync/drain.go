package initialsync

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
)

const (
	// nearlyDrained is how far the target may be behind the end of the spool when the
	// rest is read into memory.
	nearlyDrained = 5 * time.Second
	// drainTime is how long it may take to apply that. A command may wait meanwhile, so that
	// the entries stored since do not fit into memory.
	drainTime = time.Minute
	// drainEvery is how often the spool is checked for that.
	drainEvery = 200 * time.Millisecond
	// fullFor is how long the spool may be full, with everything in it applied, before
	// the wait for room is given up.
	fullFor = 10 * time.Second
	// storeAgain is the minimum time after a fault of the disk until the oplog is spooled again.
	storeAgain = 30 * time.Second
)

// Drained blocks until the target is consistent and little is left to apply, all of it in
// memory, and returns true: reading can continue without the spool. (A limit in seconds alone
// could exceed the oplog that the source still has. Entries kept back by the delay need not be
// in memory.) It returns false when ctx is done. delay is by how much the target is to lag
// the source; at returns the progress of applying, and whether the target is still inconsistent.
//
// If everything is applied, but nothing can be deleted because an open transaction began
// earlier, no more entries come in. Then it returns true too, or an error if the target is
// not consistent, or the source is known not to have the transaction's first entry.
//
// With a relay log it does not return because little is left: the oplog is read through the
// relay log for as long as the disk accepts it.
//
// If the disk had failed, so that the oplog is no longer spooled, it returns true once it can be
// written to again: the spool has to be opened again for that.
func (l *Log) Drained(ctx context.Context, delay time.Duration, at func() (cp checkpoint.Progress, copying bool)) (bool, error) {
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	drained := func() (bool, error) {
		l.drained, l.drainedAt = l.id, time.Now()
		return true, nil
	}
	var full time.Time
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, nil
		}
		if l.mayStore() {
			return true, nil
		}
		_, last, ok := l.spool.Bounds()
		cp, copying := at()
		lag := time.Duration(int64(last.TS.T)-int64(cp.FetchFrom.TS.T)) * time.Second
		if !copying && l.cfg.Relay == 0 && (!ok || lag <= delay+nearlyDrained && (delay > 0 || l.spool.AllRead()) && time.Since(l.resumed) >= drainTime) {
			return drained()
		}
		if !ok || cp.Durable.Before(last) {
			full = time.Time{}
			continue
		}
		switch disk := l.spool.Disk(); {
		case !copying && !l.Storing(): // The disk has failed, and the entries on it are applied.
			if err := l.fault(); err != nil && l.needs(cp) {
				return false, err
			}
			return drained()
		case !disk.Full || !disk.Last.Equal(last):
			full = time.Time{}
		case full.IsZero():
			full = time.Now()
		case time.Since(full) < fullFor:
		case copying || l.needs(cp):
			return false, &spool.FullError{Dir: l.dir, Why: disk.Why + ", and an open transaction needs the entries on disk"}
		default:
			return drained()
		}
	}
}

// needs reports whether a restart at a checkpoint needs what the source no longer has.
func (l *Log) needs(cp checkpoint.Progress) bool { return !cp.FetchFrom.After(l.missing) }
