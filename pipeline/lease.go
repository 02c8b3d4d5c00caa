package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// Lease says how a process gets the link's lease, and keeps it. The zero Lease takes it
// over from any other process, and ends the run once another one does so.
type Lease struct {
	// TTL is how long the lease lasts without a renewal, by the target's clock; Every is the
	// time between two renewals. With a TTL, one process leads and the others stand by.
	TTL, Every time.Duration
	// Process identifies this one: see lease.NewProcess. Default: one without an address.
	Process string
	// TakeOver takes the lease from the process that has it, once.
	TakeOver bool
	// Once ends the run with lease.ErrHeld or lease.ErrFenced in place of standing by.
	Once bool
	// SpoolWait is how long a free lease is left to other processes if no member of the source
	// that answers has the link's oplog, and this process does not have it in its spool: an
	// owner of that may come back. Default 5 minutes.
	SpoolWait time.Duration
	// CutOff is how long nothing may be read from any member of the source before a leader
	// offers the lease to a process that can read it. Default 1 minute.
	CutOff time.Duration
	// OfferFor is how long the lease is offered to a process that can read on, before the link
	// ends or its copy is void because no member of the source has the oplog. Default 20 s.
	OfferFor time.Duration
	// Target runs the renewals. It should have connections of its own. Default: the
	// pipeline's target.
	Target mongo.Caller
}

// minTTL is the shortest TTL.
const minTTL = 500 * time.Millisecond

func (l *Lease) validate() error {
	switch {
	case l.TTL == 0:
		return nil
	case l.TTL < minTTL:
		return fmt.Errorf("lease: %s is shorter than %s", l.TTL, minTTL)
	case l.Every <= 0 || l.Every > l.TTL/4:
		return fmt.Errorf("lease: renewed every %s: want at most a fourth of %s", l.Every, l.TTL)
	}
	return nil
}

// StoodBy is the reason of the state of a run that ended while it stood by.
const StoodBy = "it stood by"

// releaseWithin limits how long giving the lease back may take.
const releaseWithin = 2 * time.Second

// newKeeper creates what renews the lease.
func (p *Pipeline) newKeeper() {
	cfg := &p.cfg.Lease
	switch {
	case p.cfg.part != nil:
		p.keeper = p.cfg.part.keeper // that of the whole link
		cfg.TTL, cfg.Process = 0, ""
	case cfg.TTL > 0:
		def(&cfg.Process, lease.NewProcess(""))
		def(&cfg.SpoolWait, defaultSpoolWait)
		def(&cfg.CutOff, defaultCutOff)
		def(&cfg.OfferFor, defaultOfferFor)
		target := cfg.Target
		if target == nil {
			target = p.target
		}
		p.keeper = lease.NewKeeper(lease.KeeperConfig{
			Target: target, DB: p.cfg.MetaDB, Collection: metadata.Links, ID: p.cfg.Link, Holder: cfg.Process,
			TTL: cfg.TTL, Every: cfg.Every, Renewed: renewalTimes(p.cfg.Registry, p.cfg.Link),
		})
		p.claim = lease.Claim{TTL: cfg.TTL, Why: "mirror", TakeOver: cfg.TakeOver}
	}
}

