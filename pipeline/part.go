package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/control"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/memory"
	"github.com/oplogrep/replicator/jobs"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/lease/locks"
	"github.com/oplogrep/replicator/lease/locks/mongostore"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/syncsource"
)

// part makes a pipeline copy one collection again, for another link.
type part struct {
	// link is the name of the other link, scope its scope.
	link  string
	scope resync.Scope
	// of is what it copies, and up to where.
	of resync.Part
	// keeper is that of the other link.
	keeper *lease.Keeper
	// brake is that of the other link.
	brake *control.Brake
	// leads has the other link under the newest term of this process.
	leads *atomic.Pointer[checkpoint.Link]
}

// whole returns the link that a pipeline is a part of: itself, unless it is a part.
func (c *Config) whole() part {
	if c.part != nil {
		return *c.part
	}
	return part{link: c.Link, scope: c.Scope}
}

// since returns the entry that the pipeline's copy has to begin at or after, null if there is none.
func (c *Config) since() oplog.OpTime {
	if c.part == nil {
		return oplog.OpTime{}
	}
	return c.part.of.Since
}

// newResyncs creates the manager that copies collections of the link again.
func (p *Pipeline) newResyncs() *resync.Manager {
	cfg := resync.Config{
		Link: p.cfg.Link, MetaDB: p.cfg.MetaDB, Target: p.target, Store: p.store, Requests: p.requests, Scope: p.cfg.Scope, Off: p.cfg.part != nil,
		Acquire: p.acquire, Position: p.monitor.Position, Runner: p.newPart, Parallel: memory.Parts(p.cfg.Memory), Has: p.has, Observer: p.cfg.Observer,
	}
	if p.cfg.Copy.SpoolDir == "" {
		cfg.Unable = initialsync.ErrNoSpool
	}
	if p.cfg.part == nil {
		cfg.Locks = p.newJobs("resync")
	}
	return resync.New(cfg)
}

// has reports whether the target has a collection, given by its name at the source.
func (p *Pipeline) has(ctx context.Context, ns oplog.Namespace) (bool, error) {
	to, mirrored := p.cfg.Scope.Target(ns)
	if !mirrored {
		return false, fmt.Errorf("%s is not mirrored", ns)
	}
	docs, err := catalog.List(ctx, p.target, to.DB(), to.Collection())
	return len(docs) > 0, err
}

// newJobs creates the named locks of a kind of job on this link.
func (p *Pipeline) newJobs(job string) *jobs.Locks {
	return jobs.New(jobs.Config{Job: job, Link: p.cfg.Link, Locks: locks.Config{
		Store: mongostore.New(p.target, p.cfg.MetaDB), Process: p.cfg.Lease.Process, Registry: p.cfg.Registry,
		Failed: func(err error) {
			p.cfg.Observer.Log(slog.LevelWarn, "a named lock of the link: trying again", slog.String(keyError, err.Error()))
		},
	}})
}

// newPart creates the pipeline of a part.
func (p *Pipeline) newPart(of resync.Part) (resync.Runner, error) {
	cfg := p.cfg
	cfg.Link, cfg.Scope = of.Link, resync.ScopeOf(p.cfg.Scope, of)
	cfg.Vacancy = nil
	cfg.part = &part{link: p.cfg.Link, scope: p.cfg.Scope, of: of, keeper: p.keeper, brake: p.brake, leads: &p.leads}
	cfg.Copy.Wanted, cfg.Copy.DropExisting = true, true
	cfg.Copy.SpoolDir = filepath.Join(p.oplog.Log().Dir(), of.Link)
	cfg.CopiedUntil, cfg.StartAt, cfg.Delay = oplog.OpTime{}, bson.Timestamp{}, 0
	cfg.Feedback, cfg.Registry, cfg.CutInterval = 0, nil, 0
	cfg.OnCut, cfg.OnRepaired, cfg.Filters, cfg.RelayBytes = nil, nil, nil, 0
	cfg.Observer = func(e event.Event) { p.cfg.Observer.Tell(resync.PartEvent{NS: of.NS, Event: e}) }
	next, err := New(cfg, p.source, p.target)
	return partRunner{next}, err
}

