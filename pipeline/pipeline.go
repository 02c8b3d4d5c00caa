package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/control"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/pipeline/reading"
	"github.com/oplogrep/replicator/repair"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/standby"
	"github.com/oplogrep/replicator/syncsource"
)

// Pipeline runs one link. Make one with New.
type Pipeline struct {
	cfg     Config
	source  Cluster
	target  Cluster
	store   *checkpoint.Store
	monitor *monitor.Monitor
	// keeper keeps the lease, nil if it has no end.
	keeper *lease.Keeper
	// control carries out the requests of operators, nil for a part. Brake is that of the whole
	// link, nil for a part that is being merged.
	control *control.Controller
	brake   *control.Brake
	// repairs rewrites documents for requests of operators, nil for a part.
	repairs *repair.Manager
	// candidate acquires the lease.
	candidate *standby.Candidate

	// waits tracks the commands in flight.
	waits mongo.Waits

	watcher  *syncsource.Watcher
	resolver *syncsource.Resolver
	// members chooses the member that a copy is read from.
	members *initialsync.Members

	// The rest belongs to Run.

	// oplog is the source's, as attempts read it: it outlasts them, and the lease.
	oplog    *reading.Oplog
	feedback *feedback.Feedback
	// copies begins the copies of this run.
	copies *initialsync.Copies
	// requests reads the operators' requests, concurrently with all other work.
	requests *request.Store
	resyncs  *resync.Manager
	// leads has the link under the newest term of this process, for its parts.
	leads atomic.Pointer[checkpoint.Link]
	// unapplied is the newest entry that an attempt has read, or a lane has applied, of those that
	// may not all be applied: a drain applies the oplog up to it. If catchesUp is set, the present attempt does so.
	unapplied oplog.OpTime
	catchesUp bool
	// merges means that the present attempt ends where a part is merged.
	merges bool
	// cutNow asks the applier for a consistent cut; nil for a part, which makes none. It has room
	// for one request.
	cutNow chan struct{}
	// guard watches the target for foreign writes, nil if nothing does.
	guard    *guard.Guard
	tooLarge tooLarge
	// unexplained counts refusals of servers whose reason is not known.
	unexplained unexplained
	// vacancy was read before this process has found that the link does not exist, nil before that, and for a part. Once it
	// has found the link it is none.
	vacancy *checkpoint.Vacancy
	// followed means that this process has led, and no other one is known to have led since.
	followed bool
	// acquired means that this process has acquired the lease since it stood by last.
	acquired bool
}

// New checks cfg. It does no I/O and starts nothing.
func New(cfg Config, source, target Cluster) (*Pipeline, error) {
	cfg.SetDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("set up the pipeline: %w", err)
	}
	if source.Direct() {
		cfg.Rules.Pinned = source.Hosts()[0] // only that address
	}
	if cfg.slots == nil {
		cfg.slots = &applier.IndexSlots{}
	}
	p := &Pipeline{cfg: cfg, vacancy: cfg.Vacancy}
	if cfg.part == nil {
		p.cutNow = make(chan struct{}, 1)
	}
	p.source, p.target = p.waits.WatchCluster(source, sideSource), p.waits.WatchCluster(target, sideTarget)
	p.guard = p.newGuard()
	p.monitor = monitor.New(monitor.Config{
		Link: cfg.Link, MetaDB: cfg.MetaDB, Target: p.target, Delay: cfg.Delay, Await: cfg.Await, Waits: &p.waits, Paused: p.isPaused, Observer: cfg.Observer,
		CutInterval: cfg.CutInterval, RelayBytes: cfg.RelayBytes, Registry: cfg.Registry,
	})
	p.newKeeper()
	of := ""
	if cfg.part != nil {
		of = cfg.part.link
	}
	store, err := checkpoint.New(checkpoint.Config{
		Target: p.target, DB: cfg.MetaDB, Link: cfg.Link, Of: of, Process: p.cfg.Lease.Process, Keeper: p.keeper,
		Observer: cfg.Observer, Registry: cfg.Registry,
	})
	if err != nil {
		return nil, fmt.Errorf("set up the pipeline: %w", err)
	}
	whole, err := checkpoint.New(checkpoint.Config{Target: p.target, DB: cfg.MetaDB, Link: cfg.whole().link})
	if err != nil {
		return nil, fmt.Errorf("set up the pipeline: %w", err)
	}
	p.store, p.requests = store, request.New(whole)
	p.newControl()
	p.resyncs = p.newResyncs()
	p.watcher, err = syncsource.NewWatcher(syncsource.WatcherConfig{
		Seeds: source.Seeds(), Direct: source.Direct(), Observer: cfg.Observer, Registry: cfg.Registry,
	}, source)
	if err != nil {
		return nil, fmt.Errorf("set up the pipeline: %w", err)
	}
	p.resolver, err = syncsource.NewResolver(syncsource.ResolverConfig{
		Rules: cfg.Rules, Observer: cfg.Observer, Registry: cfg.Registry,
	}, p.watcher, p.source)
	if err != nil {
		return nil, fmt.Errorf("set up the pipeline: %w", err)
	}
	p.members = initialsync.NewMembers(initialsync.MembersConfig{
		Watcher: p.watcher, Resolver: p.resolver.Another(), Dialer: p.source, Direct: source.Direct(),
		Wait: cfg.Copy.SourceWait, Since: cfg.since(), Observer: cfg.Observer,
	})
	p.candidate, p.oplog, p.copies = p.newCandidate(), p.newOplog(), initialsync.NewCopies(cfg.Copy, p.members)
	if cfg.Lease.TTL > 0 && cfg.part == nil {
		standby.RegisterMetrics(cfg.Registry, cfg.Link, p.Snapshot)
	}
	return p, nil
}

