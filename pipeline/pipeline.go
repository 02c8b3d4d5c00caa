package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/replset"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/txn"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/resync"
	"github.com/oplogrep/replicator/syncsource"
)

// Pipeline runs one link. Make one with New.
type Pipeline struct {
	cfg    Config
	source Cluster
	target Cluster
	store  *checkpoint.Store
	state  stateBox

	// waits knows which commands wait for their answers; direct is the way to source
	// and target that it does not see.
	waits  mongo.Waits
	direct struct{ source, target Cluster }

	watcher  *syncsource.Watcher
	resolver *syncsource.Resolver

	// The rest belongs to Run, but for what snap guards.

	// term is the one that this process had last, 0 before the first.
	term int64
	// earlier, if not null, is an entry before the checkpoint's FetchFrom to
	// read from: a transaction turned out to begin there.
	earlier oplog.OpTime
	// earlierFor is the entry that needs it: once it has been applied, the
	// checkpoint knows where to read from.
	earlierFor oplog.OpTime
	feedback   *feedback.Feedback
	// spoolDir is the folder of this link in the one that is configured; it is known
	// once there is a Link.
	spoolDir string
	// log is the oplog of a copy that is not consistent yet, or not drained. It is open
	// from one attempt to the next.
	log *initialsync.Log
	// copies counts those that this run has begun: a start by an operator begins to
	// count anew.
	copies int64
	// drained tells that what is left of the spool fits into memory.
	drained atomic.Bool
	// requests reads what operators want, concurrently with everything else.
	requests *request.Store
	resyncs  *resync.Manager
	// unapplied is the newest entry that was read by attempts that failed: a drain
	// applies the log as far as that. The present attempt does so where catchesUp.
	unapplied oplog.OpTime
	catchesUp bool

	shown shownCopy

	// member is the one that is copied, nil before that is known.
	member *initialsync.Member

	mu   sync.Mutex // guards what follows
	live live
}

// New checks cfg. It does no I/O and starts nothing.
func New(cfg Config, source, target Cluster) (*Pipeline, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("set up the pipeline: %w", err)
	}
	if source.Direct() {
		cfg.Rules.Pinned = source.Hosts()[0] // that address and no other
	}
	p := &Pipeline{cfg: cfg, spoolDir: cfg.Copy.SpoolDir}
	p.log = initialsync.NewLog(initialsync.LogConfig{
		Link: cfg.Link, Limit: cfg.Copy.SpoolBytes, MinFree: cfg.Copy.SpoolFree, Memory: cfg.BufferBytes,
		Observer: cfg.Observer, Registry: cfg.Registry,
	})
	p.direct.source, p.direct.target = source, target
	p.source, p.target = observe(source, &p.waits, sideSource), observe(target, &p.waits, sideTarget)
	of := ""
	if cfg.part != nil {
		of = cfg.part.link
	}
	store, err := checkpoint.New(checkpoint.Config{
		Target: p.target, DB: cfg.MetaDB, Link: cfg.Link, Of: of, Observer: cfg.Observer, Registry: cfg.Registry,
	})
	if err != nil {
		return nil, fmt.Errorf("set up the pipeline: %w", err)
	}
	whole, err := checkpoint.New(checkpoint.Config{Target: p.target, DB: cfg.MetaDB, Link: cfg.whole().link})
	if err != nil {
		return nil, fmt.Errorf("set up the pipeline: %w", err)
	}
	p.store, p.requests = store, request.New(whole)
	p.resyncs = p.newResyncs()
	p.state.observer = cfg.Observer
	p.watcher, err = syncsource.NewWatcher(syncsource.WatcherConfig{
		Seeds: source.Hosts(), Direct: source.Direct(), Observer: cfg.Observer, Registry: cfg.Registry,
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
	return p, nil
}

// Run acquires the lease and follows the source until soft is done, then
// applies what was fetched, writes the last checkpoint and returns nil. When ctx
// is done it returns its cause at once. Any other error is one that Classify says
// to end with; what can be tried again is tried again.
func (p *Pipeline) Run(ctx, soft context.Context) error {
	watching, endWatch := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { _ = p.watcher.Run(watching) }) // it returns why it was ended, by us
	if p.cfg.part == nil {                           // what waits of a part is seen by the whole
		watch.Go(func() { p.waitsLoop(watching) })
	}
	err := p.ready(ctx, soft)
	if err == nil {
		err = p.attempts(ctx, soft)
	}
	endWatch(nil)
	watch.Wait()
	if closing := p.log.Close(); err == nil {
		err = closing
	}
	switch v := Classify(err); {
	case err == nil:
		p.state.set(Stopped, "drained")
	case ctx.Err() != nil:
		p.state.set(Stopped, context.Cause(ctx).Error())
	case errors.Is(err, ErrStopped):
		p.state.set(Stopped, err.Error())
	case v.Action == Resync:
		p.state.set(Stale, err.Error())
	default:
		p.state.set(Failed, err.Error())
	}
	return err
}