// lead stands by until this process has the lease, runs attempts while it has it, and
// stands by again once another one has it.
func (p *Pipeline) lead(ctx, soft context.Context) error {
	if p.cfg.Lease.TTL == 0 {
		return p.attempts(ctx, soft)
	}
	renewing, end := context.WithCancelCause(context.WithoutCancel(ctx))
	var renewal sync.WaitGroup
	renewal.Go(func() { p.keeper.Run(renewing) })
	defer func() {
		end(nil)
		renewal.Wait()
	}()
	for {
		switch err := p.standBy(ctx, soft); {
		case errors.Is(err, errStoodBy) && p.monitor.IsStandby():
			return nil // It has nothing to drain.
		case errors.Is(err, errStoodBy):
			if p.followed {
				p.release(ctx) // nobody else has it
			}
			return fmt.Errorf("%w: it does not have the lease, and is not known to have a leader", ErrStopped)
		case err != nil:
			return err
		}
		if p.monitor.IsStandby() {
			p.monitor.Starting("")
		}
		leading, over := p.keeper.Lead(ctx)
		err := p.whileReading(leading, func() error { return p.attempts(leading, soft) })
		over()
		_, converting := errors.AsType[*checkpoint.ConvertingError](err)
		if converting && ctx.Err() == nil && !p.cfg.Lease.Once && soft.Err() == nil {
			p.resyncs.Reset()
			p.startOver()
			continue
		}
		superseded := errors.Is(err, lease.ErrFenced) || errors.Is(err, lease.ErrHeld)
		if !isLost(err) || ctx.Err() != nil || p.cfg.Lease.Once && superseded {
			p.release(ctx)
			return err
		}
		if soft.Err() != nil {
			p.release(ctx)
			return fmt.Errorf("%w: %w", ErrStopped, err)
		}
		p.cfg.Observer.Log(slog.LevelWarn, "the lease is lost, standing by", slog.String(keyError, err.Error()))
		p.monitor.Starting("the lease is lost: " + err.Error())
		p.resyncs.Reset() // attempts has closed it
		if superseded {
			p.startOver()
			continue
		}
		// The target may be away for long. Nobody else is known to lead: what is read of the
		// source is kept, and read on.
		p.followed = true
		if p.standsSince.IsZero() {
			p.standsSince = time.Now().Add(-p.cfg.Lease.TTL / 2) // it did not answer for longer
		}
	}
}

// isLost reports whether an error ended the lease, not the run: also a Keeper that no longer
// found the document.
func isLost(err error) bool { return lease.Lost(err) || errors.Is(err, lease.ErrRewound) }

// release gives the lease back. Nothing of this process uses it any more. If that fails it
// ends by itself.
func (p *Pipeline) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	if err := p.keeper.Release(ctx); err != nil {
		p.cfg.Observer.Log(slog.LevelWarn, "the lease could not be given back: another process has to wait until it ends",
			slog.String(keyError, err.Error()))
	}
}

// startOver forgets what a process knows that leads, as if it had just been started: another
// one leads, or has led. It has seen the link: it must not create another one if that is gone.
func (p *Pipeline) startOver() {
	if err := p.log.Close(); err != nil {
		// What is on disk is judged again before it is read.
		p.cfg.Observer.Log(slog.LevelWarn, "the spool could not be closed", slog.String(keyError, err.Error()))
	}
	p.log, p.followed = p.newLog(), false
	p.feedback, p.catchesUp = nil, false
	p.earlier, p.earlierFor, p.unapplied = oplog.OpTime{}, oplog.OpTime{}, oplog.OpTime{}
	p.overflow, p.standsSince = nil, time.Time{}
}

// standBy returns once the lease can be acquired, or errStoodBy once soft is done.
func (p *Pipeline) standBy(ctx, soft context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer context.AfterFunc(soft, func() { stop(errStoodBy) })()
	watch := lease.NewWatch(p.cfg.Lease.Process)
	free := newVacancy()
	defer free.asking.Wait()
	defer stop(nil)
	p.claim.Unmoved, p.claim.AcceptOffer = nil, false
	for {
		seen, found, err := p.look(ctx, soft, watch)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && !p.retries(err):
			return err
		case err != nil:
			free.taken() // another one cannot acquire it either
		case !found:
			return nil
		case seen.Over != nil:
			return &checkpoint.OverError{Link: p.cfg.Link, Over: *seen.Over}
		case seen.Converting != nil && p.cfg.Lease.Once:
			return &checkpoint.ConvertingError{Link: p.cfg.Link, Converting: *seen.Converting}
		case seen.Converting != nil:
			p.holdStill(&seen)
			free.taken()
		default:
			p.seen(&seen)
			if p.mayAcquire(ctx, &seen, free) {
				return nil
			}
			if p.cfg.Lease.Once {
				return &lease.HeldError{Record: seen.Lease.Record}
			}
		}
		_ = mongo.Pause(ctx, p.untilNextLook(&seen)) // the next look says why it ended
	}
}

