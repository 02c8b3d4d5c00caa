package overflow

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/oplog"
)

// AttemptConfig says what an attempt reads.
type AttemptConfig struct {
	// Source and State are the link's, State as the attempt found it.
	Source checkpoint.Source
	State  checkpoint.State
	// Queue and Fetcher are the attempt's, nil if it reads through the spool; End makes the fetcher
	// end. Then Read is closed. Leave makes the attempt end before index builds do.
	Queue      *buffer.Queue
	Fetcher    *fetcher.Fetcher
	End, Leave func()
	Read       <-chan struct{}
	// Start starts to fetch the oplog into the spool, for the run. Told reports whether the run is
	// to end.
	Start func(fetcher.Config) error
	Told  func() bool
}

// Attempt spools the oplog of an attempt that reads it into memory, if the target does not
// keep up.
type Attempt struct {
	of  *Overflow
	cfg AttemptConfig
	// ended means that End was called, for the spool.
	ended bool
	// why is why the oplog is spooled, empty if it is not.
	why string
	// again is when spooling may be begun again between attempts, after it has failed.
	again time.Time

	mu sync.Mutex
	// at is the last checkpoint, moved when it needed another entry than the one before;
	// guarded by mu.
	at    checkpoint.Progress
	moved time.Time
}

// advanced is called with each checkpoint.
func (a *Attempt) advanced(cp checkpoint.Progress) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cp.FetchFrom.After(a.at.FetchFrom) {
		a.moved = time.Now()
	}
	a.at = cp
}

// Run spools the oplog once that is necessary, until ctx is done. The attempt then ends
// in order, however long that takes, and the next one reads through the spool. Only for an
// index build it does not wait, once the spool has what the next one has to read first, or if
// the oplog could not be spooled, and the source still has that.
func (a *Attempt) Run(ctx context.Context) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var s standstill
	for {
		select {
		case <-a.leaveSpool():
			continue
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if a.serves() || a.readsOn(ctx) {
			a.cfg.Leave()
		}
		now := time.Now()
		why := a.reason(&s, now)
		if why == "" || now.Before(a.of.next) || a.cfg.Told() {
			continue
		}
		a.of.next = now.Add(again)
		if err := a.begin(ctx, why); err != nil {
			a.of.notSpooled(err)
		}
	}
}

// leaveSpool removes the spool that an earlier attempt has left, once the source has shown that
// it has what the link needs. Until then it returns a channel that is closed with the next news.
func (a *Attempt) leaveSpool() <-chan struct{} {
	if a.why != "" || a.of.log.Spool() == nil {
		return nil
	}
	changed := a.cfg.Fetcher.Changed()
	if a.cfg.Fetcher.Status().Last.IsNull() {
		return changed
	}
	if err := a.of.log.Remove(); err != nil { // It is judged again before it is read.
		a.of.cfg.Observer.Log(slog.LevelWarn, "the spool cannot be removed", slog.Any(keyError, err))
	}
	return nil
}

// reason returns why the oplog has to be spooled, empty if it need not be, or is.
func (a *Attempt) reason(s *standstill, now time.Time) string {
	stands := s.look(now, a.cfg.Queue.Stats(), a.hasRead())
	delay := a.of.cfg.Delay
	switch {
	case a.of.cfg.Relay && (a.why == "" || !a.of.log.Storing()):
		if a.why != "" {
			a.of.cfg.Show.Spools(nil, "")
		}
		return relayAgain
	case delay > 0 && a.of.cfg.Show.MostLag() <= delay+late:
		return "" // it waits on purpose
	case a.why != "" && a.of.log.Storing():
		return ""
	case a.why != "":
		a.of.cfg.Show.Spools(nil, "")
		return a.why // spooling has failed
	case stands && a.of.cfg.Paused() && a.cfg.Queue.Stats().Waiting:
		return "the link is paused, and the buffer is full"
	case stands && a.of.cfg.Paused():
		return "the link is paused, and the attempt has ended reading"
	case stands:
		return "the target has applied nothing since " + s.since.UTC().Format(time.RFC3339)
	case !a.cfg.Queue.Stats().Waiting && !a.stands(now):
		return "" // the target keeps up with the reader
	}
	why := a.of.cfg.Show.RunsShort()
	if why != "" && a.of.cfg.Paused() {
		return "the link is paused, and " + why
	}
	return why
}

// stands reports whether the checkpoint has needed the same entry for a while, although
// later ones may be applied.
func (a *Attempt) stands(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return now.Sub(a.moved) >= checkpointStands
}

// hasRead reports whether the fetcher has ended.
func (a *Attempt) hasRead() bool {
	select {
	case <-a.cfg.Read:
		return true
	default:
		return false
	}
}

// begin ends reading into memory, and starts to spool the oplog. If the source no longer
// has it from the checkpoint on, it is spooled from an entry before the one where reading ended.
func (a *Attempt) begin(ctx context.Context, why string) error {
	if a.why != "" { // after a fault of the disk, the files have to be read again
		if err := a.of.log.Close(); err != nil {
			return err
		}
	}
	if err := a.of.log.Prepare(a.cfg.State.Copy); err != nil {
		return err
	}
	oldest, known := a.of.cfg.Show.Oldest(ctx)
	a.ended = true
	a.cfg.End()
	select {
	case <-a.cfg.Read:
	case <-ctx.Done():
		if !a.hasRead() { // the attempt may end because it has
			return nil
		}
	}
	fetch := a.fetchConfig()
	if last := a.cfg.Fetcher.Status().Last; known && !last.IsNull() && oplog.CompareTimestamps(fetch.From.TS, oldest.TS) < 0 {
		fetch.From = a.reaches(ctx, oldest, last)
	}
	return a.start(fetch, why)
}

// serves reports whether the next attempt can read everything through the spool.
func (a *Attempt) serves() bool {
	if a.why == "" || !a.of.log.Storing() {
		return false
	}
	served, err := a.of.log.Serves(a.cfg.State.Copy, a.fetchConfig().From)
	return served && err == nil
}

// readsOn reports whether the next attempt can read on from the source, where this one has
// ended reading for a spool that could not be filled.
func (a *Attempt) readsOn(ctx context.Context) bool {
	if !a.ended || !a.hasRead() || a.cfg.Told() || a.of.log.Storing() {
		return false
	}
	from, last := a.fetchConfig().From, a.cfg.Fetcher.Status().Last
	return a.of.cfg.Reaches(ctx, sooner(from, last))
}

// sooner returns a time before an entry, by a part of what follows it: if the source has all
// since then, it has the entry for long enough to begin reading there.
func sooner(from, last oplog.OpTime) oplog.OpTime {
	if last.TS.T > from.TS.T {
		from.TS.T -= min(from.TS.T, (last.TS.T-from.TS.T)/16)
	}
	return from
}

// reaches returns an entry from which on the source will have the oplog when it is read: as far
// before last as that is certain, as last may be within a transaction.
func (a *Attempt) reaches(ctx context.Context, oldest, last oplog.OpTime) oplog.OpTime {
	start, err := replset.StartAt(ctx, a.of.cfg.Source, later(oldest, last))
	if err != nil || !start.Begin.Before(last) {
		return last
	}
	return start.Begin
}

// later returns the time after a quarter of what the source has before last: until the oplog is
// read from there, the source may not delete so much.
func later(oldest, last oplog.OpTime) bson.Timestamp {
	return bson.Timestamp{T: oldest.TS.T + (last.TS.T-oldest.TS.T)/4, I: math.MaxUint32}
}