// ready waits until the source's members are known well enough to choose from.
func (p *Pipeline) ready(ctx, soft context.Context) error {
	p.state.set(Starting, "")
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(soft, func() { stop(ErrStopped) })()
	defer p.waits.Start(mongo.Wait{
		Side: sideSource, Command: "hello", Namespace: "admin", For: "no member that can be read from has answered",
	})()
	return p.watcher.Ready(ctx)
}

// attempts begins one attempt after the other, until one says how the run ends.
func (p *Pipeline) attempts(ctx, soft context.Context) error {
	pause := p.cfg.RetryMin
	defer p.resyncs.Close()
	for n := 1; ; n++ {
		before, draining := p.standing(), soft.Err() != nil
		until, err := p.resyncs.Merge(ctx, soft)
		if err == nil {
			err = p.attempt(ctx, soft, until)
		}
		asked := false
		if err != nil && ctx.Err() == nil {
			var failed error
			if asked, failed = p.requestCopy(ctx, err); failed != nil {
				err = failed
			}
		}
		switch {
		case asked:
			continue
		case err == nil && p.isPartThere():
			return nil
		case err == nil && soft.Err() != nil:
			if !draining && p.progress().Applied.Before(p.unapplied) {
				continue // It has read nothing, and an attempt before it had.
			}
			return p.notDrained()
		case err == nil, errors.Is(err, lease.ErrSpent):
			continue // the lanes were drained, or have another number now
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		if broken, ok := errors.AsType[*txn.BrokenChainError](err); ok {
			found, walk := p.readEarlier(ctx, broken)
			if found {
				continue
			}
			if walk != nil {
				err = walk
			}
		}
		if !p.retries(err) {
			return err
		}
		if broken := p.log.Recover(ctx, soft, err); broken != nil && !p.retries(broken) {
			return broken
		}
		if fetched := p.failed(err); fetched.After(p.unapplied) {
			p.unapplied = fetched
		}
		if p.standing().beyond(before) {
			pause = p.cfg.RetryMin
		}
		if err := p.pause(ctx, soft, n, pause, err); err != nil {
			return err
		}
		pause = min(2*pause, p.cfg.RetryMax)
	}
}

// pause announces the end of attempt n and waits before the next one: somewhere in
// the upper half of atMost, so that links do not retry in step.
func (p *Pipeline) pause(ctx, soft context.Context, n int, atMost time.Duration, err error) error {
	wait := atMost/2 + rand.N(atMost/2+1)
	p.state.set(Starting, "trying again: "+err.Error())
	p.cfg.Observer.Tell(AttemptEnded{Attempt: n, Err: err, Wait: wait})
	return p.rest(ctx, soft, wait, err)
}

// retries reports whether an attempt that ended with err is followed by another one.
func (p *Pipeline) retries(err error) bool {
	switch {
	case Classify(err).Action == Retry:
		return true
	case isLogin(err):
		// A process that had the lease was let in before, so that will pass.
		return p.term != 0 || p.cfg.part != nil
	}
	// A link ends, for whatever supervises the process. A part would have to be begun anew.
	return p.cfg.part != nil && isLocal(err)
}

// notDrained says what a run that was told to drain has not applied, nil if nothing.
func (p *Pipeline) notDrained() error {
	if p.hasSpooled() {
		return fmt.Errorf("%w: what is on disk was not applied", ErrStopped)
	}
	if list := p.leftOut(); len(list) > 0 {
		return fmt.Errorf("%w: %s", ErrStopped, resync.Describe(list))
	}
	return nil
}

// rest waits before the next attempt, after one that ended with an error. A run that is
// to be drained has a next one too, until ctx is done, where it can end in order.
func (p *Pipeline) rest(ctx, soft context.Context, wait time.Duration, err error) error {
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
		// Everything that is acknowledged is in the target, and what is not is read
		// again by the next start.
		return fmt.Errorf("%w: %w", ErrStopped, err)
	}
	return nil
}