// look looks at the lease. What this process has followed of the source is read on meanwhile,
// until another one is seen to lead, or to have led.
func (p *Pipeline) look(ctx, soft context.Context, watch *lease.Watch) (seen checkpoint.Standing, found bool, err error) {
	if p.followed {
		if broken := p.log.Recover(p.run, soft, nil); broken != nil && !p.retries(broken) {
			return seen, false, broken
		}
	}
	limited, cancel := context.WithTimeout(ctx, p.cfg.Lease.TTL)
	defer cancel()
	p.meanwhile(func() { seen, found, err = p.store.Look(limited, watch) })
	if ctx.Err() == nil {
		p.looked(err)
	}
	if err == nil && found && p.followed && seen.Lease.Record.Holder != p.cfg.Lease.Process {
		p.startOver()
	}
	return seen, found, err
}

// looked records whether the lease could be looked at.
func (p *Pipeline) looked(err error) {
	switch changed := p.monitor.Looked(err); {
	case changed && err != nil:
		p.cfg.Observer.Log(slog.LevelWarn, "the lease cannot be looked at: this process does not know who leads", slog.String(keyError, err.Error()))
	case changed:
		p.cfg.Observer.Log(slog.LevelInfo, "the lease can be looked at again")
	}
}

// errStoodBy is the cause with which standing by ends when the run is to end.
var errStoodBy = errors.New("stood by: another process has the lease")

// seen records who leads. That a free lease is left to another process is recorded by yields.
func (p *Pipeline) seen(s *checkpoint.Standing) {
	r := s.Lease.Record
	p.term = max(p.term, r.Term)
	if r.Holder == p.cfg.Lease.Process || s.Lease.Free {
		return
	}
	p.monitor.StandBy(monitor.Leader{
		Process: r.Holder, Term: r.Term, Since: r.Grant.Granted.Time(), Until: r.Grant.Expires.Time(), Why: r.Grant.Why, Renews: !r.Grant.ID.IsZero(),
		Offers: r.Grant.Offered,
	})
}

// holdStill records that a cutover converts the deferred options of the link: until it goes on, or is
// taken back, nothing may be applied, also if the process that converts has died.
func (p *Pipeline) holdStill(s *checkpoint.Standing) {
	if !s.Lease.Free {
		p.seen(s)
		return
	}
	p.term = max(p.term, s.Lease.Record.Term)
	p.monitor.Vacant(s.Lease.Record.Term, (&checkpoint.ConvertingError{Link: p.cfg.Link, Converting: *s.Converting}).Error())
}

// mayAcquire reports whether this process should acquire the lease now.
func (p *Pipeline) mayAcquire(ctx context.Context, s *checkpoint.Standing, free *vacancy) bool {
	r := s.Lease.Record
	other := r.Holder != p.cfg.Lease.Process
	switch {
	case !s.Lease.Free && p.claim.TakeOver:
		p.cfg.Observer.Log(slog.LevelWarn, "taking the link over: writes of the process that has its lease are refused from now on, and it stands by",
			slog.String(keyHolder, r.String()))
		return true
	case !s.Lease.Free:
		free.taken()
		p.claim.AcceptOffer = !p.cfg.Lease.Once && p.accepts(ctx, s, free)
		if p.claim.AcceptOffer {
			p.cfg.Observer.Log(slog.LevelWarn, "taking the link over: the process that has its lease offers it, as it cannot read the source",
				slog.String(keyHolder, r.String()))
		}
		return p.claim.AcceptOffer
	}
	p.claim.Unmoved = s.Lease.Unmoved
	return !other || p.claim.TakeOver || p.cfg.Lease.Once || !p.yields(ctx, s, free)
}

// untilNextLook returns the time until a process that stands by looks at the lease again:
// at most the time between two renewals, and not long after the end of the lease.
func (p *Pipeline) untilNextLook(s *checkpoint.Standing) time.Duration {
	wait := p.cfg.Lease.Every / 2
	if left := s.Lease.Wait; left > 0 {
		wait = min(wait, left+time.Millisecond)
	}
	return max(wait, time.Millisecond)
}
