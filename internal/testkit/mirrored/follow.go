package mirrored

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// Connect opens a connection as the program does.
func Connect(ctx context.Context, uri string) (*driver.Set, error) {
	o, err := driver.Parse(driver.Config{URI: uri})
	if err != nil {
		return nil, err
	}
	return driver.Open(ctx, o)
}

// glance is the polling interval for a run's position.
const glance = 2 * time.Millisecond

// Follow runs a pipeline until everything up to an entry is applied, drains it,
// and returns what it did. A failed and retried attempt is an error, unless the
// run has failed otherwise.
func Follow(ctx context.Context, cfg pipeline.Config, source, target pipeline.Cluster, until oplog.OpTime) (monitor.Snapshot, error) {
	return follow(ctx, cfg, source, target, func(s *monitor.Snapshot) bool { return !s.Progress.Applied.Before(until) })
}

// follow is Follow until a run satisfies a condition.
func follow(ctx context.Context, cfg pipeline.Config, source, target pipeline.Cluster, reached func(s *monitor.Snapshot) bool) (monitor.Snapshot, error) {
	var warned warnings
	cfg.Observer = warned.observe(cfg.Observer)
	p, err := pipeline.New(cfg, source, target)
	if err != nil {
		return monitor.Snapshot{}, err
	}
	soft, drain := context.WithCancelCause(context.WithoutCancel(ctx))
	defer drain(nil)
	done := make(chan error, 1)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { done <- p.Run(ctx, soft) })
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for soft.Err() == nil {
		select {
		case err := <-done:
			return p.Snapshot(), warned.explain(err, p.Snapshot())
		case <-tick.C:
			if s := p.Snapshot(); reached(&s) {
				drain(nil)
			}
		}
	}
	err = <-done
	s := p.Snapshot()
	if err == nil && s.LastError != "" {
		err = fmt.Errorf("an attempt ended: %s", s.LastError)
	}
	return s, warned.explain(err, s)
}

// warnings keeps the first events that are above Info.
type warnings struct {
	mu   sync.Mutex // guards said
	said []string
}

func (w *warnings) observe(next event.Observer) event.Observer {
	return func(e event.Event) {
		next.Tell(e)
		if e.Level() < slog.LevelWarn {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.said) < 5 {
			w.said = append(w.said, e.Message()+" "+e.LogValue().String())
		}
	}
}

// explain adds context to an error.
func (w *warnings) explain(err error, s monitor.Snapshot) error {
	if err == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	err = fmt.Errorf("%w (applied %s, fetched %s)", err, s.Progress.Applied, s.Fetched)
	for _, text := range w.said {
		err = fmt.Errorf("%w; %s", err, text)
	}
	return err
}