// drains reports whether a run that is to end can still do so in order after an attempt
// that failed: not where no server could be found, as that was waited for, nor where it
// is not drained with all that was read applied. The pipeline of one collection leaves
// it to the next one.
func (p *Pipeline) drains(err error) bool {
	lost, ok := errors.AsType[*mongo.LostError](err)
	return (!ok || lost.Host != "") && p.cfg.part == nil && !p.hasSpooled() && len(p.leftOut()) == 0
}

// drainTo returns the entry up to which a run that is to end applies the log, as an
// attempt failed: as far as that had read, and where any lane is. It is null if the
// target is there.
func (p *Pipeline) drainTo(st checkpoint.State) oplog.OpTime {
	to := st.Furthest()
	if p.unapplied.After(to) {
		to = p.unapplied
	}
	if !to.After(st.Applied) {
		return oplog.OpTime{}
	}
	return to
}

// readEarlier makes the next attempt begin where a transaction does whose
// beginning was not read. There may be several: each begins before what was read
// so far, or reading earlier is of no use.
func (p *Pipeline) readEarlier(ctx context.Context, broken *txn.BrokenChainError) (found bool, err error) {
	start, err := replset.ChainStart(ctx, p.source, broken.Prev)
	switch {
	case err != nil && Classify(err).Action == Retry:
		return false, err // the source could not be asked
	case err != nil:
		return false, errors.Join(broken, err)
	case !p.earlier.IsNull() && !start.Before(p.earlier):
		return false, nil
	}
	p.earlier = start
	if broken.OpTime.After(p.earlierFor) {
		p.earlierFor = broken.OpTime
	}
	p.cfg.Observer.Tell(ReadEarlier{From: start, For: broken.OpTime})
	return true, nil
}

// attempt acquires the lease and runs its stages until they end. It ends at until, if
// that is not null.
func (p *Pipeline) attempt(ctx, soft context.Context, until oplog.OpTime) error {
	src, err := p.askSource(ctx)
	if err != nil {
		return fmt.Errorf("ask the source for its set: %w", err)
	}
	if err := p.ensureLink(ctx, src); err != nil {
		return err
	}
	link, err := p.acquire(ctx)
	if err != nil {
		return err
	}
	st := link.State()
	if err := p.checkLink(st, src); err != nil {
		return err
	}
	if st.Routing != applier.Routing {
		if err := link.SetRouting(ctx, applier.Routing); err != nil {
			return err
		}
	}
	ahead, err := p.resize(ctx, link)
	if err != nil {
		return err
	}
	switch {
	case !ahead.IsNull():
		until = ahead
	case p.cfg.part != nil:
		until = p.cfg.part.until
	}
	p.catchesUp = false
	if to := p.drainTo(st); soft.Err() != nil && !to.IsNull() {
		p.catchesUp, until = true, to
	}
	if err := p.leaveOut(ctx, link); err != nil {
		return err
	}
	if st.Copy == nil {
		return p.follow(ctx, soft, link, src, until)
	}
	if st.Copy.Phase == checkpoint.Copying {
		err = p.copy(ctx, soft, link, src)
	} else {
		err = p.follow(ctx, soft, link, src, until)
	}
	// The copier does not tell of a member that it could not even ask.
	if initialsync.Void(err) && (st.Copy.Phase == checkpoint.Copying || p.isCopying()) {
		return p.copyAnew(ctx, link, st.Copy, err)
	}
	return err
}