// newOplog creates the reading.Oplog of the source.
func (p *Pipeline) newOplog() *reading.Oplog {
	cfg := &p.cfg
	return reading.New(reading.Config{
		Link: cfg.Link, Part: cfg.part != nil, Source: p.source, Watcher: p.watcher, Resolver: p.resolver, MirrorMember: cfg.mirrorMember,
		Copy: cfg.Copy, RelayBytes: cfg.RelayBytes, Await: cfg.Await, Delay: cfg.Delay,
		Memory: func() int64 { return p.memory().Buffer },
		Paused: p.isPaused, Passes: failure.Transient,
		Monitor: p.monitor, Observer: cfg.Observer, Registry: cfg.Registry,
	})
}

// Snapshot returns the present state of the link.
func (p *Pipeline) Snapshot() monitor.Snapshot {
	s := p.monitor.Snapshot()
	if p.cfg.Lease.TTL > 0 {
		s.Process, s.Lease = p.cfg.Lease.Process, p.keeper.Stats()
	}
	s.Clock, _ = p.watcher.Clock()
	s.Resolver, s.TargetHosts = p.resolver.Status(), p.target.Hosts()
	view := p.watcher.View()
	s.LoginRefused = view.LoginRefused(s.Resolver.Failed)
	s.AddReason(p.resyncs.Postponed())
	s.DeferredOf = s.Deferred.BySource(p.cfg.Scope)
	s.Guard = p.foreign()
	if p.control != nil {
		now := p.control.Status()
		s.Control = &now
	}
	return s
}

// Run acquires the lease and follows the source until soft is done, then applies
// everything that was fetched, writes the last checkpoint and returns nil. When ctx is
// done it returns its cause at once. It retries what can be retried and returns any
// other error.
func (p *Pipeline) Run(ctx, soft context.Context) error {
	watching, endWatch := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { _ = p.watcher.Run(watching) }) // it was canceled by us
	watch.Go(func() { p.monitor.StandsLoop(watching) })
	if p.cfg.part == nil { // the pipeline of the whole link shows the waits of its parts
		watch.Go(func() { p.monitor.WaitsLoop(watching) })
	}
	p.oplog.Begin(ctx)
	err := p.ready(ctx, soft)
	if err == nil {
		err = p.lead(ctx, soft)
	}
	endWatch(nil)
	watch.Wait()
	if closing := p.oplog.Log().Close(); err == nil {
		err = closing
	}
	switch v := failure.Classify(err); {
	case err == nil && p.monitor.IsStandby():
		p.monitor.Ended(monitor.Stopped, StoodBy)
	case err == nil:
		p.monitor.Ended(monitor.Stopped, "drained")
	case ctx.Err() != nil:
		p.monitor.Ended(monitor.Stopped, context.Cause(ctx).Error())
	case errors.Is(err, failure.ErrStopped):
		p.monitor.Ended(monitor.Stopped, err.Error())
	case v.Action == failure.Resync:
		p.monitor.Ended(monitor.Stale, err.Error())
	default:
		p.monitor.Ended(monitor.Failed, err.Error())
	}
	return err
}

// ready waits until enough of the source's members are known to choose from.
func (p *Pipeline) ready(ctx, soft context.Context) error {
	p.monitor.Starting("")
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(soft, func() { stop(failure.ErrStopped) })()
	defer p.waits.Start(mongo.Wait{
		Side: sideSource, Command: "hello", Namespace: "admin", For: "no member that can be read from has answered",
	})()
	return p.watcher.Ready(ctx)
}

