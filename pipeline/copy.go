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
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// newSync creates the sync that copies under one lease while the oplog is spooled. The
// member that is copied must be unchanged.
func (p *Pipeline) newSync(ctx, soft context.Context, link *checkpoint.Link, src checkpoint.Source) (*initialsync.Sync, error) {
	st := link.State()
	member := p.source.Member(st.Copy.Host)
	if err := p.log.Member(st.Copy).Check(ctx, member); err != nil {
		return nil, err
	}
	if err := p.log.Start(ctx, soft, st.Copy, p.fetchConfig(src, st)); err != nil {
		return nil, err
	}
	cat, err := catalog.Load(ctx, p.target, nil)
	if err != nil {
		return nil, fmt.Errorf("read the target's collections: %w", err)
	}
	modern, err := plan.AskInternalApply(ctx, p.target, p.cfg.MetaDB)
	if err != nil {
		return nil, err
	}
	s, err := initialsync.NewSync(ctx, initialsync.SyncConfig{
		Oplog: p.log, Requests: p.requests, CappedDeletes: modern, BytesPerSecond: p.cfg.Copy.BytesPerSecond, OpsPerSecond: p.cfg.Copy.OpsPerSecond,
		Config: initialsync.Config{
			Source: member, Target: p.target, Checkpoint: link, Scope: p.resyncs.Scope(),
			MetaDB: p.cfg.MetaDB, Link: p.cfg.whole().link,
			NewCommands: func(context.Context) (initialsync.Commands, error) {
				e, err := p.commands(link, cat, true)
				return copyCommands{e}, err
			},
			Workers: p.cfg.Copy.Workers, IndexWorkers: p.cfg.Copy.IndexWorkers,
			IndexesFirst: p.cfg.Copy.IndexesFirst, RangeBytes: p.cfg.Copy.RangeBytes,
			FlushDocs: p.cfg.FlushDocs, FlushBytes: p.cfg.FlushBytes, Memory: p.cfg.copyMemory(),
			Observer: p.cfg.Observer, Registry: p.cfg.Registry,
		},
	})
	if err == nil {
		p.monitor.Began(monitor.Attempt{State: st, Set: src.SetName, Start: st.Progress(), Sync: s, Spool: p.log.Spool()})
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
	defer context.AfterFunc(soft, func() { stop(ErrStopped) })()
	return p.alongside(ctx, link, func(ctx context.Context) error { return named("copy", func() error { return s.Run(ctx) })() })
}

// copyMemory is the part of the budget for documents in flight. The rest is for the
// entries that the fetcher has in flight to the spool.
func (c *Config) copyMemory() int64 {
	const fetched = 2 * 16 << 20
	return max(64<<20, c.BufferBytes-fetched)
}

// copyCommands carries out the commands that create the copy.
type copyCommands struct{ *ddl.Executor }

// Apply implements initialsync.Commands.
func (c copyCommands) Apply(ctx context.Context, op *oplog.Op) error {
	return c.Executor.Apply(ctx, op, ddl.Copied)
}
