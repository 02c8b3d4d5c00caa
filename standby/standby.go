package standby

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/syncsource"
)

// ErrStoodBy is the cause with which waiting for the lease ends when the run is to end.
var ErrStoodBy = errors.New("stood by: another process has the lease")

// Config says what a Candidate knows of a link.
type Config struct {
	Options
	// Link is the link's name, Store has its document, Keeper renews its lease.
	Link   string
	Store  *checkpoint.Store
	Keeper *lease.Keeper
	// Source chooses members of the source. Monitor shows which process leads.
	Source  *syncsource.Resolver
	Monitor *monitor.Monitor
	// Spooled reports whether the oplog is spooled from an entry on for an instance of the link,
	// and returns the last entry that is: see initialsync.Log.Has.
	Spooled func(instance string, c *checkpoint.Copy, from oplog.OpTime) (last oplog.OpTime, ok bool)
	// Look runs one read of the lease, with its concurrent work; an error says why there cannot be
	// one. Other is called when another process is seen to lead, or to have led.
	Look  func(soft context.Context, look func()) error
	Other func()
	// Passes reports whether an error is one that passes.
	Passes   func(error) bool
	Observer event.Observer
}

// Candidate acquires the lease of a link for one process, and offers it to others. Its methods are for
// one goroutine at a time.
type Candidate struct {
	cfg Config
	// term is the last one that this process had, or has seen, 0 before the first. Claim is
	// how the next one is acquired.
	term  int64
	claim lease.Claim
	// accepted is when this process got the lease by an offer, nil if it did not.
	accepted atomic.Pointer[time.Time]
}

// New returns the candidate of this process. It does no I/O.
func New(cfg Config) *Candidate {
	c := &Candidate{cfg: cfg}
	if cfg.TTL > 0 {
		c.claim = lease.Claim{TTL: cfg.TTL, Why: "mirror", TakeOver: cfg.TakeOver}
	}
	return c
}

// Term returns the last term that this process had, or has seen, 0 before the first.
func (c *Candidate) Term() int64 { return c.term }

// Acquire acquires the link's lease under the next term.
func (c *Candidate) Acquire(ctx context.Context) (*checkpoint.Link, error) {
	link, err := c.cfg.Store.AcquireBy(ctx, c.term, c.claim)
	if err != nil {
		return nil, err
	}
	if now := time.Now(); c.claim.AcceptOffer {
		c.accepted.Store(&now)
	}
	c.term, c.claim.TakeOver, c.claim.AcceptOffer, c.claim.Unmoved = link.Term(), false, false, nil
	return link, nil
}

// Wait returns once the lease can be acquired, or ErrStoodBy once soft is done.
func (c *Candidate) Wait(ctx, soft context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer context.AfterFunc(soft, func() { stop(ErrStoodBy) })()
	watch := lease.NewWatch(c.cfg.Process)
	free := newVacancy(c.cfg.Source)
	defer free.asking.Wait()
	defer stop(nil)
	c.claim.Unmoved, c.claim.AcceptOffer = nil, false
	for {
		seen, found, err := c.look(ctx, soft, watch)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && !c.cfg.Passes(err):
			return err
		case err != nil:
			free.taken() // another one cannot acquire it either
		case !found:
			return nil
		case seen.Over != nil:
			return &checkpoint.OverError{Link: c.cfg.Link, Over: *seen.Over}
		case seen.Converting != nil && c.cfg.Once:
			return &checkpoint.ConvertingError{Link: c.cfg.Link, Converting: *seen.Converting}
		case seen.Converting != nil:
			c.holdStill(&seen)
			free.taken()
		default:
			c.seen(&seen)
			if c.mayAcquire(ctx, &seen, free) {
				return nil
			}
			if c.cfg.Once {
				return &lease.HeldError{Record: seen.Lease.Record}
			}
		}
		_ = mongo.Pause(ctx, c.untilNextLook(&seen)) // the next look says why it ended
	}
}

// look looks at the lease.
func (c *Candidate) look(ctx, soft context.Context, watch *lease.Watch) (seen checkpoint.View, found bool, err error) {
	if broken := c.cfg.Look(soft, func() {
		limited, cancel := context.WithTimeout(ctx, c.cfg.TTL)
		defer cancel()
		seen, found, err = c.cfg.Store.Look(limited, watch)
	}); broken != nil {
		return seen, false, broken
	}
	if ctx.Err() == nil {
		c.looked(err)
	}
	if err == nil && found && seen.Lease.Record.Holder != c.cfg.Process {
		c.cfg.Other()
	}
	return seen, found, err
}

// looked records whether the lease could be read.
func (c *Candidate) looked(err error) {
	switch changed := c.cfg.Monitor.Looked(err); {
	case changed && err != nil:
		c.cfg.Observer.Log(slog.LevelWarn, "the lease cannot be read: this process does not know which one leads", slog.String(keyError, err.Error()))
	case changed:
		c.cfg.Observer.Log(slog.LevelInfo, "the lease can be read again")
	}
}

// seen records which process leads. That a free lease is left to another process is recorded by yields.
func (c *Candidate) seen(s *checkpoint.View) {
	r := s.Lease.Record
	c.term = max(c.term, r.Term)
	if r.Holder == c.cfg.Process || s.Lease.Free {
		return
	}
	c.cfg.Monitor.StandBy(monitor.Leader{
		Process: r.Holder, Term: r.Term, Since: r.Grant.Granted.Time(), Until: r.Grant.Expires.Time(), Why: r.Grant.Why, Renews: !r.Grant.ID.IsZero(),
		Offers: r.Grant.Offered,
	})
}

// holdStill records that a cutover converts the deferred options of the link: until it goes on, or is
// taken back, nothing may be applied, also if the process that converts has died.
func (c *Candidate) holdStill(s *checkpoint.View) {
	if !s.Lease.Free {
		c.seen(s)
		return
	}
	c.term = max(c.term, s.Lease.Record.Term)
	c.cfg.Monitor.Vacant(s.Lease.Record.Term, (&checkpoint.ConvertingError{Link: c.cfg.Link, Converting: *s.Converting}).Error())
}

// mayAcquire reports whether this process should acquire the lease now.
func (c *Candidate) mayAcquire(ctx context.Context, s *checkpoint.View, free *vacancy) bool {
	r := s.Lease.Record
	other := r.Holder != c.cfg.Process
	switch {
	case !s.Lease.Free && c.claim.TakeOver:
		c.cfg.Observer.Log(slog.LevelWarn, "taking the link over: writes of the process that has its lease are refused from now on, and it stands by",
			slog.String(keyHolder, r.String()))
		return true
	case !s.Lease.Free:
		free.taken()
		c.claim.AcceptOffer = !c.cfg.Once && c.accepts(ctx, s, free)
		if c.claim.AcceptOffer {
			c.cfg.Observer.Log(slog.LevelWarn, "taking the link over: the process that has its lease offers it, as it cannot read the source",
				slog.String(keyHolder, r.String()))
		}
		return c.claim.AcceptOffer
	}
	c.claim.Unmoved = s.Lease.Unmoved
	return !other || c.claim.TakeOver || c.cfg.Once || !c.yields(ctx, s, free)
}

// untilNextLook returns the time until a process that stands by looks at the lease again:
// at most the time between two renewals, and not long after the end of the lease.
func (c *Candidate) untilNextLook(s *checkpoint.View) time.Duration {
	wait := c.cfg.Every / 2
	if left := s.Lease.Wait; left > 0 {
		wait = min(wait, left+time.Millisecond)
	}
	return max(wait, time.Millisecond)
}
