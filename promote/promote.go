package promote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/memory"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/resync"
)

// Config configures Run.
type Config struct {
	// Pipeline has the settings of the link, as its processes have them. Run takes the number of
	// writers from the link's document.
	Pipeline pipeline.Config
	// By is the operator.
	By string
	// DryRun changes nothing: it returns what the recovery point would be.
	DryRun bool
	// AcceptLeftOut promotes a link that leaves collections out: they stay as they are.
	AcceptLeftOut bool
	// SpoolWait is how long to wait for a process that has lost its lease to release the relay log.
	// Default 30 s.
	SpoolWait time.Duration
	// LeaderWait is how long a process that leads may take to apply the entries in its memory. Default 10 s.
	LeaderWait time.Duration
	// OnStep, if not nil, is called with each step, and each wait.
	OnStep func(string)
}

// promotion is a call of Run.
type promotion struct {
	cfg      *Config
	settings pipeline.Config // of the link, without the parts that need the source
	target   pipeline.Cluster
	requests *request.Store
	store    *checkpoint.Store
	keeper   *lease.Keeper
	log      *initialsync.Log
	claim    lease.Claim
	term     int64            // the last one that this call had
	state    checkpoint.State // as it was found
	look     checkpoint.View
	rec      Recovery
}

// Run promotes a link. To call it again is always right: a link that was promoted has the same recovery
// point.
func Run(ctx context.Context, cfg *Config, target pipeline.Cluster) (Recovery, error) {
	var pr *promotion
	done := false
	again := mongo.Retry{For: findWithin, Again: failure.Transient}
	err := again.Do(ctx, func() (err error) {
		if pr, err = newPromotion(ctx, cfg, target); err != nil {
			return err
		}
		done, err = pr.found(ctx)
		return errors.Join(err, pr.log.Close())
	})
	if err != nil || done {
		return pr.result(err)
	}
	defer pr.log.Close() //nolint:errcheck // It was only read.
	return pr.result(pr.run(ctx))
}

// findWithin is how long the target may not answer before anything is known of the link.
const findWithin = 30 * time.Second

func (pr *promotion) result(err error) (Recovery, error) {
	if err != nil {
		return Recovery{}, err
	}
	return pr.rec, nil
}

// found reports whether there is nothing to do for a link as it was found.
func (pr *promotion) found(ctx context.Context) (done bool, err error) {
	switch over := pr.state.Over; {
	case over != nil && over.Promoted == nil:
		return true, &checkpoint.OverError{Link: pr.cfg.Pipeline.Link, Over: *over}
	case over != nil:
		pr.recorded(ctx, over)
		return true, nil
	}
	if err := pr.may(); err != nil {
		return true, err
	}
	if pr.cfg.DryRun {
		return true, pr.preview(ctx)
	}
	return false, nil
}

// newPromotion finds the link and its lease, and creates the Candidate that takes the lease over.
func newPromotion(ctx context.Context, cfg *Config, target pipeline.Cluster) (*promotion, error) {
	cfg.SpoolWait, cfg.LeaderWait = cmp.Or(cfg.SpoolWait, 30*time.Second), cmp.Or(cfg.LeaderWait, 10*time.Second)
	pl := cfg.Pipeline
	store, err := checkpoint.New(checkpoint.Config{Target: target, DB: pl.MetaDB, Link: pl.Link})
	if err != nil {
		return nil, err
	}
	state, found, err := store.Find(ctx)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("promote link %q: %w", pl.Link, checkpoint.ErrNoLink)
	}
	pr := &promotion{cfg: cfg, target: target, requests: request.New(store), state: state}
	if pr.look, _, err = store.Look(ctx, lease.NewWatch("")); err != nil {
		return nil, err
	}
	if pr.settings, err = withoutSource(pl, &state); err != nil {
		return nil, err
	}
	set := &pr.settings
	pr.keeper = set.Lease.NewKeeper(target, set.MetaDB, set.Link, set.Registry)
	pr.claim = lease.Claim{TTL: set.Lease.TTL, Why: "mirror", TakeOver: true}
	converts := ""
	if c := state.Converting; c != nil { // its cutover cannot go on without the source
		converts = c.ID
	}
	if pr.store, err = checkpoint.New(checkpoint.Config{
		Target: target, DB: set.MetaDB, Link: set.Link, Process: set.Lease.Process, Keeper: pr.keeper, Converts: converts, Observer: set.Observer, Registry: set.Registry,
	}); err != nil {
		return nil, err
	}
	pr.log = initialsync.NewLog(initialsync.LogConfig{
		Link: set.Link, Dir: set.Copy.SpoolDir, Limit: set.Copy.SpoolBytes, MinFree: set.Copy.SpoolFree, Memory: func() int64 { return pr.memory().Buffer },
		Observer: set.Observer, Registry: set.Registry,
	})
	pr.rec = Recovery{Link: pl.Link, Durable: state.Applied, Holder: pr.look.Lease.Record.Holder, LeftOut: leftOut(state.LeftOut)}
	return pr, nil
}

