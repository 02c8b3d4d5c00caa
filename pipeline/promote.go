package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/resync"
)

var (
	// ErrNotCopied reports a link whose target was never consistent.
	ErrNotCopied = errors.New("the target is not consistent yet: the copy, or the oplog since it began, was not applied to its end")
	// ErrLeavesOut reports a link that leaves collections out, which were being copied again.
	ErrLeavesOut = errors.New("collections are being copied again, and are not as they should be")
)

// PromoteConfig configures Promote.
type PromoteConfig struct {
	// Pipeline has the settings of the link, as its processes have them. Promote takes the number of
	// writers from the link's document.
	Pipeline Config
	// By is the operator.
	By string
	// DryRun changes nothing: it returns what the recovery point would be.
	DryRun bool
	// AcceptLeftOut promotes a link that leaves collections out: they stay as they are.
	AcceptLeftOut bool
	// SpoolWait is how long to wait for a process that has lost its lease to release the relay log.
	// Default 30 s.
	SpoolWait time.Duration
	// LeaderWait is how long a process that leads may take to apply what it has in memory. Default 10 s.
	LeaderWait time.Duration
	// Said, if not nil, is called with what it does, and waits for.
	Said func(string)
}

// promotion is a run of Promote.
type promotion struct {
	cfg   *PromoteConfig
	p     *Pipeline
	state checkpoint.State // as it was found
	look  checkpoint.Standing
	rec   Recovery
}

// Promote ends a link whose source is gone, after applying what is on local disk of the source's
// oplog:
//
//	take the lease over ──▶ apply the relay log ──▶ all lanes at S? ──▶ end the link ──▶ promoted
//	        │                        │                    │                │ outcome unknown
//	        ▼                        ▼                    ▼                ▼
//	the process that led stands by; another call of Promote, at any time, goes on from there
//
// It needs the target only. What the relay log has is applied as far as it can be read, whole
// transactions only; without one, the target has what the lanes have. Nothing is deleted from disk.
// To call it again is always right: a link that was promoted has the same recovery point.
func Promote(ctx context.Context, cfg *PromoteConfig, target Cluster) (Recovery, error) {
	var pr *promotion
	done := false
	again := mongo.Retry{For: findWithin, Again: func(err error) bool { return Classify(err).Action == Retry }}
	err := again.Do(ctx, func() (err error) {
		if pr, err = newPromotion(ctx, cfg, target); err != nil {
			return err
		}
		done, err = pr.found(ctx)
		return errors.Join(err, pr.p.log.Close())
	})
	if err != nil || done {
		return pr.result(err)
	}
	defer pr.p.log.Close() //nolint:errcheck // It was only read.
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

func newPromotion(ctx context.Context, cfg *PromoteConfig, target Cluster) (*promotion, error) {
	def(&cfg.SpoolWait, 30*time.Second)
	def(&cfg.LeaderWait, 10*time.Second)
	pl := cfg.Pipeline
	store, err := checkpoint.New(checkpoint.Config{Target: target, DB: pl.MetaDB, Link: pl.Link})
	if err != nil {
		return nil, err
	}
	state, found, err := store.Load(ctx)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("promote link %q: %w", pl.Link, checkpoint.ErrNoLink)
	}
	pr := &promotion{cfg: cfg, state: state}
	if pr.look, _, err = store.Look(ctx, lease.NewWatch("")); err != nil {
		return nil, err
	}
	pl.Writers, pl.salvaged, pl.RelayBytes, pl.CutInterval, pl.Delay = state.Writers, true, 0, 0, 0
	pl.Guard, pl.Feedback, pl.Copy.Wanted = guard.Off, feedback.None, false
	if c := state.Converting; c != nil { // its cutover cannot go on without the source
		pl.converts = c.ID
	}
	fingerprint := pl.Fingerprint()
	pl.Scope = resync.Without(pl.Scope, leftOut(state.LeftOut))
	def(&pl.Lease.TTL, lease.DefaultTTL)
	pl.Lease.Every, pl.Lease.TakeOver = pl.Lease.TTL/5, true
	if fingerprint != state.Fingerprint {
		return nil, fmt.Errorf("promote link %q: %w: with %s, now %s", pl.Link, ErrSettings, state.Fingerprint, fingerprint)
	}
	if pr.p, err = New(pl, absent{host: state.Source.Host}, target); err != nil {
		return nil, err
	}
	pr.rec = Recovery{Link: pl.Link, Durable: state.Applied, Holder: pr.look.Lease.Record.Holder, LeftOut: leftOut(state.LeftOut)}
	return pr, nil
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
		return fmt.Errorf("promote link %q: %w", pr.cfg.Pipeline.Link, ErrNotCopied)
	}
	if len(st.LeftOut) > 0 && !pr.cfg.AcceptLeftOut {
		return fmt.Errorf("promote link %q: %w: %s", pr.cfg.Pipeline.Link, ErrLeavesOut, resync.Describe(st.LeftOut))
	}
	return nil
}

