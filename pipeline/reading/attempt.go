package reading

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/initialsync/overflow"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/stages"
)

// AttemptConfig says what an attempt reads.
type AttemptConfig struct {
	// Link is the link under its lease, State its state, as the attempt found it.
	Link  *checkpoint.Link
	State checkpoint.State
	// Source is the source's set.
	Source checkpoint.Source
	// Until is the entry after which reading ends, null for none.
	Until oplog.OpTime
}

// Attempt is the reading of one attempt. Make one with [Oplog.Attempt].
type Attempt struct {
	of      *Oplog
	cfg     AttemptConfig
	fetcher *fetcher.Fetcher
	queue   *buffer.Queue
	// overflow spools the oplog when the target does not keep up, nil if it is spooled, or
	// cannot be. read is closed when the fetcher has ended.
	overflow *overflow.Attempt
	read     chan struct{}
	// release releases bytes of fetched entries.
	release func(int64)
	// log and its spool replace fetcher and queue while the oplog is spooled on disk.
	// copy is the copy that is not known to be consistent yet, nil if there is none.
	log   *initialsync.Log
	spool *spool.Spool
	copy  *checkpoint.Copy
	// ending is done when no more entries are to be read; end cancels it.
	ending context.Context //nolint:containedctx // It says when, for stages that are made before they run.
	end    context.CancelCauseFunc
	// left is closed once the attempt is to end before index builds do; leave closes it. The
	// next attempt repeats their commits, and all other collections continue.
	left  chan struct{}
	leave func()
}

// errDrain is the cause with which reading ends when a run drains.
var errDrain = errors.New("draining")

// Attempt begins an attempt. A spool is fetched into until soft or the run is done.
func (o *Oplog) Attempt(ctx, soft context.Context, cfg AttemptConfig) (*Attempt, error) {
	a := &Attempt{of: o, cfg: cfg, read: make(chan struct{}), left: make(chan struct{})}
	a.leave = sync.OnceFunc(func() { close(a.left) })
	a.ending, a.end = context.WithCancelCause(context.WithoutCancel(ctx))
	if c := cfg.State.Copy; c != nil && c.Phase != checkpoint.Copied {
		a.copy = c
	}
	if err := a.openQueue(soft); err != nil {
		return nil, err
	}
	return a, nil
}

// openQueue creates the stage that the oplog comes from. That is the spool as long as
// the copy is not consistent, or much of the oplog is still on disk.
func (a *Attempt) openQueue(soft context.Context) error {
	o, st := a.of, a.cfg.State
	o.overflow.End()
	spooled, err := o.log.Serves(st.Copy, o.From(st))
	if err != nil {
		return err
	}
	spooled = spooled || soft.Err() == nil && o.overflow.Relays(st.Copy)
	fetch := o.fetchConfig(a.cfg.Source, st)
	if spooled {
		if err := o.log.Start(o.run, soft, st.Copy, fetch); err != nil {
			return err
		}
		a.log, a.spool, a.release = o.log, o.log.Spool(), o.log.Spool().Release
		if a.copy == nil { // otherwise, fetching starts again by itself
			a.mayOverflow(soft)
		}
		return nil
	}
	o.log.Leave() // It is removed once the source has shown which entries it has.
	o.cfg.Monitor.Spools(nil, "")
	fetch.Until = a.cfg.Until
	if a.fetcher, err = fetcher.New(fetch); err != nil {
		return err
	}
	if a.queue, err = buffer.New(buffer.Config{Limit: o.cfg.Memory(), Registry: o.cfg.Registry}); err != nil {
		return err
	}
	a.release = a.queue.Release
	a.overflow = a.mayOverflow(soft)
	return nil
}

// mayOverflow starts an overflow.Attempt, which spools the oplog if the target does not keep up. It
// returns nil if no folder for a spool is configured.
func (a *Attempt) mayOverflow(soft context.Context) *overflow.Attempt {
	o := a.of
	if o.cfg.Copy.SpoolDir == "" {
		return nil
	}
	return o.overflow.Begin(overflow.AttemptConfig{
		Source: a.cfg.Source, State: a.cfg.State, Queue: a.queue, Fetcher: a.fetcher, Read: a.read,
		Start: func(from fetcher.Config) error { return o.log.Start(o.run, soft, a.cfg.State.Copy, from) },
		Told:  func() bool { return soft.Err() != nil },
		End:   a.End,
		Leave: a.leave,
	})
}

// Queue returns the queue that the oplog is read into, and Spool the spool that it is read through; one of them is nil.
func (a *Attempt) Queue() *buffer.Queue { return a.queue }

// Spool returns the spool that the oplog is read through, nil if it is read into memory.
func (a *Attempt) Spool() *spool.Spool { return a.spool }

// Release releases bytes of entries that were sent.
func (a *Attempt) Release(bytes int64) { a.release(bytes) }

// Read reads the oplog from the spool or from a member, until the attempt is to end. It closes out.
func (a *Attempt) Read(ctx context.Context, out chan<- oplog.Reply) error {
	if a.log != nil {
		head, stop := a.untilEnding(ctx)
		defer stop()
		return stages.Named("spool", func() error { return a.log.Read(ctx, head, a.cfg.Until, out) })()
	}
	g, ctx := errgroup.WithContext(ctx)
	head, stop := a.untilEnding(ctx)
	defer stop()
	fetched := make(chan oplog.Reply)
	g.Go(stages.Named("fetcher", func() error {
		defer close(a.read)
		if err := a.of.cfg.Monitor.Fetch(head, a.fetcher, fetched); !errors.Is(err, errDrain) {
			return err
		}
		return nil
	}))
	g.Go(stages.Named("buffer", func() error { return a.queue.Run(ctx, fetched, out) }))
	return g.Wait()
}

// untilEnding returns a context that is also done once no more entries are to be read.
func (a *Attempt) untilEnding(ctx context.Context) (head context.Context, stop func()) {
	head, end := context.WithCancelCause(ctx)
	detach := context.AfterFunc(a.ending, func() { end(errDrain) })
	return head, func() {
		detach()
		end(nil)
	}
}
