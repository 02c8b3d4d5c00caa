package pipeline

import (
	"context"
	"fmt"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/pipeline/stages"
)

// newSync creates the sync that copies under one lease while the oplog is spooled.
func (p *Pipeline) newSync(ctx, soft context.Context, link *checkpoint.Link, src checkpoint.Source) (*initialsync.Sync, error) {
	st := link.State()
	if err := p.oplog.Spool(soft, src, st); err != nil {
		return nil, err
	}
	member, err := p.members.Choose(ctx, link)
	if err != nil {
		return nil, err
	}
	st = link.State()
	cat, err := catalog.Load(ctx, p.target, nil)
	if err != nil {
		return nil, fmt.Errorf("read the target's collections: %w", err)
	}
	modern, err := plan.AskInternalApply(ctx, p.target, p.cfg.MetaDB)
	if err != nil {
		return nil, err
	}
	s, err := initialsync.NewSync(ctx, initialsync.SyncConfig{
		Oplog: p.oplog.Log(), Members: p.members, Requests: p.requests, CappedDeletes: modern, BytesPerSecond: p.cfg.Copy.BytesPerSecond, OpsPerSecond: p.cfg.Copy.OpsPerSecond,
		Config: initialsync.Config{
			Source: member, Target: p.target, Checkpoint: link, Scope: p.resyncs.Scope(),
			MetaDB: p.cfg.MetaDB, Link: p.cfg.whole().link,
			NewCommands: func(context.Context) (initialsync.Commands, error) {
				cfg := p.commands()
				cfg.Target, cfg.Fence, cfg.Catalog, cfg.Placed, cfg.Copier = p.target, link, cat, true, true
				e, err := ddl.New(cfg)
				return copyCommands{e}, err
			},
			Workers: p.cfg.Copy.Workers, IndexWorkers: p.cfg.Copy.IndexWorkers,
			IndexesFirst: p.cfg.Copy.IndexesFirst, RangeBytes: p.cfg.Copy.RangeBytes,
			FlushDocs: p.cfg.FlushDocs, FlushBytes: p.cfg.FlushBytes, Memory: p.memory().Copied,
			Enter: p.enter, Observer: p.cfg.Observer, Registry: p.cfg.Registry,
		},
	})
	if err == nil {
		p.monitor.Began(monitor.Attempt{State: st, Set: src.SetName, Start: st.Progress(), Sync: s, Spool: p.oplog.Log().Spool()})
	}
	return s, err
}

// copy runs until everything is copied (nil), soft is done (ErrStopped), or something
// fails.
func (p *Pipeline) copy(ctx, soft context.Context, link *checkpoint.Link, src checkpoint.Source) error {
	s, err := p.newSync(ctx, soft, link, src)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(soft, func() { stop(failure.ErrStopped) })()
	return p.alongside(ctx, link, func(ctx context.Context) error { return stages.Named("copy", func() error { return s.Run(ctx) })() })
}

// copyOrFollow continues the copy, or applies the oplog. A copy that has become void starts
// again.
func (p *Pipeline) copyOrFollow(ctx, soft context.Context, link *checkpoint.Link, src checkpoint.Source, until oplog.OpTime) (err error) {
	st := link.State()
	if st.Copy != nil && st.Copy.Phase == checkpoint.Copying {
		err = p.copy(ctx, soft, link, src)
	} else {
		err = p.follow(ctx, soft, link, src, until)
	}
	// The copier does not announce a member that it could not even reach.
	if st.Copy == nil || !initialsync.Void(err) || st.Copy.Phase != checkpoint.Copying && !p.monitor.Gaps().Copying {
		return err
	}
	if err = p.candidate.BeforeEnd(ctx, soft, err); ctx.Err() != nil {
		return err
	}
	return p.copyAnew(ctx, link, st.Copy, err)
}

// copyAnew starts another copy in place of a void one.
func (p *Pipeline) copyAnew(ctx context.Context, link *checkpoint.Link, old *checkpoint.Copy, why error) error {
	if err := p.copies.Limit(old, why); err != nil {
		return err
	}
	p.monitor.Starting("the copy will start again from the beginning, once a member of the source can be copied: " + why.Error())
	next, wall, err := p.copies.Again(ctx, link, old, why)
	if err != nil {
		return err
	}
	p.monitor.Starting("the copy starts again from the beginning: " + why.Error())
	if err := p.resyncs.Stop(ctx); err != nil {
		return err
	}
	if err := link.BeginCopy(ctx, next, wall); err != nil {
		return err
	}
	p.copies.Started()
	p.unseen(anyOf)
	p.feedback = nil
	if err := p.oplog.Remove(); err != nil {
		return err
	}
	return p.resyncs.Remove(ctx)
}

// commands configures the ddl.Executor of the target.
func (p *Pipeline) commands() ddl.Config {
	cfg := p.cfg.commands(p.resyncs.Scope())
	cfg.Late = func(ctx context.Context, e *ddl.LateError) { p.resyncs.Late(ctx, e.Hit, e) }
	cfg.Shared = p.cfg.part != nil || len(p.resyncs.LeftOut()) > 0
	return cfg
}

// copyCommands carries out the commands that create the copy.
type copyCommands struct{ *ddl.Executor }

// Apply implements initialsync.Commands.
func (c copyCommands) Apply(ctx context.Context, op *oplog.Op) error {
	return c.Executor.Apply(ctx, op, ddl.Copied)
}