func (pr *promotion) say(format string, args ...any) {
	if pr.cfg.Said != nil {
		pr.cfg.Said(fmt.Sprintf(format, args...))
	}
}

// run promotes the link.
func (pr *promotion) run(ctx context.Context) error {
	p := pr.p
	p.run = ctx
	pr.await(ctx)
	renewing, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	var renewal sync.WaitGroup
	renewal.Go(func() { p.keeper.Run(renewing) })
	defer func() {
		stop(nil)
		renewal.Wait()
	}()
	leading, over := p.keeper.Lead(ctx)
	err := pr.lead(leading)
	over()
	p.release(ctx)
	return err
}

// await lets the process that leads apply what it has in memory, for a while: without a relay log
// no other process has that.
func (pr *promotion) await(ctx context.Context) {
	if pr.look.Lease.Free || pr.look.Lease.Record.Grant.ID.IsZero() {
		return
	}
	if _, ok, err := pr.open(ctx, pr.look.Instance, pr.state, false); ok && err == nil {
		return // all that was read is on disk
	}
	pr.say("%s leads the link: it is asked to apply what it has, for %s at most", pr.rec.Holder, pr.cfg.LeaderWait)
	if _, err := pr.p.requests.NextCut(ctx, pr.cfg.By, "the source is gone, and the target is promoted", pr.cfg.LeaderWait, nil); err != nil {
		pr.say("it has not said that it has applied everything (%v): the link is taken over", err)
	}
}

// lead applies what there is under the lease, and ends the link. What passes is tried again.
func (pr *promotion) lead(ctx context.Context) error {
	p, wait := pr.p, pr.p.cfg.RetryMin
	for {
		err := pr.once(ctx)
		if err == nil || ctx.Err() != nil || Classify(err).Action != Retry {
			return err
		}
		pr.say("%v: trying again", err)
		if mongo.Pause(ctx, wait) != nil {
			return context.Cause(ctx)
		}
		wait = min(2*wait, p.cfg.RetryMax)
	}
}

// revert defers the options again that a cutover has begun to convert: indexes that are unique already
// may refuse operations that are right.
func (pr *promotion) revert(ctx context.Context, link *checkpoint.Link) error {
	c := pr.state.Converting
	if c == nil {
		return nil
	}
	pr.say("%s has begun a cutover of the link, which is taken back: options are deferred again", c.By)
	cfg := &pr.p.cfg
	gate := &guard.Gate{Target: pr.p.target, DB: cfg.MetaDB, Link: cfg.Link}
	converter, err := ddl.NewConverter(ctx, gate, link, cfg.MetaDB, cfg.Link)
	if err != nil {
		return err
	}
	if err := converter.Revert(ctx, func(ddl.Converted) {}); err != nil {
		return err
	}
	return link.Reverted(ctx)
}

