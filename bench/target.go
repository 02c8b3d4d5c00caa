package bench

import (
	"context"
	"fmt"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/plain"
	"github.com/oplogrep/replicator/bench/workload"
)

// target is a place that a workload is applied to.
type target struct {
	*place
	// null acknowledges everything; nil for a set.
	null *ends.Null
	// collections exist before the workload.
	collections []workload.Collection
	cfg         Config
	// plain is a client of the driver, nil until it is needed.
	plain *plain.Client
}

// openTarget opens the target named by c.Target.
func openTarget(ctx context.Context, c Config) (*target, error) {
	t := &target{cfg: c}
	var err error
	if t.collections, err = collectionsOf(c.Workload); err != nil {
		return nil, err
	}
	if c.Target != nullEnd && c.Target != calibratedEnd {
		if t.place, err = openPlace(ctx, c, c.Target, targetSeed, 1); err != nil {
			return nil, fmt.Errorf("the target: %w", err)
		}
		return t, nil
	}
	if t.null, err = ends.StartNullAt(ctx, c.Serve, targetSeed, c.Target == calibratedEnd); err != nil {
		return nil, fmt.Errorf("the target: %w", err)
	}
	dbs, err := databases(c.Workload)
	t.place = &place{End: t.null.End, dbs: dbs, close: t.null.Close}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// ready sets up the workload's initial data. ahead, if set, is called before a null
// target starts to discard writes.
func (t *target) ready(ctx context.Context, ahead func() error) error {
	if t.null != nil {
		if err := t.null.Arm(ctx, false); err != nil {
			return err
		}
	}
	if err := t.prepare(ctx, t.cfg.Overwrite, t.collections); err != nil {
		return err
	}
	if ahead != nil {
		if err := ahead(); err != nil {
			return err
		}
	}
	if t.null != nil {
		return t.null.Arm(ctx, true)
	}
	return nil
}

// note adds the counts of a null target in the last round.
func (t *target) note(ctx context.Context) ([]string, error) {
	if t.null == nil {
		return nil, nil
	}
	commands, statements, err := t.null.Commands(ctx)
	if err != nil {
		return nil, err
	}
	note := fmt.Sprintf("the null target acknowledged %d statements in %d commands", statements, commands)
	if t.cfg.Serve == nil {
		note += "; it is of the same process"
	}
	return []string{note}, nil
}

// driver is a client of the plain driver that is connected to the target until done:
// as for the applier, connections are made in the first round and serve all of them.
func (t *target) driver(ctx context.Context) (*plain.Client, error) {
	if t.plain != nil {
		return t.plain, nil
	}
	client, err := plain.Connect(ctx, t.URI)
	if err != nil {
		return nil, err
	}
	t.plain = client
	return client, nil
}

// done drops the databases that the run created there, and closes it.
func (t *target) done(ctx context.Context) error {
	defer t.close()
	if t.plain != nil {
		t.plain.Close(ctx)
	}
	return t.tidy(ctx, t.collections)
}
