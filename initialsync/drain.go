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
	// drainEvery is how often the spool is checked for that.
	drainEvery = 200 * time.Millisecond
	// fullFor is how long the spool may be full, with everything in it applied, before
	// the wait for room is given up.
	fullFor = 10 * time.Second
)

// Drained blocks until the target is consistent and little is left on disk, and returns
// true: reading can continue without the spool. It returns false when ctx is done. The
// target may be kept behind the source by delay; at returns the progress of applying, and
// whether the target is still inconsistent.
//
// If everything is applied and nothing can be deleted, because an open transaction began
// before it, no more entries come in. Then it returns true too, or an error if the target
// is not consistent.
func (l *Log) Drained(ctx context.Context, delay time.Duration, at func() (cp checkpoint.Progress, copying bool)) (bool, error) {
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	drained := func() (bool, error) {
		l.drained = l.id
		return true, nil
	}
	var full time.Time
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, nil
		}
		_, last, ok := l.spool.Bounds()
		cp, copying := at()
		lag := time.Duration(int64(last.TS.T)-int64(cp.FetchFrom.TS.T)) * time.Second
		if !copying && (!ok || lag <= delay+nearlyDrained) {
			return drained()
		}
		if !ok || cp.Durable.Before(last) {
			full = time.Time{}
			continue
		}
		switch disk := l.spool.Disk(); {
		case !disk.Full || !disk.Last.Equal(last):
			full = time.Time{}
		case full.IsZero():
			full = time.Now()
		case time.Since(full) < fullFor:
		case copying:
			return false, &spool.FullError{Dir: l.dir, Why: disk.Why + ", and what is there is needed by a transaction that is open"}
		default:
			return drained()
		}
	}
}
