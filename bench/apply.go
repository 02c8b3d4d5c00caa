package bench

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog/batch"
)

// Apply measures the applier alone: its batches are in memory.
func Apply(ctx context.Context, c Config) (*result.Run, error) {
	run, err := onTarget(ctx, &c, func(t *target) ([]*contender, error) {
		a, err := newApplying(c, t)
		return []*contender{a}, err
	})
	if err != nil {
		return nil, fmt.Errorf("measure the applier: %w", err)
	}
	return run[0], nil
}

// ApplyWithCeiling measures Apply and Ceiling alternately on the same target.
func ApplyWithCeiling(ctx context.Context, c Config) (apply, ceiling *result.Run, err error) {
	runs, err := onTarget(ctx, &c, func(t *target) ([]*contender, error) {
		a, err := newApplying(c, t)
		if err != nil {
			return nil, err
		}
		b, err := newCeiling(c, t)
		return []*contender{a, b}, err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("measure the applier and the plain driver: %w", err)
	}
	return runs[0], runs[1], nil
}

// onTarget opens the target, measures the contenders made for it, and closes
// it.
func onTarget(ctx context.Context, c *Config, contenders func(t *target) ([]*contender, error)) (runs []*result.Run, err error) {
	c.setDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	t, err := openTarget(ctx, *c)
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, t.done(ctx))
	}()
	if err := t.free(ctx, c.Overwrite, t.collections); err != nil {
		return nil, err
	}
	list, err := contenders(t)
	if err != nil {
		return nil, err
	}
	for _, l := range list {
		nameAfter(l.run, *c)
	}
	if err := turns(ctx, *c, list...); err != nil {
		return nil, err
	}
	for _, l := range list {
		runs = append(runs, l.run)
	}
	return runs, nil
}

// newApplying returns the contender for the applier. The log is generated once and
// its batches are built for each round, as if from a source that never makes the
// applier wait.
func newApplying(c Config, t *target) (*contender, error) {
	say(c, "making a log of %d operations", c.Workload.Ops)
	memory, err := ends.NewMemory(c.Workload, 0)
	if err != nil {
		return nil, err
	}
	kind := "apply"
	if c.CutEvery > 0 {
		kind = "apply-cuts"
	}
	run := newRun(kind, c)
	run.Target, run.Ops, run.Bytes = t.Is, int64(memory.Ops), memory.Bytes
	r := &contender{run: run}
	r.prepare = func(ctx context.Context, round int) (func(context.Context) error, error) {
		var a *applier.Applier
		err := t.ready(ctx, func() error {
			l, err := t.makeLink(ctx, kind, round)
			if err == nil {
				l.cfg.CutEvery = c.CutEvery
				a, err = l.applier(nil)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		memory.Rewind()
		batches, err := batchesOf(ctx, c, memory)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) error { return applyAll(ctx, a, batches, run.Ops) }, nil
	}
	r.note = func(ctx context.Context) error {
		notes, err := t.note(ctx)
		run.Notes = append(run.Notes, notes...)
		return err
	}
	return r, nil
}

// batchesOf cuts a log into batches, with the stages that do so in a link.
func batchesOf(ctx context.Context, c Config, memory *ends.Memory) ([]batch.Batch, error) {
	var list []batch.Batch
	u := &upstream{cfg: c, member: memory, start: ends.First, last: memory.Last}
	err := u.run(ctx, func(_ context.Context, batches <-chan batch.Batch, release func(int64)) error {
		for b := range batches {
			list = append(list, b)
			release(b.Bytes) // the log is in memory anyway
		}
		return nil
	})
	return list, err
}

// errShort is the error of a run that lost operations.
var errShort = errors.New("not all operations arrived")

// applyAll applies batches and returns when all of them have been applied.
func applyAll(ctx context.Context, a *applier.Applier, batches []batch.Batch, want int64) error {
	in := make(chan batch.Batch)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(in)
		for i := range batches {
			select {
			case in <- batches[i]:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	var got int64
	g.Go(func() (err error) {
		got, err = applied(ctx, a, in)
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%w: %d of %d", errShort, got, want)
	}
	return nil
}

// applied applies the batches from in until it is closed, and returns the
// number of operations.
func applied(ctx context.Context, a *applier.Applier, in <-chan batch.Batch) (ops int64, err error) {
	out := make(chan checkpoint.Applied)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.Run(ctx, in, out) })
	for p := range out {
		ops = p.Ops
	}
	return ops, g.Wait()
}

// targetLink is a link of which only the applier runs.
type targetLink struct {
	cfg      Config
	target   *target
	link     *checkpoint.Link
	catalog  *catalog.Catalog
	commands *ddl.Executor
	scope    applier.Scope
	options  plan.Options
}

// makeLink makes a link that begins after ends.First and acquires its lease, as an
// attempt does.
func (t *target) makeLink(ctx context.Context, kind string, round int) (*targetLink, error) {
	l := &targetLink{cfg: t.cfg, target: t}
	name := linkName(kind, round)
	store, err := checkpoint.New(checkpoint.Config{Target: t.Set, DB: ends.MetaDB, Link: name})
	if err != nil {
		return nil, err
	}
	err = store.Create(ctx, checkpoint.State{
		Source: checkpoint.Source{SetName: "bench", RBID: 1}, Writers: t.cfg.Writers, Fingerprint: kind,
		Applied: ends.First, FetchFrom: ends.First,
	})
	if err != nil {
		return nil, err
	}
	if l.link, err = store.Acquire(ctx, 0); err != nil {
		return nil, err
	}
	// Everything in the target is known beforehand, except the collections that
	// the log creates.
	if l.catalog, err = catalog.Load(ctx, t.Set, t.touched(t.collections)); err != nil {
		return nil, fmt.Errorf("read the target's collections: %w", err)
	}
	names, err := only(t.touched(t.collections))
	if err != nil {
		return nil, err
	}
	l.scope = names
	l.commands, err = ddl.New(ddl.Config{Target: t.Set, Fence: l.link, Catalog: l.catalog, Scope: names, MetaDB: ends.MetaDB, Link: name})
	if err != nil {
		return nil, err
	}
	l.options = plan.Options{Coalesce: true}
	l.options.InternalApply, err = plan.AskInternalApply(ctx, t.Set, ends.MetaDB)
	return l, err
}

// applier makes the applier of a link. release, if not nil, is called with the bytes
// that have been applied.
func (l *targetLink) applier(release func(int64)) (*applier.Applier, error) {
	return applier.New(applier.Config{
		Target: l.target.Set, Checkpoint: l.link, Catalog: l.catalog, Scope: l.scope, Commands: l.commands,
		Plan: l.options, FlushDocs: l.cfg.FlushDocs, CutEvery: l.cfg.CutEvery, Release: release,
		Start: checkpoint.Progress{Applied: ends.First, FetchFrom: ends.First, Durable: ends.First},
	})
}
