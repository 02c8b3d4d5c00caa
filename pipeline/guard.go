package pipeline

import (
	"context"
	"errors"
	"fmt"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// newGuard returns the guard of the target, nil if there is none, and announces the commands that
// are sent to the target. A part has the guard of the whole link.
func (p *Pipeline) newGuard() *guard.Guard {
	if p.cfg.part != nil || p.cfg.Guard == guard.Off {
		return nil
	}
	p.target = guard.Announce(p.target, p.cfg.MetaDB, p.cfg.Link)
	return guard.New(guard.Config{
		Mode: p.cfg.Guard, Target: p.target, DB: p.cfg.MetaDB, Link: p.cfg.Link, Scope: p.cfg.Scope, Await: p.cfg.Await,
		Observer: p.cfg.Observer,
	})
}

// foreign returns the foreign writes that are known, nil for a part.
func (p *Pipeline) foreign() *guard.Status {
	switch {
	case p.guard != nil:
		return p.guard.Status()
	case p.cfg.part != nil:
		return nil
	}
	return &guard.Status{Mode: guard.Off}
}

// watchTarget begins a term of the guard. An alarm that cannot be given ends no link.
func (p *Pipeline) watchTarget(ctx context.Context, link *checkpoint.Link) error {
	if p.guard == nil {
		return nil
	}
	err := p.guard.Begin(ctx, link)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case p.cfg.Guard == guard.Stop, errors.Is(err, lease.ErrFenced), failure.Transient(err):
		return fmt.Errorf("watch the target for foreign writes: %w", err)
	}
	p.guard.Blind(err)
	return nil
}
