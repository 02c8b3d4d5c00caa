package pipeline

import (
	"context"
	"errors"
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
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/syncsource"
)

const (
	// overflowEvery is how often to check whether the oplog has to be spooled.
	overflowEvery = time.Second
	// overflowAfter is how long nothing may be applied, while nothing more can be read,
	// before the oplog is spooled.
	overflowAfter = 5 * time.Second
	// overflowLate is how much more than its delay a delayed link must lag.
	overflowLate = 30 * time.Second
	// overflowStands is how long the checkpoint must need the same entry to count as one
	// that does not get on.
	overflowStands = 30 * time.Second
	// overflowAgain is the minimum time between two starts of spooling, after it has failed.
	overflowAgain = 30 * time.Second
)

// overflow spools the oplog of an attempt that reads it into memory, if the target does not
// keep up: see docs/adr/0021-the-oplog-goes-to-disk-while-the-target-waits.md.
type overflow struct {
	p *Pipeline
	// store starts to fetch the oplog into the spool, for the run.
	store func(fetcher.Config) error
	// told is done when the run is to end; has reports whether the source has an entry.
	told func() bool
	has  func(context.Context, oplog.OpTime) bool
	// source and state are the link's, state as the attempt found it.
	source checkpoint.Source
	state  checkpoint.State
	// queue and fetcher are the attempt's; end makes the fetcher end. Then read is closed.
	// Leave makes the attempt end before index builds do.
	queue      *buffer.Queue
	fetcher    *fetcher.Fetcher
	end, leave func()
	read       chan struct{}
	// ended means that end was called, for the spool.
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

// newOverflow returns nil if there is no folder for a spool.
func (p *Pipeline) newOverflow(soft context.Context, a *attempt, st checkpoint.State) *overflow {
	if p.cfg.Copy.SpoolDir == "" {
		return nil
	}
	return &overflow{
		p: p, source: a.source, state: st, at: st.Progress(), moved: time.Now(), queue: a.queue, fetcher: a.fetcher, read: a.read,
		store: func(from fetcher.Config) error { return p.log.Start(p.run, soft, st.Copy, from) },
		told:  func() bool { return soft.Err() != nil },
		end:   func() { a.end(errDrain) },
		leave: a.leave,
		has:   p.resolver.Reaches,
	}
}

// advanced is called with each checkpoint.
func (o *overflow) advanced(cp checkpoint.Progress) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if cp.FetchFrom.After(o.at.FetchFrom) {
		o.moved = time.Now()
	}
	o.at = cp
}

