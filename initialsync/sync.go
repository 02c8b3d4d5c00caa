package initialsync

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/initialsync/pace"
	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/request"
)

// SyncConfig says how a source is copied under one lease.
type SyncConfig struct {
	// Config is that of the Copier. Its Log, NoHoles and Pacer are set by NewSync.
	Config
	// Oplog has been started.
	Oplog *Log
	// Members chose Source.
	Members *Members
	// Requests are those of operators, which may change the limits.
	Requests *request.Store
	// CappedDeletes reports whether the target lets clients delete from capped
	// collections.
	CappedDeletes bool
	// BytesPerSecond and OpsPerSecond are limits, 0 for none.
	BytesPerSecond, OpsPerSecond int64
}

// Sync makes a copy, or the rest of it, under one lease, while the oplog is spooled.
type Sync struct {
	cfg    SyncConfig
	copier *Copier
	pacer  *pace.Pacer
}

// NewSync checks cfg, and asks the member whether its oplog records what capped
// collections discard.
func NewSync(ctx context.Context, cfg SyncConfig) (*Sync, error) {
	s := &Sync{cfg: cfg}
	var err error
	if s.pacer, err = pace.New(pace.Config{
		BytesPerSecond: cfg.BytesPerSecond, OpsPerSecond: cfg.OpsPerSecond,
		Source: cfg.Source, Target: cfg.Target, Observer: cfg.Observer, Registry: cfg.Registry,
	}); err != nil {
		return nil, err
	}
	unlogged, err := origin.Unlogged(ctx, cfg.Source, cfg.Checkpoint.Copy().Begin)
	if err != nil {
		cfg.Members.Ended(false, err)
		return nil, err
	}
	cfg.Log, cfg.Pacer, cfg.NoHoles = cfg.Oplog.Spool(), s.pacer, unlogged || !cfg.CappedDeletes
	s.copier, err = New(cfg.Config)
	return s, err
}

// Run copies everything, finds the entry up to which the oplog has to be applied
// (stopTimestamp) and records it. It fails if spooling the oplog does.
func (s *Sync) Run(ctx context.Context) error {
	err := s.run(ctx)
	s.cfg.Members.Ended(s.copier.board.hasMoved(), err)
	return err
}

func (s *Sync) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	copying, end := context.WithCancelCause(ctx)
	defer end(nil)
	whileCopying := func(run func(context.Context) error) {
		g.Go(func() error {
			err := run(copying)
			if copying.Err() != nil {
				return nil //nolint:nilerr // It was told to end.
			}
			return err
		})
	}
	whileCopying(s.cfg.Oplog.wait)
	whileCopying(s.pacer.Run)
	// Nothing is copied before the limits are known.
	known := make(chan struct{})
	know := sync.OnceFunc(func() { close(known) })
	whileCopying(func(ctx context.Context) error {
		own := request.Requests{BytesPerSecond: s.cfg.BytesPerSecond, OpsPerSecond: s.cfg.OpsPerSecond}
		return s.cfg.Requests.LimitsLoop(ctx, own, func(bytesPerSecond, opsPerSecond int64) {
			s.pacer.SetLimits(bytesPerSecond, opsPerSecond)
			know()
		}, func(err error) {
			s.cfg.Observer.Log(slog.LevelError, "a request of operators is damaged: it has no effect until somebody removes it", slog.Any(keyError, err))
		})
	})
	g.Go(func() error {
		defer end(errStop)
		select {
		case <-known:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := s.copier.Run(ctx); err != nil {
			return err
		}
		return s.complete(ctx)
	})
	return g.Wait()
}

// complete records that everything is copied, and up to where the oplog has to be
// applied.
func (s *Sync) complete(ctx context.Context) error {
	done := *s.cfg.Checkpoint.Copy()
	s.cfg.Oplog.entries.ends()
	_, spooled, _ := s.cfg.Oplog.Spool().Bounds()
	stop, err := s.cfg.Members.Stop(ctx, &done, spooled)
	if err != nil {
		return fmt.Errorf("find the newest entry of the source: %w", err)
	}
	done.Phase, done.Stop, done.Cleared, done.Listed = checkpoint.Replaying, stop, true, true
	if err := progress.Of(s.cfg.Checkpoint).UpdateCopy(ctx, done); err != nil {
		return err
	}
	s.cfg.Oplog.advanced(&done)
	s.cfg.Observer.Tell(CopyEnded{Number: done.Number, Begin: done.Begin, Stop: stop})
	return nil
}

// Progress returns the present progress. It is safe for concurrent use.
func (s *Sync) Progress() Progress { return s.copier.Progress() }

// Pace returns how much the copy is slowed down. It is safe for concurrent use.
func (s *Sync) Pace() pace.Status { return s.pacer.Status() }