// withoutSource returns the settings of a link in a state, without those that need its source.
func withoutSource(pl pipeline.Config, state *checkpoint.State) (pipeline.Config, error) {
	pl.Writers, pl.RelayBytes, pl.CutInterval, pl.Delay = state.Writers, 0, 0, 0
	pl.Guard, pl.Feedback, pl.Copy.Wanted = guard.Off, feedback.None, false
	fingerprint := pl.Fingerprint()
	pl.Scope = resync.Without(pl.Scope, leftOut(state.LeftOut))
	pl.Lease.TTL = cmp.Or(pl.Lease.TTL, lease.DefaultTTL)
	pl.Lease.Every = pl.Lease.TTL / 5
	pl.Lease.SetDefaults()
	if fingerprint != state.Fingerprint {
		return pl, state.OtherSettings(pl.Link)
	}
	pl.SetDefaults()
	if err := pl.Validate(); err != nil {
		return pl, fmt.Errorf("promote link %q: %w", pl.Link, err)
	}
	return pl, nil
}

// memory returns the shares of memory.
func (pr *promotion) memory() memory.Shares {
	s := memory.SharesOf(pr.settings.Memory, 0)
	if pr.settings.WindowBytes > 0 {
		s.Window = pr.settings.WindowBytes
	}
	return s
}

func leftOut(list []checkpoint.LeftOut) (names []oplog.Namespace) {
	for _, out := range list {
		names = append(names, out.NS)
	}
	return names
}

// may returns why the link cannot be promoted.
func (pr *promotion) may() error {
	st := &pr.state
	if st.Copy != nil && st.Copy.Phase != checkpoint.Copied {
		return fmt.Errorf("promote link %q: %w", pr.cfg.Pipeline.Link, initialsync.ErrNotCopied)
	}
	if len(st.LeftOut) > 0 && !pr.cfg.AcceptLeftOut {
		return fmt.Errorf("promote link %q: %w: %s", pr.cfg.Pipeline.Link, resync.ErrLeavesOut, resync.Describe(st.LeftOut))
	}
	return nil
}

func (pr *promotion) say(format string, args ...any) {
	if pr.cfg.OnStep != nil {
		pr.cfg.OnStep(fmt.Sprintf(format, args...))
	}
}

// run promotes the link.
func (pr *promotion) run(ctx context.Context) error {
	pr.await(ctx)
	renewing, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	var renewal sync.WaitGroup
	renewal.Go(func() { pr.keeper.Run(renewing) })
	defer func() {
		stop(nil)
		renewal.Wait()
	}()
	for {
		leading, over := pr.keeper.Lead(ctx)
		err := pr.lead(leading)
		expired := errors.Is(context.Cause(leading), lease.ErrExpired)
		over()
		if err != nil && expired && ctx.Err() == nil {
			pr.say("the lease has ended, as the target did not answer: it is acquired again")
			pr.claim.TakeOver = true
			continue
		}
		pr.release(ctx)
		return err
	}
}

// release gives the lease back. If that fails it ends by itself.
func (pr *promotion) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	if err := pr.keeper.Release(ctx); err != nil {
		pr.say("the lease could not be given back (%v): another process has to wait until it ends", err)
	}
}

// releaseWithin limits how long giving the lease back may take.
const releaseWithin = 2 * time.Second

// acquire acquires the link's lease under the next term.
func (pr *promotion) acquire(ctx context.Context) (*checkpoint.Link, error) {
	link, err := pr.store.AcquireBy(ctx, pr.term, pr.claim)
	if err != nil {
		return nil, err
	}
	pr.term, pr.claim.TakeOver = link.Term(), false
	return link, nil
}

// await lets the process that leads apply the entries in its memory, for a while: without a relay log
// no other process has that.
func (pr *promotion) await(ctx context.Context) {
	if pr.look.Lease.Free || pr.look.Lease.Record.Grant.ID.IsZero() {
		return
	}
	if _, ok, err := pr.open(ctx, pr.look.Instance, pr.state, false); ok && err == nil {
		return // all that was read is on disk
	}
	pr.say("%s leads the link: it is asked to apply what it has, for %s at most", pr.rec.Holder, pr.cfg.LeaderWait)
	if _, err := pr.requests.NextCut(ctx, pr.cfg.By, "the source is gone, and the target is promoted", pr.cfg.LeaderWait, nil); err != nil {
		pr.say("it has not said that it has applied everything (%v): the link is taken over", err)
	}
}