// partRunner is the pipeline of a part.
type partRunner struct{ p *Pipeline }

// Run implements resync.Runner.
func (r partRunner) Run(ctx, soft context.Context) error {
	err := r.p.Run(ctx, soft)
	if errors.Is(err, failure.ErrStopped) {
		return fmt.Errorf("%w: %w", resync.ErrInterrupted, err)
	}
	if renamed, ok := errors.AsType[*ddl.ResyncError](err); ok {
		return &resync.ReplacedError{At: renamed.OpTime, Err: err}
	}
	if _, stale := errors.AsType[*syncsource.TooStaleError](err); stale && !errors.Is(err, initialsync.ErrCopies) {
		return fmt.Errorf("%w: %w", resync.ErrRestart, err)
	}
	return err
}

// Status implements resync.Runner.
func (r partRunner) Status() resync.Status {
	s := r.p.Snapshot()
	return s.OfPart()
}

// create creates the link in the state first, unless another process has run it since there was none. The link of a part is created
// under the lease of the link that it is a part of. That link
// decides what happens to its collection if it does not leave that out any more: the part only ends.
func (p *Pipeline) create(ctx context.Context, first checkpoint.State) error {
	of := p.cfg.part
	if of == nil {
		return p.store.CreateIn(ctx, *p.vacancy, first)
	}
	err := of.leads.Load().CreatePart(ctx, p.store, of.of.NS, of.of.Asked, first)
	switch {
	case errors.Is(err, lease.ErrSpent):
		return fmt.Errorf("%w: %v", failure.ErrStopped, err) //nolint:errorlint // an attempt of the part does not begin another term of the link
	case errors.Is(err, checkpoint.ErrNotLeftOut):
		return fmt.Errorf("%w: %w", failure.ErrStopped, err)
	}
	return err
}

// leaveOut leaves the collections that are copied again out of this attempt.
func (p *Pipeline) leaveOut(ctx context.Context, link *checkpoint.Link) error {
	err := p.resyncs.Begin(ctx, link)
	p.monitor.SetGaps(link.Gaps())
	if out := p.resyncs.LeftOut(); len(out) > 0 {
		p.unseen(func(ns oplog.Namespace) bool { return slices.Contains(out, ns.Series()) })
	}
	if err == nil {
		p.resyncs.SweepSpools(p.oplog.Log().Dir())
	}
	return err
}

// resyncLoop ends the attempt in order when the set of collections to leave out
// changes.
func (a *attempt) resyncLoop(ctx context.Context, link *checkpoint.Link) error {
	changed, err := a.p.resyncs.Watch(ctx, link)
	if changed {
		a.p.cfg.Observer.Log(slog.LevelInfo, "the attempt ends in order, for a collection that is to be copied again, or has been")
		a.oplog.Leave()
		a.oplog.End()
	}
	return err
}

// requestCopy turns an attempt's error into a request if the missing collection can only be
// copied, and reports whether it did. Otherwise it returns that error, or the one of the request.
func (p *Pipeline) requestCopy(ctx context.Context, err error) (bool, error) {
	need, ok := errors.AsType[*ddl.ResyncError](err)
	if !ok || ctx.Err() != nil {
		return false, err
	}
	asked, failed := p.resyncs.Request(ctx, need.NS, need.OpTime, need)
	if failed != nil {
		return asked, failed
	}
	return asked, err
}

// isPartThere reports whether this is the pipeline of a part that has reached its last
// entry.
func (p *Pipeline) isPartThere() bool {
	return p.cfg.part != nil && !p.cfg.part.of.Until.IsNull() && !p.monitor.Progress().Applied.Before(p.cfg.part.of.Until)
}
