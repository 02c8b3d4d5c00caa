package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/initialsync/pace"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// copying is one term of the link's lease during which documents are copied, and the log
// is put aside.
type copying struct {
	p      *Pipeline
	link   *checkpoint.Link
	copy   checkpoint.Copy
	member mongo.Caller
	spool  *spool.Spool
	copier *initialsync.Copier
	pacer  *pace.Pacer
}

// newCopying makes what a copy needs. The member that is copied has to be what it
// was.
func (p *Pipeline) newCopying(ctx, soft context.Context, link *checkpoint.Link, src checkpoint.Source) (*copying, error) {
	st := link.State()
	c := &copying{p: p, link: link, copy: *st.Copy}
	var err error
	if c.member, err = p.source.Member(c.copy.Host); err != nil {
		return nil, fmt.Errorf("copy from %s: %w", c.copy.Host, err)
	}
	if err := p.pinned(&c.copy).Check(ctx, c.member); err != nil {
		return nil, err
	}
	if err := p.startLog(ctx, soft, src, st); err != nil {
		return nil, err
	}
	c.spool = p.log.Spool()
	if c.pacer, err = pace.New(pace.Config{
		BytesPerSecond: p.cfg.Copy.BytesPerSecond, OpsPerSecond: p.cfg.Copy.OpsPerSecond,
		Source: c.member, Target: p.target, Observer: p.cfg.Observer, Registry: p.cfg.Registry,
	}); err != nil {
		return nil, err
	}
	cat, err := catalog.Load(ctx, p.target, nil)
	if err != nil {
		return nil, fmt.Errorf("read the target's collections: %w", err)
	}
	unlogged, err := origin.Unlogged(ctx, c.member, c.copy.Begin)
	if err != nil {
		return nil, err
	}
	modern, err := p.internalApply(ctx)
	if err != nil {
		return nil, err
	}
	c.copier, err = initialsync.New(initialsync.Config{
		Source: c.member, Target: p.target, Checkpoint: link, Scope: p.resyncs.Scope(), Log: c.spool,
		MetaDB: p.cfg.MetaDB, Link: p.cfg.whole().link,
		NewCommands: func(context.Context) (initialsync.Commands, error) {
			e, err := p.commands(link, cat, true)
			return copyCommands{e}, err
		},
		NoHoles: unlogged || !modern, ReadConcern: p.cfg.Copy.ReadConcern, Workers: p.cfg.Copy.Workers, IndexWorkers: p.cfg.Copy.IndexWorkers,
		IndexesFirst: p.cfg.Copy.IndexesFirst, RangeBytes: p.cfg.Copy.RangeBytes,
		FlushDocs: p.cfg.FlushDocs, FlushBytes: p.cfg.FlushBytes, Memory: p.cfg.copyMemory(),
		Pacer: c.pacer, Observer: p.cfg.Observer, Registry: p.cfg.Registry,
	})
	if err != nil {
		return nil, err
	}
	p.beginCopying(c, st, src)
	return c, nil
}

// copyMemory is the part of the budget for documents on their way: what the
// fetcher has in its hands on the way to the spool is the rest.
func (c *Config) copyMemory() int64 {
	const fetched = 2 * 16 << 20
	return max(64<<20, c.BufferBytes-fetched)
}

// copyCommands carries out what makes the copy.
type copyCommands struct{ *ddl.Executor }

// Apply implements initialsync.Commands.
func (c copyCommands) Apply(ctx context.Context, op *oplog.Op) error {
	return c.Executor.Apply(ctx, op, ddl.Copied)
}

// run copies until everything is copied (nil), soft is done (ErrStopped), or
// something fails.
func (c *copying) run(ctx, soft context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(soft, func() { stop(ErrStopped) })()
	beside, endBeside := context.WithCancelCause(ctx)
	side, beside := errgroup.WithContext(beside)
	along := func(run func(context.Context) error) {
		side.Go(func() error {
			err := run(beside)
			if beside.Err() != nil {
				return nil //nolint:nilerr // It was ended, by us or by another one.
			}
			stop(err)
			return err
		})
	}
	along(func(ctx context.Context) error { return c.p.touchLoop(ctx, c.link) })
	along(c.pacer.Run)
	along(c.p.windowLoop)
	if c.p.cfg.part == nil { // else the link that it is a part of says it
		along(c.p.lackingLoop)
	}
	along(func(ctx context.Context) error { return c.p.requestLoop(ctx, c.pacer) })

	err := c.stages(ctx)
	if cause := context.Cause(ctx); cause != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = cause
	}
	endBeside(nil)
	if beat := side.Wait(); err == nil {
		err = beat
	}
	return err
}

func (c *copying) stages(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	watching, endWatch := context.WithCancelCause(ctx)
	g.Go(named("spool", func() error { return c.p.log.Wait(watching) }))
	g.Go(named("copy", func() error {
		defer endWatch(errDrain)
		if err := c.copier.Run(ctx); err != nil {
			return err
		}
		return c.end(ctx)
	}))
	return g.Wait()
}

// end notes that everything is copied, and where the log has to be applied to.
func (c *copying) end(ctx context.Context) error {
	stop, err := origin.Stop(ctx, c.member, c.copy.Begin)
	if err != nil {
		return fmt.Errorf("find the newest entry of the source: %w", err)
	}
	done := c.copy
	done.Phase, done.Stop, done.Cleared, done.Listed = checkpoint.Replaying, stop, true, true
	if err := c.link.UpdateCopy(ctx, done); err != nil {
		return err
	}
	c.p.cfg.Observer.Tell(CopyEnded{Number: done.Number, Begin: done.Begin, Stop: stop})
	return nil
}

// pinned returns the member that c is a copy of: the same one for all attempts.
func (p *Pipeline) pinned(c *checkpoint.Copy) *initialsync.Member {
	if !p.member.Of(c) {
		p.member = initialsync.NewMember(c, p.cfg.Copy.SourceWait)
	}
	return p.member
}

// showAway says why nothing comes from the member that is copied, until it is heard
// of again.
func (p *Pipeline) showAway(err error) {
	p.mu.Lock()
	resting := p.live.resting
	p.mu.Unlock()
	if state, _, _ := p.state.get(); state == InitialSync && !resting {
		p.state.set(InitialSync, err.Error())
	}
}

// copyState is what Snapshot needs of a copy; it is replaced as a whole.
type copyState struct {
	copy   checkpoint.Copy
	copier *initialsync.Copier
	pacer  *pace.Pacer
	spool  *spool.Spool
}

// snapshot returns what a Snapshot shows of a copy.
func (c *copyState) snapshot() *CopySnapshot {
	s := &CopySnapshot{Copy: c.copy, Pace: pace.Status{Factor: 1}}
	if c.copier != nil {
		progress := c.copier.Progress()
		s.Progress = &progress
	}
	if c.pacer != nil {
		s.Pace = c.pacer.Status()
	}
	if c.spool != nil {
		disk := c.spool.Disk()
		s.Spool = &disk
	}
	return s
}

// shownCopy is replaced, and read by Snapshot, at any time.
type shownCopy = atomic.Pointer[copyState]
