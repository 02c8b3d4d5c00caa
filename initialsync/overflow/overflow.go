package overflow

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/syncsource"
)

const (
	// every is how often to check whether the oplog has to be spooled.
	every = time.Second
	// standsAfter is how long nothing may be applied, while nothing more can be read,
	// before the oplog is spooled.
	standsAfter = 5 * time.Second
	// late is how much more than its delay a delayed link must lag.
	late = 30 * time.Second
	// checkpointStands is how long the checkpoint must need the same entry to count as one
	// that does not get on.
	checkpointStands = 30 * time.Second
	// again is the minimum time between two starts of spooling, after it has failed.
	again = 30 * time.Second
)

// Config says what an Overflow knows of a link.
type Config struct {
	// Source runs commands on the source's primary; Reaches reports whether a member answers whose
	// oplog reaches back to an entry. Fetch says how the source is read, from the entry that a state
	// needs.
	Source  mongo.Caller
	Reaches func(context.Context, oplog.OpTime) bool
	Fetch   func(checkpoint.Source, checkpoint.State) fetcher.Config
	// Delay is how far behind the source the target is kept. Relay means that there is to be a relay
	// log. Paused reports whether the link is paused.
	Delay  time.Duration
	Relay  bool
	Paused func() bool
	// Show returns the link's progress, and shows the state of the spool.
	Show     Show
	Observer event.Observer
}

// Show returns a link's progress, and shows the state of its spool. Its functions may be
// called concurrently with all other work.
type Show struct {
	// MostLag returns how far the target may be behind the source, Oldest the oldest entry of the
	// member that is read, false if that is not known. RunsShort returns why the source's oplog may
	// not last until the target has caught up, empty if it does.
	MostLag   func() time.Duration
	Oldest    func(context.Context) (oplog.OpTime, bool)
	RunsShort func() string
	// Spools is told why the oplog is spooled, and where; of neither if it is not any more. Relays is
	// told why there is no relay log at present, empty if there is one.
	Spools func(s *spool.Spool, why string)
	Relays func(off string)
}

// Overflow spools the oplog of a link while its target does not keep up, within attempts and between
// them. Its methods are for one goroutine at a time, but [Attempt.Run] and [Overflow.Advanced].
type Overflow struct {
	cfg Config
	log *initialsync.Log
	// attempt is the last one, nil if that can spool nothing.
	attempt *Attempt
	// standsSince is since when attempts have advanced nothing, zero if the last one has; next is when
	// spooling may begin again within one.
	standsSince, next time.Time
	// relayNext is when the relay log may be tried again.
	relayNext time.Time
}

// New returns an Overflow into a log. It does no I/O.
func New(cfg Config, log *initialsync.Log) *Overflow { return &Overflow{cfg: cfg, log: log} }

// Reset forgets all attempts: another log follows.
func (o *Overflow) Reset(log *initialsync.Log) {
	o.log, o.attempt, o.standsSince = log, nil, time.Time{}
}

// Begin begins an attempt that may spool the oplog.
func (o *Overflow) Begin(cfg AttemptConfig) *Attempt {
	o.attempt = &Attempt{of: o, cfg: cfg, at: cfg.State.Progress(), moved: time.Now()}
	return o.attempt
}

// End forgets the last attempt.
func (o *Overflow) End() { o.attempt = nil }

// Advanced is called with each checkpoint.
func (o *Overflow) Advanced(cp checkpoint.Progress) {
	if o.attempt != nil {
		o.attempt.advanced(cp)
	}
}

// Moved records that an attempt has advanced something.
func (o *Overflow) Moved() { o.standsSince = time.Time{} }

// Stood records that attempts have advanced nothing since a time, if that is not known already.
func (o *Overflow) Stood(since time.Time) {
	if !o.Stands() {
		o.standsSince = since
	}
}

// Stands reports whether the last attempts have advanced nothing.
func (o *Overflow) Stands() bool { return !o.standsSince.IsZero() }

// SpoolIfDue spools the oplog if attempts have advanced nothing for some time, and none runs.
func (o *Overflow) SpoolIfDue() {
	if o.attempt != nil && o.Stands() && time.Since(o.standsSince) >= standsAfter {
		o.attempt.between(o.standsSince)
	}
}

// Meanwhile runs work that waits for the target and does not use the log. The oplog is
// spooled meanwhile, if that is due.
func (o *Overflow) Meanwhile(work func()) {
	if o.attempt == nil || !o.Stands() {
		work()
		return
	}
	done := make(chan struct{})
	var spooling sync.WaitGroup
	spooling.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				o.SpoolIfDue()
			case <-done:
				return
			}
		}
	})
	work()
	close(done)
	spooling.Wait()
}

// ReadsElsewhere reports whether another attempt can read the entries that the one that ended with
// err could not: from the source, if the spool is not of its history and none of it was applied; or
// from the spool, if the attempt before switched to the source too early.
func (o *Overflow) ReadsElsewhere(err error) bool {
	why := ""
	_, stale := errors.AsType[*syncsource.TooStaleError](err)
	switch a := o.attempt; {
	case errors.Is(err, fetcher.ErrOtherHistory) && o.log.Disown():
		why = "the entries found on disk are not of the source's history: the oplog is read from the checkpoint on"
	case stale && a != nil && a.cfg.Fetcher != nil && o.log.Resume(a.fetchConfig().From):
		why = "the source no longer has the entries that are still on disk: the spool is used again"
	default:
		return false
	}
	o.cfg.Observer.Log(slog.LevelWarn, why, slog.Any(keyError, err))
	return true
}

// notSpooled announces that the oplog cannot be spooled: the link continues without that.
func (o *Overflow) notSpooled(err error) {
	if o.cfg.Relay {
		o.notRelayed(err)
		return
	}
	o.cfg.Observer.Log(slog.LevelWarn, "the oplog should be spooled, but cannot be: it is read when the target has room", slog.Any(keyError, err))
}

// Keys of log attributes.
const (
	keyDir   = "dir"
	keyError = "error"
	keyFrom  = "from"
	keyWhy   = "why"
)
