package stages

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/batcher"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
)

// Config configures the stages. New sets those fields of the configurations below that follow from Link,
// Target and Start.
type Config struct {
	// Link is the link under its lease, Target its target.
	Link   *checkpoint.Link
	Target mongo.Caller
	// Start is the progress from which the stages go on.
	Start checkpoint.Progress

	Batcher    batcher.Config
	Commands   ddl.Config
	Applier    applier.Config
	Checkpoint checkpoint.CheckpointerConfig
	// Feedback reports the progress to the source. Nil reports nothing.
	Feedback *feedback.Feedback
}

// Stages are the stages of one term. Make them with New.
type Stages struct {
	batcher  *batcher.Batcher
	applier  *applier.Applier
	check    *checkpoint.Checkpointer
	feedback *feedback.Feedback
}

// New creates the stages. It reads the target's collections and abilities, and starts nothing.
func New(ctx context.Context, cfg Config) (*Stages, error) {
	st := cfg.Link.State()
	b := cfg.Batcher
	b.ApplyAfter = st.Applied
	cutter, err := batcher.New(b)
	if err != nil {
		return nil, err
	}
	cat, err := catalog.Load(ctx, cfg.Target, nil)
	if err != nil {
		return nil, fmt.Errorf("read the target's collections: %w", err)
	}
	c := cfg.Commands
	c.Target, c.Fence, c.Catalog, c.Placed = cfg.Target, cfg.Link, cat, st.Copy != nil
	commands, err := ddl.New(c)
	if err != nil {
		return nil, err
	}
	offers, err := plan.Ask(ctx, cfg.Target, c.MetaDB)
	if err != nil {
		return nil, err
	}
	a := cfg.Applier
	a.Target, a.Checkpoint, a.Catalog, a.Commands, a.Start = cfg.Target, cfg.Link, cat, commands, cfg.Start
	a.MetaDB, a.CopiedUntil = c.MetaDB, st.CopiedUntil
	a.Plan = offers
	lanes, err := applier.New(a)
	if err != nil {
		return nil, err
	}
	check := cfg.Checkpoint
	check.Link, check.Start = cfg.Link, cfg.Start
	return &Stages{batcher: cutter, applier: lanes, check: checkpoint.NewCheckpointer(check), feedback: cfg.Feedback}, nil
}

// Stats returns the counts of the applier. It may be called concurrently with Run.
func (s *Stages) Stats() applier.Stats { return s.applier.Stats() }

// Run applies the replies that read sends. read closes out. It returns nil once read has returned nil and all of
// it is applied and checkpointed; otherwise, once all stages have ended, why the first one did.
func (s *Stages) Run(ctx context.Context, read func(ctx context.Context, out chan<- oplog.Reply) error) error {
	g, ctx := errgroup.WithContext(ctx)
	queued := make(chan oplog.Reply)
	batches := make(chan batch.Batch, 1) // one is cut while another is applied
	applied := make(chan checkpoint.Applied)
	progress := make(chan checkpoint.Progress)
	g.Go(func() error { return read(ctx, queued) })
	g.Go(Named("batcher", func() error { return s.batcher.Run(ctx, queued, batches) }))
	g.Go(Named("applier", func() error { return s.applier.Run(ctx, batches, applied) }))
	g.Go(Named("checkpoint", func() error { return s.check.Run(ctx, applied, progress) }))
	g.Go(Named("feedback", func() error { return s.report(ctx, progress) }))
	return g.Wait()
}

func (s *Stages) report(ctx context.Context, progress <-chan checkpoint.Progress) error {
	if s.feedback != nil {
		return s.feedback.Run(ctx, progress)
	}
	for range progress { // The checkpointer closes it, however it ends.
	}
	return nil
}

// Named returns run, with the name of its stage added to an error that does not name it.
func Named(stage string, run func() error) func() error {
	return func() error {
		err := run()
		if err != nil && !strings.HasPrefix(err.Error(), stage+": ") {
			return fmt.Errorf("%s: %w", stage, err)
		}
		return err
	}
}
