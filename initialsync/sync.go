package initialsync

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync/origin"
	"github.com/oplogrep/replicator/initialsync/pace"
	"github.com/oplogrep/replicator/initialsync/progress"
	"github.com/oplogrep/replicator/internal/event"
	"github.com/oplogrep/replicator/internal/mongo"
)

// Begin finds where a copy of a member begins: the member's identity, the entry from
// which the oplog has to be read (beginFetchingTimestamp), and the entry after which it
// is applied (beginApplyingTimestamp), with the wall time of the latter.
func Begin(ctx context.Context, member mongo.Caller, host string, o event.Observer) (checkpoint.Copy, int64, error) {
	id, err := origin.Identify(ctx, member, host)
	if err != nil {
		return checkpoint.Copy{}, 0, err
	}
	if id.Blind() {
		o.Log(slog.LevelWarn,
			"the initial-sync id of the member that is copied may not be seen: if it is filled anew meanwhile, that is not noticed",
			slog.String(keyHost, host), slog.String(keyGrant, origin.GrantSyncID))
	}
	at, err := origin.Begin(ctx, member)
	if err != nil {
		return checkpoint.Copy{}, 0, fmt.Errorf("begin a copy of %s: %w", host, err)
	}
	return checkpoint.Copy{
		Number: 1, Phase: checkpoint.Copying, Host: host, RBID: id.RBID,
		SyncID: id.SyncID, SyncIDUnread: id.Unread, SyncMark: id.SyncMark,
		FetchFrom: at.FetchFrom, Begin: at.Begin, Started: time.Now(),
	}, at.Wall, nil
}

// Finish records that the target is consistent, once the oplog has been applied up to
// the copy's Stop, if the member that was copied is unchanged. It returns the updated
// copy.
func Finish(ctx context.Context, link *checkpoint.Link, m *Member, caller mongo.Caller, c checkpoint.Copy) (checkpoint.Copy, error) {
	if err := m.Check(ctx, caller); err != nil {
		return c, err
	}
	c.Phase = checkpoint.Copied
	return c, link.UpdateCopy(ctx, c, nil)
}

// SyncConfig says how a source is copied under one lease.
type SyncConfig struct {
	// Config is that of the Copier. Its Log, NoHoles and Pacer are set by NewSync.
	Config
	// Oplog has been started.
	Oplog *Log
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
		return nil, err
	}
	cfg.Log, cfg.Pacer, cfg.NoHoles = cfg.Oplog.Spool(), s.pacer, unlogged || !cfg.CappedDeletes
	s.copier, err = New(cfg.Config)
	return s, err
}

// Run copies everything, finds the entry up to which the oplog has to be applied
// (stopTimestamp) and records it. It fails if spooling the oplog does.
func (s *Sync) Run(ctx context.Context) error {
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
	whileCopying(s.cfg.Oplog.Wait)
	whileCopying(s.pacer.Run)
	g.Go(func() error {
		defer end(errStop)
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
	stop, err := origin.Stop(ctx, s.cfg.Source, done.Begin)
	if err != nil {
		return fmt.Errorf("find the newest entry of the source: %w", err)
	}
	done.Phase, done.Stop, done.Cleared, done.Listed = checkpoint.Replaying, stop, true, true
	if err := progress.Of(s.cfg.Checkpoint).UpdateCopy(ctx, done); err != nil {
		return err
	}
	s.cfg.Observer.Tell(CopyEnded{Number: done.Number, Begin: done.Begin, Stop: stop})
	return nil
}

// SetLimits changes the limits; 0 is none.
func (s *Sync) SetLimits(bytesPerSecond, opsPerSecond int64) {
	s.pacer.SetLimits(bytesPerSecond, opsPerSecond)
}

// Progress returns the present progress. It is safe for concurrent use.
func (s *Sync) Progress() Progress { return s.copier.Progress() }

// Pace returns how much the copy is slowed down. It is safe for concurrent use.
func (s *Sync) Pace() pace.Status { return s.pacer.Status() }