// attempts runs one attempt after the other, until one determines how the run ends.
func (p *Pipeline) attempts(ctx, soft context.Context) error {
	pause := p.cfg.RetryMin
	defer p.resyncs.Lead(ctx)()
	defer p.beginControl(ctx)()
	for n := 1; ; n++ {
		p.monitor.Between()
		before, began, draining := p.monitor.Standing(), time.Now(), soft.Err() != nil
		until, err := p.resyncs.Merge(ctx, soft)
		if err == nil {
			err = p.ended(p.attempt(ctx, soft, until), before, soft.Err() != nil)
		}
		asked, err := p.requestCopy(ctx, err)
		switch {
		case asked:
			continue
		case errors.Is(err, control.ErrPaused):
			return p.endPaused()
		case err == nil && p.isPartThere():
			return nil
		case err == nil && soft.Err() != nil:
			if !draining && !p.oplog.HasSpooled() && p.hasUnapplied() {
				continue // It has read nothing, and an attempt before it had.
			}
			return p.notDrained(drainBegan(began, draining))
		case err == nil, errors.Is(err, lease.ErrSpent):
			continue // the lanes were drained, or their number has changed
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		found, err := p.readEarlier(ctx, err)
		if found {
			continue
		}
		err = p.tooLarge.lasts(err, p.cfg.TooLargeFor)
		if !p.retries(err) && !p.oplog.Overflow().ReadsElsewhere(err) && !p.unexplained.passes(err) {
			return p.candidate.BeforeEnd(ctx, soft, err)
		}
		if broken := p.afterFailure(soft, err, before, began); broken != nil {
			return broken
		}
		if !p.oplog.Overflow().Stands() {
			pause = p.cfg.RetryMin
		}
		if err := p.pause(ctx, soft, n, pause, err); err != nil {
			return err
		}
		pause = min(2*pause, p.cfg.RetryMax)
	}
}

// readEarlier looks for the first entry of a transaction that an attempt has read only in part, and reports whether
// the next attempt reads from there. Otherwise it returns the attempt's error, or why that entry could not be found.
func (p *Pipeline) readEarlier(ctx context.Context, err error) (bool, error) {
	broken, ok := errors.AsType[*txn.BrokenChainError](err)
	if !ok {
		return false, err
	}
	found, failed := p.oplog.ReadEarlier(ctx, broken)
	if failed != nil {
		return found, failed
	}
	return found, err
}

// retries reports whether another attempt follows one that ended with err. Where this process has
// been authorized before, also as another pipeline, a refusal is transient.
func (p *Pipeline) retries(err error) bool {
	part := p.cfg.part != nil
	return failure.Retries(err, part || p.candidate.Term() != 0, part)
}

// afterFailure prepares for the attempt after one that began at a time, from before, and ended
// with err. It returns an error if there cannot be another one.
func (p *Pipeline) afterFailure(soft context.Context, err error, before monitor.Standing, began time.Time) error {
	if broken := p.oplog.Recover(soft, err); broken != nil && !p.retries(broken) {
		return broken
	}
	if p.oplog.Log().Spool() == nil {
		p.monitor.Spools(nil, "")
	}
	p.monitor.Failed(err)
	if !p.monitor.Standing().Beyond(before) {
		p.oplog.Overflow().Stood(began)
	}
	p.oplog.Overflow().SpoolIfDue()
	return nil
}

// pause announces the end of attempt n and waits before the next one, for a random time
// in the upper half of atMost, so that links do not retry in step. A draining run has a
// next attempt too, until ctx is done, if it can still end in order.
func (p *Pipeline) pause(ctx, soft context.Context, n int, atMost time.Duration, err error) error {
	wait := atMost/2 + rand.N(atMost/2+1)
	p.cfg.Observer.Tell(AttemptEnded{Attempt: n, Err: err, Wait: wait})
	told := soft.Done()
	if soft.Err() != nil {
		told = nil
	}
	select {
	case <-time.After(wait):
	case <-told:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if soft.Err() != nil && !p.drains(err) {
		// Everything acknowledged is in the target; the next start reads the rest
		// again.
		return fmt.Errorf("%w: %w", failure.ErrStopped, err)
	}
	return nil
}

// attempt acquires the lease and runs the stages until they end. If until is not null,
// the attempt ends there.
func (p *Pipeline) attempt(ctx, soft context.Context, until oplog.OpTime) error {
	p.merges = !until.IsNull()
	id, err := p.watcher.Identify(ctx, p.source) // An attempt does not need the primary.
	if err != nil {
		return p.endedOr(ctx, fmt.Errorf("ask the source for its set: %w", err))
	}
	src := checkpoint.Source(id)
	if err := p.ensureLink(ctx, src); err != nil {
		return err
	}
	var link *checkpoint.Link
	p.oplog.Overflow().Meanwhile(func() { link, err = p.acquire(ctx) })
	if err != nil {
		return err
	}
	if p.cfg.part == nil {
		p.oplog.Log().Attach(link)
	}
	st := link.State()
	p.hasRead(st.Furthest())
	if err := p.checkLink(st, src); err != nil {
		return err
	}
	if err := p.record(ctx, link, st); err != nil {
		return err
	}
	ahead, err := link.SetWriters(ctx, p.cfg.Writers)
	if err != nil {
		return err
	}
	switch {
	case !ahead.IsNull():
		until = ahead
	case p.cfg.part != nil:
		until = p.cfg.part.of.Until
	}
	p.catchesUp = false
	if to := p.unapplied; soft.Err() != nil && to.After(st.Applied) && !p.oplog.HasSpooled() {
		p.catchesUp, until = true, to
	}
	if err := p.leaveOut(ctx, link); err != nil {
		return err
	}
	if err := p.watchTarget(ctx, link); err != nil {
		return err
	}
	return p.copyOrFollow(ctx, soft, link, src, until)
}

// acquire acquires the link's lease under the next term.
func (p *Pipeline) acquire(ctx context.Context) (*checkpoint.Link, error) {
	if p.control != nil {
		p.control.Leads(nil)
	}
	link, err := p.candidate.Acquire(ctx)
	if errors.Is(err, checkpoint.ErrNoLink) { // there was one
		err = fmt.Errorf("%w: %w", checkpoint.ErrRemoved, err)
	}
	if err != nil {
		return nil, err
	}
	p.leads.Store(link)
	p.acquired = true
	if p.control != nil {
		p.control.Leads(link)
		p.repairs.Leads(link.Term())
	}
	return link, nil
}

// follow applies the oplog.
func (p *Pipeline) follow(ctx, soft context.Context, link *checkpoint.Link, src checkpoint.Source, until oplog.OpTime) error {
	a, err := p.newAttempt(ctx, soft, link, src, until)
	if err != nil {
		return err
	}
	return a.run(ctx, soft)
}

// ensureLink creates the link if it does not exist.
func (p *Pipeline) ensureLink(ctx context.Context, src checkpoint.Source) error {
	if p.candidate.Term() != 0 {
		return nil
	}
	if p.vacancy == nil && p.cfg.part == nil {
		v, err := p.store.Vacancy(ctx)
		if err != nil {
			return err
		}
		p.vacancy = &v
	}
	_, found, err := p.store.Load(ctx)
	if found && p.cfg.part == nil {
		none := checkpoint.NoVacancy()
		p.vacancy = &none
	}
	if err != nil || found {
		return err
	}
	st := checkpoint.State{Source: src, Writers: p.cfg.Writers, Routing: applier.Routing, Fingerprint: p.cfg.Fingerprint(), Filters: p.cfg.Filters}
	if p.cfg.Copy.Wanted {
		c, wall, err := p.copies.Begin(ctx)
		if err != nil {
			return err
		}
		st.Applied, st.AppliedWall, st.FetchFrom, st.Copy = c.Begin, wall, c.FetchFrom, &c
		if err := p.create(ctx, st); err != nil {
			return err
		}
		p.copies.Started()
		return nil
	}
	start, err := p.findStart(ctx)
	if err != nil {
		return fmt.Errorf("find where the link begins: %w", err)
	}
	st.Applied, st.AppliedWall, st.FetchFrom, st.CopiedUntil = start.Begin, start.Wall, start.FetchFrom, p.cfg.CopiedUntil
	return p.create(ctx, st)
}

// findStart finds the start point of a link that copies nothing.
func (p *Pipeline) findStart(ctx context.Context) (replset.Start, error) {
	if p.cfg.StartAt.T != 0 {
		return replset.StartAt(ctx, p.source, p.cfg.StartAt)
	}
	return replset.FindStart(ctx, p.source, replset.Majority)
}

// checkLink refuses a link that does not match the source or the settings.
func (p *Pipeline) checkLink(st checkpoint.State, src checkpoint.Source) error {
	if src.ReplicaSetID.Type != 0 && st.Source.ReplicaSetID.Type != 0 && !src.ReplicaSetID.Equal(st.Source.ReplicaSetID) {
		return fmt.Errorf("link %q follows set %s (%s), the source is %s (%s): %w", p.cfg.Link,
			st.Source.SetName, st.Source.ReplicaSetID, src.SetName, src.ReplicaSetID, checkpoint.ErrOtherSource)
	}
	if st.Fingerprint != p.cfg.Fingerprint() {
		return st.OtherSettings(p.cfg.Link)
	}
	return nil
}
