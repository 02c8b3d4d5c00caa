package standby

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/syncsource"
)

// offerAgain is how long a process keeps a lease that it has acquired by an offer, so that
// two of them do not pass it to each other.
const offerAgain = 10 * time.Minute

// WhileReading runs work under the lease, and offers the lease meanwhile, as long as nothing
// can be read from the source: see docs/adr/0027-a-leader-that-cannot-read.md.
func (c *Candidate) WhileReading(leading context.Context, work func() error) error {
	ctx, stop := context.WithCancelCause(leading)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.offerLoop(ctx)
	}()
	err := work()
	stop(nil)
	<-done
	return err
}

// offerLoop offers the lease while nothing was read for Options.CutOff, and nothing can be,
// until ctx is done.
func (c *Candidate) offerLoop(ctx context.Context) {
	cutOff := c.cfg.CutOff
	if c.cfg.Once {
		return // it would end
	}
	tick := time.NewTicker(max(cutOff/12, time.Millisecond))
	defer tick.Stop()
	read, offers := time.Now(), false
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if at := c.cfg.Monitor.Snapshot().HeardAt; at.After(read) {
			read = at
		}
		cut := time.Since(read) >= cutOff && c.mayOffer()
		if cut {
			reads, known := c.readsOn(ctx)
			if cut = !reads; !known {
				continue
			}
		}
		if cut == offers || ctx.Err() != nil {
			continue
		}
		offers = cut
		c.offer(ctx, offers)
		if offers {
			c.cfg.Observer.Log(slog.LevelWarn, "nothing can be read from the source: the lease is offered to a process that can read it",
				slog.Duration(keyFor, time.Since(read)))
		} else {
			c.cfg.Observer.Log(slog.LevelInfo, "the source can be read again: the lease is not offered any more")
		}
	}
}

// mayOffer reports whether this process did not get the lease by an offer just now.
func (c *Candidate) mayOffer() bool {
	at := c.accepted.Load()
	return at == nil || time.Since(*at) >= offerAgain
}

// offer begins or ceases to offer the lease. If the target does not answer, the next renewal
// says so.
func (c *Candidate) offer(ctx context.Context, offer bool) {
	if err := c.cfg.Keeper.Offer(ctx, offer); err != nil && ctx.Err() == nil {
		c.cfg.Observer.Log(slog.LevelWarn, "the target does not answer: the next renewal says whether the lease is offered", slog.String(keyError, err.Error()))
	}
}

// readsOn reports whether this process can read on now, and whether that is known: the target says where it would read on.
func (c *Candidate) readsOn(ctx context.Context) (reads, known bool) {
	limited, cancel := context.WithTimeout(ctx, c.cfg.TTL)
	defer cancel()
	seen, found, err := c.cfg.Store.Look(limited, lease.NewWatch(c.cfg.Process))
	if err != nil || !found {
		return false, false
	}
	var asking sync.WaitGroup
	defer asking.Wait()
	limited, stop := context.WithTimeout(ctx, syncsource.OldestWithin)
	defer stop()
	return c.sourceServes(limited, &seen, c.cfg.Source.OldestEntries(&asking, false)), true
}

// sourceServes reports whether a member of the source has answered that it has the oplog which
// this process needs next: that after its spool, or that after the link's position.
func (c *Candidate) sourceServes(ctx context.Context, s *checkpoint.View, now *syncsource.OldestEntries) bool {
	now.Ask(ctx)
	from := s.FetchFrom
	if last, has := c.cfg.Spooled(s.Instance, s.Copy, from); has {
		from = last
	}
	serves, _ := now.Reach(ctx, from)
	return serves
}

// accepts reports whether this process should acquire a lease that its holder offers, because
// it can read on.
func (c *Candidate) accepts(ctx context.Context, s *checkpoint.View, free *vacancy) bool {
	if !s.Lease.Record.Grant.Offered {
		free.offered = nil
		return false
	}
	if free.offered == nil {
		free.offered = c.cfg.Source.OldestEntries(&free.asking, true)
	}
	limited, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	return c.sourceServes(limited, s, free.offered)
}

// BeforeEnd offers the lease to processes that can read on, before an error ends the link or
// its copy that says that this one cannot. It returns that error, or why it has lost the lease
// meanwhile. One that has just accepted an offer does not pass it on: what a member has may
// seem to serve, and not do so.
func (c *Candidate) BeforeEnd(ctx, soft context.Context, err error) error {
	l := &c.cfg.Options
	if l.TTL == 0 || l.Once || soft.Err() != nil || !c.mayOffer() || !isStale(err) {
		return err
	}
	why := fmt.Sprintf("no member of the source has the oplog: for %s the lease is offered to a process that can read on", l.OfferFor)
	c.cfg.Observer.Log(slog.LevelWarn, why, slog.String(keyError, err.Error()))
	c.cfg.Monitor.Starting(why)
	c.offer(ctx, true)
	select {
	case <-time.After(l.OfferFor):
	case <-soft.Done():
	case <-ctx.Done():
	}
	c.offer(ctx, false) // it finds out whether one has acquired the lease just now
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// isStale reports whether no member of the source has the oplog.
func isStale(err error) bool {
	_, stale := errors.AsType[*syncsource.TooStaleError](err)
	return stale
}
