package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/syncsource"
)

const (
	// defaultCutOff is the default of Lease.CutOff.
	defaultCutOff = time.Minute
	// defaultOfferFor is the default of Lease.OfferFor: a process that stands by looks at the
	// lease each second, and asks each member of the source.
	defaultOfferFor = 20 * time.Second
	// offerAgain is how long a process keeps a lease that it has acquired by an offer, so that
	// two of them do not pass it to each other.
	offerAgain = 10 * time.Minute
)

// whileReading runs work under the lease, and offers the lease meanwhile, as long as nothing
// can be read from the source: see docs/adr/0027-a-leader-that-cannot-read.md.
func (p *Pipeline) whileReading(leading context.Context, work func() error) error {
	ctx, stop := context.WithCancelCause(leading)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.offerLoop(ctx)
	}()
	err := work()
	stop(nil)
	<-done
	return err
}

// offerLoop offers the lease while nothing was read for Lease.CutOff, and nothing can be,
// until ctx is done.
func (p *Pipeline) offerLoop(ctx context.Context) {
	cutOff := p.cfg.Lease.CutOff
	if p.cfg.Lease.Once {
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
		if at := p.monitor.Snapshot().HeardAt; at.After(read) {
			read = at
		}
		cut := time.Since(read) >= cutOff && p.mayOffer() && !p.readsOn(ctx)
		if cut == offers || ctx.Err() != nil {
			continue
		}
		offers = cut
		p.offer(ctx, offers)
		if offers {
			p.cfg.Observer.Log(slog.LevelWarn, "nothing can be read from the source: the lease is offered to a process that can read it",
				slog.Duration(keyFor, time.Since(read)))
		} else {
			p.cfg.Observer.Log(slog.LevelInfo, "the source can be read again: the lease is not offered any more")
		}
	}
}

// mayOffer reports whether this process did not get the lease by an offer just now.
func (p *Pipeline) mayOffer() bool {
	at := p.accepted.Load()
	return at == nil || time.Since(*at) >= offerAgain
}

// offer begins or ceases to offer the lease. If the target does not answer, the next renewal
// says so.
func (p *Pipeline) offer(ctx context.Context, offer bool) {
	if err := p.keeper.Offer(ctx, offer); err != nil && ctx.Err() == nil {
		p.cfg.Observer.Log(slog.LevelWarn, "the target does not answer: the next renewal says whether the lease is offered", slog.String(keyError, err.Error()))
	}
}

// readsOn reports whether this process can read on now, or cannot find out.
func (p *Pipeline) readsOn(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, p.cfg.Lease.TTL)
	defer cancel()
	seen, found, err := p.store.Look(limited, lease.NewWatch(p.cfg.Lease.Process))
	if err != nil || !found {
		return true
	}
	var asking sync.WaitGroup
	defer asking.Wait()
	limited, stop := context.WithTimeout(ctx, oldestWithin)
	defer stop()
	return p.sourceServes(limited, &seen, newOldestEntries(&asking))
}

// sourceServes reports whether a member of the source has answered that it has the oplog which
// this process needs next: that after its spool, or that after the link's position.
func (p *Pipeline) sourceServes(ctx context.Context, s *checkpoint.Standing, now *oldestEntries) bool {
	hosts := p.resolver.Eligible()
	for _, host := range hosts {
		now.ask(ctx, host, p.source.Member(host))
	}
	from := s.FetchFrom
	if last, has := p.log.Has(s.Instance, s.Copy, from); has {
		from = last
	}
	serves, _ := now.reach(ctx, hosts, from)
	return serves
}

// accepts reports whether this process should acquire a lease that its holder offers, because
// it can read on.
func (p *Pipeline) accepts(ctx context.Context, s *checkpoint.Standing, free *vacancy) bool {
	if !s.Lease.Record.Grant.Offered {
		free.offered = nil
		return false
	}
	if free.offered == nil {
		free.offered = newOldestEntries(&free.asking)
		free.offered.onlyNow = true
	}
	limited, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	return p.sourceServes(limited, s, free.offered)
}

// beforeEnd offers the lease to processes that can read on, before an error ends the link or
// its copy that says that this one cannot. It returns that error, or why it has lost the lease
// meanwhile. One that has just accepted an offer does not pass it on: what a member has may
// seem to serve, and not do so.
func (p *Pipeline) beforeEnd(ctx, soft context.Context, err error) error {
	l := &p.cfg.Lease
	if l.TTL == 0 || l.Once || soft.Err() != nil || !p.mayOffer() || !as[*syncsource.TooStaleError](err) {
		return err
	}
	why := fmt.Sprintf("no member of the source has the oplog: for %s the lease is offered to a process that can read on", l.OfferFor)
	p.cfg.Observer.Log(slog.LevelWarn, why, slog.String(keyError, err.Error()))
	p.monitor.Starting(why)
	p.offer(ctx, true)
	select {
	case <-time.After(l.OfferFor):
	case <-soft.Done():
	case <-ctx.Done():
	}
	p.offer(ctx, false) // it finds out whether one has acquired the lease just now
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
