package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/standby"
)

// StoodBy is the reason of the state of a run that ended while it stood by.
const StoodBy = "it stood by"

// releaseWithin limits how long giving the lease back may take.
const releaseWithin = 2 * time.Second

// newKeeper creates the lease's Keeper. A part has that of the whole link.
func (p *Pipeline) newKeeper() {
	if p.cfg.part != nil {
		p.keeper = p.cfg.part.keeper
		p.cfg.Lease.TTL, p.cfg.Lease.Process = 0, ""
		return
	}
	p.cfg.Lease.SetDefaults()
	p.keeper = p.cfg.Lease.NewKeeper(p.target, p.cfg.MetaDB, p.cfg.Link, p.cfg.Registry)
}

// newCandidate creates the Candidate for the lease.
func (p *Pipeline) newCandidate() *standby.Candidate {
	return standby.New(standby.Config{
		Options: p.cfg.Lease, Link: p.cfg.Link, Store: p.store, Keeper: p.keeper, Source: p.resolver, Monitor: p.monitor,
		Spooled: func(instance string, c *checkpoint.Copy, from oplog.OpTime) (oplog.OpTime, bool) {
			return p.oplog.Log().Has(instance, c, from)
		},
		Look: p.look, Passes: func(err error) bool { return p.retries(err) || p.unexplained.passes(err) }, Observer: p.cfg.Observer,
		Other: func() {
			if p.followed {
				p.startOver()
			}
		},
	})
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
		if err := p.candidate.Wait(ctx, soft); err != nil {
			return p.stoodBy(ctx, err)
		}
		if p.monitor.IsStandby() {
			p.monitor.Starting("")
		}
		p.acquired = false
		leading, over := p.keeper.Lead(ctx)
		err := p.candidate.WhileReading(leading, func() error { return p.attempts(leading, soft) })
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
			return fmt.Errorf("%w: %w", failure.ErrStopped, err)
		}
		p.standsBy(err, superseded)
		p.resyncs.Reset() // attempts has closed it
		if superseded {
			p.startOver()
			continue
		}
		// The target may be away for long. No other process is known to lead: the
		// entries read from the source are kept, and reading continues.
		p.followed = true
		p.oplog.Overflow().Stood(time.Now().Add(-p.cfg.Lease.TTL / 2)) // it did not answer for longer
	}
}

// standsBy says why this process does not lead, or not any more, for an error of the lease: another process has it, or it could not be
// acquired or renewed.
func (p *Pipeline) standsBy(err error, superseded bool) {
	what, level := "the lease is lost", slog.LevelWarn
	if !p.acquired {
		what = "the lease was not acquired"
		if superseded { // another process was first
			level = slog.LevelInfo
		}
	}
	p.monitor.Starting(what + ": " + err.Error()) // first: who reads the log may ask for the state
	p.cfg.Observer.Log(level, what+", standing by", slog.String(keyError, err.Error()))
}

// stoodBy returns how a run ends that has not got the lease, for the error that ended the wait.
func (p *Pipeline) stoodBy(ctx context.Context, err error) error {
	if !errors.Is(err, standby.ErrStoodBy) {
		return err
	}
	if p.monitor.IsStandby() {
		return nil // It has nothing to drain.
	}
	if p.followed {
		p.release(ctx) // no other process has it
	}
	return fmt.Errorf("%w: it does not have the lease, and is not known to have a leader", failure.ErrStopped)
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
	p.oplog.StartOver()
	p.unseen(anyOf)
	p.feedback, p.followed, p.catchesUp, p.unapplied = nil, false, false, oplog.OpTime{}
}

// look runs one look at the lease. What this process has followed of the source is read on
// meanwhile, until another one is seen to lead, or to have led.
func (p *Pipeline) look(soft context.Context, look func()) error {
	if p.followed {
		if broken := p.oplog.Recover(soft, nil); broken != nil && !p.retries(broken) {
			return broken
		}
	}
	p.oplog.Overflow().Meanwhile(look)
	return nil
}
