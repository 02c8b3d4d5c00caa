package cutover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
)

// ErrWritten reports that the link has applied something after the drain, or leaves a collection
// out.
var ErrWritten = errors.New("the link has gone on since the drain")

// ErrUncertain reports that the last write of Commit has failed, and that it may have been executed
// nevertheless.
var ErrUncertain = errors.New("it is not known whether the link has ended")

// CommitConfig configures Commit.
type CommitConfig struct {
	// Drain is how the link is drained first.
	Drain DrainConfig
	// Target runs commands on the target's primary. MetaDB is the metadata database.
	Target mongo.Caller
	MetaDB string
	// Process identifies this process in leases.
	Process string
	// NoReverse ends the link without a way back: a link from the target to the source would begin
	// with a copy.
	NoReverse bool
}

const (
	// releaseWithin is how long Commit tries to give the lease back, which ends by itself.
	releaseWithin = 2 * time.Second
	// settleWithin is how long it tries to find out what became of the last write.
	settleWithin = 10 * time.Second
)

// Commit drains the link and ends it: no process applies anything of the source to the target any
// more. It takes the link's lease over, so that the process that leads stands by and its late
// writes are refused, verifies under the lease that nothing was applied after the drain, and
// records the end in the link's document, in one majority write. That write is the commit point:
//
//	drain ──▶ take the lease over ──▶ nothing after the drain, block still on? ──▶ end, with Arm ──▶ committed
//	  │                │                              │ no                          │
//	  ▼                ▼                              ▼                             ▼ outcome unknown
//	the link goes on: it was not touched, or a process that stands by takes it up   read whether it has ended
//
// Until then an error, or a crash of this process, leaves the link running: its lease ends by
// itself. After it the link stays ended, whatever happens to this process. Commit does not change
// the write block of the source. An error that wraps *checkpoint.OverError means that the link has
// ended, one that wraps ErrUncertain that it may have; after any other it goes on. To call Commit
// again is always right: if the link has ended, that is a *checkpoint.OverError.
func Commit(ctx context.Context, cfg *CommitConfig) (checkpoint.Over, Drained, error) {
	store, keeper, err := cfg.open()
	if err != nil {
		return checkpoint.Over{}, Drained{}, err
	}
	switch over, err := store.Over(ctx); {
	case err != nil:
		return checkpoint.Over{}, Drained{}, err
	case over != nil:
		return *over, Drained{}, &checkpoint.OverError{Link: cfg.Drain.Link, Over: *over}
	}
	drained, err := Drain(ctx, &cfg.Drain)
	if err != nil {
		return checkpoint.Over{}, drained, err
	}
	renewing, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	var renewal sync.WaitGroup
	renewal.Go(func() { keeper.Run(renewing) })
	defer func() {
		stop(nil)
		renewal.Wait()
	}()
	o := checkpoint.Over{At: time.Now().UTC().Truncate(time.Millisecond), By: cfg.Drain.By, Source: drained.Cut.Source}
	leading, over := keeper.Lead(ctx)
	err = cfg.end(leading, store, &drained, &o)
	over()
	giving, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	_ = keeper.Release(giving) // otherwise the lease ends by itself
	if err == nil {
		return o, drained, nil
	}
	// The reply to the last write may be lost.
	after, enough := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer enough()
	switch is, unread := store.Over(after); {
	case unread != nil || is == nil:
	case is.Same(&o):
		return o, drained, nil
	default: // another process has ended it meanwhile
		return *is, drained, &checkpoint.OverError{Link: cfg.Drain.Link, Over: *is}
	}
	return checkpoint.Over{}, drained, err
}

// open returns the link's store, with a lease that ends unless it is renewed.
func (cfg *CommitConfig) open() (*checkpoint.Store, *lease.Keeper, error) {
	keeper := lease.NewKeeper(lease.KeeperConfig{
		Target: cfg.Target, DB: cfg.MetaDB, Collection: metadata.Links, ID: cfg.Drain.Link, Holder: cfg.Process,
	})
	store, err := checkpoint.New(checkpoint.Config{
		Target: cfg.Target, DB: cfg.MetaDB, Link: cfg.Drain.Link, Process: cfg.Process, Keeper: keeper,
	})
	return store, keeper, err
}

// end takes the lease over, and ends the link if it is as it was drained.
func (cfg *CommitConfig) end(ctx context.Context, store *checkpoint.Store, drained *Drained, o *checkpoint.Over) error {
	link, err := store.AcquireBy(ctx, 0, lease.Claim{TTL: lease.DefaultTTL, Why: "cutover", TakeOver: true})
	if err != nil {
		return err
	}
	s := link.State()
	if n := len(s.LeftOut) + len(s.KeptBack); n > 0 {
		return fmt.Errorf("%w: %d collections are being copied again, or wait for an index build", ErrWritten, n)
	}
	for _, at := range slices.Concat([]checkpoint.Position{s.Barrier, s.Announced}, s.Lanes, s.LanesAnnounced) {
		if at.OpTime.After(drained.Cut.Source) {
			return fmt.Errorf("%w: the target has %s, and was drained at %s", ErrWritten, at.OpTime, drained.Cut.Source)
		}
	}
	if err := cfg.Drain.frozen(ctx, ErrThawed); err != nil {
		return err
	}
	if !cfg.NoReverse {
		if o.Reverse, err = Arm(ctx, &ArmConfig{Target: cfg.Target, Link: link, Cut: drained.Cut}); err != nil {
			return err
		}
	}
	if err := link.End(ctx, *o); err != nil {
		return fmt.Errorf("%w: %w", ErrUncertain, err)
	}
	return nil
}
