package pipeline

import (
	"errors"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/resync"
)

// ended returns the error of an attempt that began at a standing, nil for one that has left an
// index build: the next one follows, except for a part that was told to end, or to end at an
// entry. Only an attempt that ends without an error has applied all
// that it has read. However another one ends, also with its lease, a drain applies that.
func (p *Pipeline) ended(err error, before monitor.Standing, told bool) error {
	if p.monitor.Standing().Beyond(before) {
		p.oplog.Overflow().Moved()
	}
	if err != nil {
		p.hasRead(p.monitor.Snapshot().Fetched)
	}
	switch {
	case !errors.Is(err, applier.ErrLeft):
		return err
	case p.cfg.part != nil && (told || !p.cfg.part.of.Until.IsNull()):
		// The link, which may wait for that, continues without the part until the next time.
		return fmt.Errorf("%w: %w", failure.ErrStopped, err)
	}
	return nil
}

// hasRead records an entry up to which the oplog is to be applied before the run ends in order.
func (p *Pipeline) hasRead(last oplog.OpTime) {
	if last.After(p.unapplied) {
		p.unapplied = last
	}
}

// hasUnapplied reports whether something was read into memory, or applied by a lane, and not
// everything up to there is applied.
func (p *Pipeline) hasUnapplied() bool { return p.monitor.Progress().Applied.Before(p.unapplied) }

// drainBegan returns a time by which a drain had begun: that of its last attempt if that was
// to drain from its start on, otherwise the present.
func drainBegan(attempt time.Time, draining bool) time.Time {
	if draining {
		return attempt
	}
	return time.Now()
}

// notDrained returns an error that names the unapplied entries of a run that was told
// to drain, nil if there are none. Entries that a delay withholds at the time given, that of
// drainBegan, need not be applied.
func (p *Pipeline) notDrained(at time.Time) error {
	switch spooled := p.oplog.HasSpooled(); {
	case spooled && p.cfg.part != nil && !p.monitor.Gaps().Copying:
		return nil // The collection equals the source's where it stands: it can be merged there.
	case spooled:
		return fmt.Errorf("%w: the entries on disk were not applied", failure.ErrStopped)
	}
	if list := p.monitor.Gaps().LeftOut; len(list) > 0 {
		return fmt.Errorf("%w: %s", failure.ErrStopped, resync.Describe(list))
	}
	due := time.Unix(int64(p.unapplied.TS.T), 0).Add(p.cfg.Delay)
	if p.hasUnapplied() && (p.cfg.Delay == 0 || at.After(due)) {
		return fmt.Errorf("%w: the oplog was read up to %s, and is applied up to %s", failure.ErrStopped, p.unapplied, p.monitor.Progress().Applied)
	}
	return nil
}

// drains reports whether a run that is to end can still do so in order after an attempt
// that failed. It cannot if no server could be selected, as that has waited already, or
// if entries are spooled or collections left out. The pipeline of a part leaves
// draining to its next run.
func (p *Pipeline) drains(err error) bool {
	lost, ok := errors.AsType[*mongo.LostError](err)
	return (!ok || lost.Host != "") && p.cfg.part == nil && !p.oplog.HasSpooled() && len(p.monitor.Gaps().LeftOut) == 0
}
