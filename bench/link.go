package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"sync"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/bench/workload"
	"github.com/oplogrep/replicator/internal/memory"
	"github.com/oplogrep/replicator/internal/testkit/compare"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/resync"
)

// glance is the polling interval for a link's position. It bounds the precision of the
// measured end, of some seconds. Each poll costs this process about 25 µs, which are counted
// as the link's: with 5 ms they were 4 % of what a catch-up costs on a busy machine.
const glance = 25 * time.Millisecond

// link is a running link.
type link struct {
	pipe *pipeline.Pipeline
	// drain ends it once everything is applied, abort at once.
	drain, abort context.CancelCauseFunc
	done         chan error
	running      sync.WaitGroup
	// unlimited removes the limit of the runtime.
	unlimited func()
}

// linkConfig returns the configuration of a link without a copy that begins
// after start.
func linkConfig(c Config, name string, names resync.Scope, start oplog.OpTime) pipeline.Config {
	return pipeline.Config{
		Link: name, MetaDB: ends.MetaDB, Scope: names, StartAt: start.TS,
		Writers: c.Writers, BatchOps: c.BatchOps, FlushDocs: c.FlushDocs, Memory: c.Memory,
	}
}

// startLink starts a link. The caller must stop it.
func startLink(ctx context.Context, cfg pipeline.Config, source, target *ends.End) (*link, error) {
	p, err := pipeline.New(cfg, source.Set, target.Set)
	if err != nil {
		return nil, err
	}
	l := &link{pipe: p, done: make(chan error, 1), unlimited: limitLink(cfg.Memory, source, target)}
	hard, abort := context.WithCancelCause(ctx)
	soft, drain := context.WithCancelCause(context.WithoutCancel(ctx))
	l.drain, l.abort = drain, abort
	l.running.Go(func() { l.done <- p.Run(hard, soft) })
	return l, nil
}

// limitLink sets the limit of the runtime as the program does, unless there is one, or an end
// is in this process. It returns a function that removes it.
func limitLink(bytes int64, source, target *ends.End) (undo func()) {
	if debug.SetMemoryLimit(-1) != math.MaxInt64 || source.Here() || target.Here() {
		return func() {}
	}
	return memory.Apply(bytes)
}

// reaches blocks until everything up to an entry is applied.
func (l *link) reaches(ctx context.Context, entry oplog.OpTime) error {
	return l.until(ctx, entry.String()+" is applied", func(s *monitor.Snapshot) bool {
		return !s.Progress.Applied.IsNull() && !s.Progress.Applied.Before(entry)
	})
}

// steady blocks until the link has caught up.
func (l *link) steady(ctx context.Context) error {
	return l.until(ctx, "nothing is left to catch up with", func(s *monitor.Snapshot) bool { return s.State == monitor.Steady })
}

// until blocks until the link satisfies a condition.
func (l *link) until(ctx context.Context, what string, there func(s *monitor.Snapshot) bool) error {
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for {
		s := l.pipe.Snapshot()
		if there(&s) {
			return nil
		}
		select {
		case <-tick.C:
		case err := <-l.done:
			l.done <- err // for end
			return fmt.Errorf("wait until %s: the link ended at %s: %w", what, s.Progress.Applied, err)
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: the link is %s at %s (%s): %w", what, s.State, s.Progress.Applied, s.Reason, context.Cause(ctx))
		}
	}
}

// end drains it. It returns an error if an attempt was retried: the measurement is
// then not of one attempt.
func (l *link) end() error {
	l.drain(nil)
	err := <-l.done
	l.done <- err // for stop
	if s := l.pipe.Snapshot(); err == nil && s.LastError != "" {
		err = errors.New("an attempt of the link ended: " + s.LastError)
	}
	return err
}

// stop ends it at once if it still runs, and waits for it to return.
func (l *link) stop() {
	l.abort(failure.ErrStopped)
	l.running.Wait()
	l.unlimited()
	l.drain(nil)
}

// same returns an error unless the target equals the source: every document of
// embedded sets that were started here, else the number in each collection of the
// workload.
func same(ctx context.Context, source, target *ends.End, name string, collections []workload.Collection) error {
	if source.Is.Kind != result.EndEmbedded || target.Is.Kind != result.EndEmbedded || !source.Started() || !target.Started() {
		return sameCounts(ctx, source, target, collections)
	}
	deferred, err := ddl.ReadDeferred(ctx, target.Set, ends.MetaDB, name)
	if err != nil {
		return err
	}
	report, err := compare.Compare(ctx, compare.Cluster(source.Set), compare.Cluster(target.Set), compare.Options{Deferred: deferred, MetaDB: ends.MetaDB})
	if err != nil {
		return fmt.Errorf("compare the target with the source: %w", err)
	}
	if !report.Equal() {
		return fmt.Errorf("the target is not what the source is: %s", &report)
	}
	return nil
}

func sameCounts(ctx context.Context, source, target *ends.End, collections []workload.Collection) error {
	var faults []error
	for i := range collections {
		ns := collections[i].NS
		want, err := count(ctx, source.Set, ns)
		if err != nil {
			return err
		}
		got, err := count(ctx, target.Set, ns)
		if err != nil {
			return err
		}
		if got != want {
			faults = append(faults, fmt.Errorf("%s has %d documents, and %d at the source", ns, got, want))
		}
	}
	return errors.Join(faults...)
}