// acquire acquires the link's lease under the next term.
func (p *Pipeline) acquire(ctx context.Context) (*checkpoint.Link, error) {
	link, err := p.store.Acquire(ctx, p.term)
	if err != nil {
		return nil, err
	}
	p.term = link.Term()
	if p.cfg.part == nil && p.cfg.Copy.SpoolDir != "" {
		// Links of one name on two targets do not share a folder.
		sum := sha256.Sum256([]byte(link.Instance()))
		p.spoolDir = filepath.Join(p.cfg.Copy.SpoolDir, hex.EncodeToString(sum[:8]))
	}
	return link, nil
}

// follow applies the log.
func (p *Pipeline) follow(ctx, soft context.Context, link *checkpoint.Link, src checkpoint.Source, until oplog.OpTime) error {
	a, err := p.newAttempt(ctx, soft, link, src, until)
	if err != nil {
		return err
	}
	return a.run(ctx, soft)
}

// ensureLink makes the link if it does not exist.
func (p *Pipeline) ensureLink(ctx context.Context, src checkpoint.Source) error {
	if p.term != 0 {
		return nil
	}
	_, found, err := p.store.Load(ctx)
	if err != nil || found {
		return err
	}
	st := checkpoint.State{Source: src, Writers: p.cfg.Writers, Routing: applier.Routing, Fingerprint: p.cfg.Fingerprint()}
	if p.cfg.Copy.Wanted {
		c, wall, err := p.beginCopy(ctx)
		if err != nil {
			return err
		}
		st.Applied, st.AppliedWall, st.FetchFrom, st.Copy = c.Begin, wall, c.FetchFrom, &c
		if err := p.store.Create(ctx, st); err != nil {
			return err
		}
		p.copies++
		return nil
	}
	start, err := p.cfg.StartAt.find(ctx, p.source)
	if err != nil {
		return fmt.Errorf("find where the link begins: %w", err)
	}
	st.Applied, st.AppliedWall, st.FetchFrom, st.CopiedUntil = start.Begin, start.Wall, start.FetchFrom, p.cfg.CopiedUntil
	return p.store.Create(ctx, st)
}

// checkLink refuses a link that is not the one that was meant.
func (p *Pipeline) checkLink(st checkpoint.State, src checkpoint.Source) error {
	if src.ReplicaSetID.Type != 0 && st.Source.ReplicaSetID.Type != 0 && !src.ReplicaSetID.Equal(st.Source.ReplicaSetID) {
		return fmt.Errorf("link %q follows set %s (%s), the source is %s (%s): %w", p.cfg.Link,
			st.Source.SetName, st.Source.ReplicaSetID, src.SetName, src.ReplicaSetID, checkpoint.ErrOtherSource)
	}
	if want := p.cfg.Fingerprint(); st.Fingerprint != want {
		return fmt.Errorf("link %q: %w: with %s, now %s", p.cfg.Link, ErrSettings, st.Fingerprint, want)
	}
	return nil
}

// resize gives the link the configured number of lanes. While its lanes are not
// all at the checkpoint it returns the entry up to which the old number of them
// has to go on.
func (p *Pipeline) resize(ctx context.Context, link *checkpoint.Link) (until oplog.OpTime, err error) {
	st := link.State()
	if st.Writers == p.cfg.Writers {
		return oplog.OpTime{}, nil
	}
	ahead := st.Furthest()
	if ahead.After(st.Applied) {
		return ahead, nil
	}
	cp := checkpoint.Progress{Applied: st.Applied, AppliedWall: st.AppliedWall, FetchFrom: st.FetchFrom}
	if err := link.Resize(ctx, cp, p.cfg.Writers); err != nil {
		return oplog.OpTime{}, err
	}
	return oplog.OpTime{}, lease.ErrSpent
}

// progress returns how far the link is.
func (p *Pipeline) progress() checkpoint.Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live.progress
}