// loop spools the oplog once that is necessary, until ctx is done. The attempt then ends
// in order, however long that takes, and the next one reads through the spool. Only for an
// index build it does not wait, once the spool has what the next one has to read first, or if
// the oplog could not be spooled, and the source still has that.
func (o *overflow) loop(ctx context.Context) error {
	tick := time.NewTicker(overflowEvery)
	defer tick.Stop()
	var s standstill
	for {
		select {
		case <-o.leaveSpool():
			continue
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if o.serves() || o.readsOn(ctx) {
			o.leave()
		}
		now := time.Now()
		why := o.reason(&s, now)
		if why == "" || now.Before(o.p.spoolNext) || o.told() {
			continue
		}
		o.p.spoolNext = now.Add(overflowAgain)
		if err := o.begin(ctx, why); err != nil {
			o.p.notSpooled(err)
		}
	}
}

// leaveSpool removes the spool that an earlier attempt has left, once the source has shown that
// it has what the link needs. Until then it returns a channel that is closed with the next news.
func (o *overflow) leaveSpool() <-chan struct{} {
	if o.why != "" || o.p.log.Spool() == nil {
		return nil
	}
	changed := o.fetcher.Changed()
	if o.fetcher.Status().Last.IsNull() {
		return changed
	}
	if err := o.p.log.Remove(); err != nil { // It is judged again before it is read.
		o.p.cfg.Observer.Log(slog.LevelWarn, "the spool cannot be removed", slog.Any(keyError, err))
	}
	return nil
}

// reason returns why the oplog has to be spooled, empty if it need not be, or is.
func (o *overflow) reason(s *standstill, now time.Time) string {
	stands := s.look(now, o.queue.Stats(), o.hasRead())
	delay := o.p.cfg.Delay
	switch {
	case o.p.cfg.RelayBytes > 0 && (o.why == "" || !o.p.log.Storing()):
		if o.why != "" {
			o.p.monitor.Spools(nil, "")
		}
		return relayAgain
	case delay > 0 && o.p.monitor.MostLag() <= delay+overflowLate:
		return "" // it waits on purpose
	case o.why != "" && o.p.log.Storing():
		return ""
	case o.why != "":
		o.p.monitor.Spools(nil, "")
		return o.why // spooling has failed
	case stands && o.p.isHeld():
		return "the link is paused, and the buffer is full"
	case stands:
		return "the target has applied nothing since " + s.since.UTC().Format(time.RFC3339)
	case !o.queue.Stats().Waiting && !o.stands(now):
		return "" // the target keeps up with what is read
	}
	return o.p.monitor.RunsShort()
}

// stands reports whether the checkpoint has needed the same entry for a while, although
// later ones may be applied.
func (o *overflow) stands(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return now.Sub(o.moved) >= overflowStands
}

// hasRead reports whether the fetcher has ended.
func (o *overflow) hasRead() bool {
	select {
	case <-o.read:
		return true
	default:
		return false
	}
}

// begin ends reading into memory, and starts to spool the oplog. If the source no longer
// has it from the checkpoint on, it is spooled from an entry before the one where reading ended.
func (o *overflow) begin(ctx context.Context, why string) error {
	if o.why != "" { // after a fault of the disk, the files have to be read again
		if err := o.p.log.Close(); err != nil {
			return err
		}
	}
	if err := o.p.log.Prepare(o.state.Copy); err != nil {
		return err
	}
	oldest, known := o.p.monitor.Oldest(ctx)
	o.ended = true
	o.end()
	select {
	case <-o.read:
	case <-ctx.Done():
		if !o.hasRead() { // the attempt may end because it has
			return nil
		}
	}
	fetch := o.fetchConfig()
	if last := o.fetcher.Status().Last; known && !last.IsNull() && oplog.CompareTimestamps(fetch.From.TS, oldest.TS) < 0 {
		fetch.From = o.reaches(ctx, oldest, last)
	}
	return o.start(fetch, why)
}

// serves reports whether the next attempt can read everything through the spool.
func (o *overflow) serves() bool {
	if o.why == "" || !o.p.log.Storing() {
		return false
	}
	served, err := o.p.log.Serves(o.state.Copy, o.fetchConfig().From)
	return served && err == nil
}

// readsOn reports whether the next attempt can read on from the source, where this one has
// ended reading for a spool that could not be filled.
func (o *overflow) readsOn(ctx context.Context) bool {
	if !o.ended || !o.hasRead() || o.told() || o.p.log.Storing() {
		return false
	}
	from, last := o.fetchConfig().From, o.fetcher.Status().Last
	return o.has(ctx, sooner(from, last))
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
func (o *overflow) reaches(ctx context.Context, oldest, last oplog.OpTime) oplog.OpTime {
	start, err := replset.StartAt(ctx, o.p.source, later(oldest, last))
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

// between is called between two attempts, after a time in which attempts have advanced
// nothing: it spools the oplog while none gets as far as reading it.
func (o *overflow) between(since time.Time) {
	if o.told() || o.p.log.Storing() || time.Now().Before(o.again) {
		return
	}
	o.again = time.Now().Add(overflowAgain)
	if err := o.start(o.fetchConfig(), "no attempt has applied anything since "+since.UTC().Format(time.RFC3339)); err != nil {
		o.p.notSpooled(err)
	}
}

// fetchConfig says how the source is read from the last checkpoint on: what is spooled from
// there is all that a restart needs.
func (o *overflow) fetchConfig() fetcher.Config {
	st := o.state
	o.mu.Lock()
	st.Applied, st.FetchFrom = o.at.Applied, o.at.FetchFrom
	o.mu.Unlock()
	return o.p.fetchConfig(o.source, st)
}

// start starts to spool the oplog, and announces it.
func (o *overflow) start(fetch fetcher.Config, why string) error {
	if err := o.store(fetch); err != nil {
		return err
	}
	o.why = why
	if why == relayAgain {
		o.p.relaysAgain()
		return nil
	}
	o.p.monitor.Spools(o.p.log.Spool(), why)
	o.p.cfg.Observer.Log(slog.LevelWarn, "the oplog is spooled to disk until the target has caught up",
		slog.String(keyWhy, why), slog.String(keyFrom, fetch.From.String()), slog.String(keyDir, o.p.log.Dir()))
	return nil
}

// notSpooled announces that the oplog cannot be spooled: the link goes on without that.
func (p *Pipeline) notSpooled(err error) {
	if p.cfg.RelayBytes > 0 {
		p.notRelayed(err)
		return
	}
	p.cfg.Observer.Log(slog.LevelWarn, "the oplog should be spooled, but cannot be: it is read when the target has room", slog.Any(keyError, err))
}

// afterFailure prepares for the attempt after one that began at a time, from before, and ended
// with err. It returns an error if there cannot be another one.
func (p *Pipeline) afterFailure(soft context.Context, err error, before monitor.Standing, began time.Time) error {
	if broken := p.log.Recover(p.run, soft, err); broken != nil && !p.retries(broken) {
		return broken
	}
	if p.log.Spool() == nil {
		p.monitor.Spools(nil, "")
	}
	p.monitor.Failed(err)
	if p.standsSince.IsZero() && !p.monitor.Standing().Beyond(before) {
		p.standsSince = began
	}
	p.spoolIfDue()
	return nil
}

// spoolIfDue spools the oplog if attempts have advanced nothing for some time, and none runs.
func (p *Pipeline) spoolIfDue() {
	if p.overflow != nil && !p.standsSince.IsZero() && time.Since(p.standsSince) >= overflowAfter {
		p.overflow.between(p.standsSince)
	}
}

// meanwhile runs work that waits for the target and does not use the log. The oplog is
// spooled meanwhile, if that is due.
func (p *Pipeline) meanwhile(work func()) {
	if p.overflow == nil || p.standsSince.IsZero() {
		work()
		return
	}
	done := make(chan struct{})
	var spooling sync.WaitGroup
	spooling.Go(func() {
		tick := time.NewTicker(overflowEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.spoolIfDue()
			case <-done:
				return
			}
		}
	})
	work()
	close(done)
	spooling.Wait()
}

// standstill finds out since when nothing has been applied although nothing can be read.
type standstill struct {
	since    time.Time // zero if something is read, or applied
	released int64
}

// look looks at the buffer, and reports whether that has lasted for long. ended means that
// reading has ended.
func (s *standstill) look(now time.Time, b buffer.Stats, ended bool) bool {
	moves := b.Released != s.released
	s.released = b.Released
	switch {
	case moves, b.Buffered == 0, !b.Waiting && !ended:
		s.since = time.Time{}
	case s.since.IsZero():
		s.since = now
	}
	return !s.since.IsZero() && now.Sub(s.since) >= overflowAfter
}

// readsElsewhere reports whether another attempt can read what the one that ended with err could
// not: from the source, if what is on disk is not of its history and none of it was applied; or
// from the disk, if that was left too early.
func (p *Pipeline) readsElsewhere(err error) bool {
	why := ""
	switch {
	case errors.Is(err, fetcher.ErrOtherHistory) && p.log.Disown():
		why = "what was found on disk is not of the source's history: the oplog is read from the checkpoint on"
	case as[*syncsource.TooStaleError](err) && p.overflow != nil && p.overflow.fetcher != nil && p.log.Resume(p.overflow.fetchConfig().From):
		why = "the source no longer has what is still on disk: the spool is used again"
	default:
		return false
	}
	p.cfg.Observer.Log(slog.LevelWarn, why, slog.Any(keyError, err))
	return true
}