// once is one attempt.
func (pr *promotion) once(ctx context.Context) error {
	link, err := pr.p.acquire(ctx)
	if err != nil {
		return pr.ended(ctx, err)
	}
	pr.state = link.State()
	if err := pr.may(); err != nil {
		return err
	}
	if err := pr.revert(ctx, link); err != nil {
		return err
	}
	st := pr.state
	found, ok, err := pr.open(ctx, link.Instance(), st, true)
	if err != nil {
		return err
	}
	if ok && !found.Last.Before(st.Applied) {
		if st.Routing != applier.Routing {
			if err := link.SetRouting(ctx, applier.Routing); err != nil {
				return err
			}
			st = link.State()
		}
		pr.say("applying what the relay log has, from %s to %s", st.FetchFrom, found.Last)
		// What a lane had announced may be after the end of the log: that is told of the lanes.
		if err := pr.apply(ctx, link, st, found.Last); err != nil && !errors.Is(err, applier.ErrCut) {
			return err
		}
		// Under another term nothing of this one can be in flight, and all lanes are read with majority.
		if link, err = pr.p.acquire(ctx); err != nil {
			return pr.ended(ctx, err)
		}
		st = link.State()
	}
	pr.state = st
	if err := pr.finish(ctx, st); err != nil {
		return err
	}
	o := pr.rec.over(pr.cfg.By, time.Now().UTC().Truncate(time.Millisecond))
	if err := link.End(ctx, o); err != nil {
		return err
	}
	pr.rec.Over = &o
	return nil
}

// ended reports the end of a link that this run, or another one, has recorded.
func (pr *promotion) ended(ctx context.Context, err error) error {
	over, is := errors.AsType[*checkpoint.OverError](err)
	if !is || over.Over.Promoted == nil {
		return err
	}
	pr.recorded(ctx, &over.Over)
	return nil
}

// open opens the relay log, once the process that has lost the lease has released it.
func (pr *promotion) open(ctx context.Context, instance string, st checkpoint.State, lock bool) (initialsync.Salvaged, bool, error) {
	log := pr.p.log
	for begun := time.Now(); ; {
		found, ok, err := log.Salvage(instance, st.Copy, st.FetchFrom, lock)
		pr.rec.Log, pr.rec.Dir = found, cmp.Or(found.Dir, log.Dir())
		switch {
		case !errors.Is(err, spool.ErrInUse) || time.Since(begun) > pr.cfg.SpoolWait:
			return found, ok, err
		case time.Since(begun) < waitsAgain:
			pr.say("waiting for another process to release the relay log: %v", err)
		}
		if mongo.Pause(ctx, waitsAgain) != nil {
			return found, false, context.Cause(ctx)
		}
	}
}

// waitsAgain is the time between two tries to open the relay log.
const waitsAgain = 200 * time.Millisecond

// apply applies the relay log up to an entry, and returns once the checkpoint covers it.
func (pr *promotion) apply(ctx context.Context, link *checkpoint.Link, st checkpoint.State, until oplog.OpTime) error {
	never := context.WithoutCancel(ctx)
	a, err := pr.p.newAttempt(ctx, never, link, st.Source, until)
	if err != nil {
		return err
	}
	defer a.unbrake()
	return pr.p.alongside(ctx, link, func(ctx context.Context) error { return a.stages(ctx, never) })
}

// absent is the source of a link that has none any more.
type absent struct{ host string }

// errAbsent is the result of every command on it.
var errAbsent = errors.New("the source is not asked anything")

// Call implements mongo.Caller.
func (a absent) Call(context.Context, mongo.Command) (bson.Raw, error) { return nil, errAbsent }

// Member implements Cluster.
func (a absent) Member(string) mongo.Caller { return a }

// Hosts implements Cluster.
func (a absent) Hosts() []string { return []string{cmp.Or(a.host, "unknown:27017")} }

// Seeds implements Cluster.
func (a absent) Seeds() []string { return a.Hosts() }

// Direct implements Cluster.
func (absent) Direct() bool { return false }
