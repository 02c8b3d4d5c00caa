package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/batcher"
	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/initialsync/overflow"
	"github.com/oplogrep/replicator/internal/memory"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
	"github.com/oplogrep/replicator/pipeline/monitor"
)

// mergeWait is how long a link that has come to the entry where a part is to be merged waits
// there for an index build.
const mergeWait = 10 * time.Second

// attempt is one term of the link's lease, with the stages that work under it.
type attempt struct {
	p       *Pipeline
	link    *checkpoint.Link
	source  checkpoint.Source
	fetcher *fetcher.Fetcher
	queue   *buffer.Queue
	// overflow spools the oplog when the target does not keep up, nil if it is spooled, or
	// cannot be. read is closed when the fetcher has ended.
	overflow *overflow.Attempt
	read     chan struct{}
	// release releases bytes of fetched entries.
	release func(int64)
	// log and its spool replace fetcher and queue while the oplog is spooled on disk;
	// until is the entry after which reading ends. copy is the copy that is not known
	// to be consistent yet, nil if there is none.
	log   *initialsync.Log
	spool *spool.Spool
	until oplog.OpTime
	copy  *checkpoint.Copy
	// ending is done when no more entries are to be read; end cancels it.
	ending context.Context //nolint:containedctx // It says when, for stages that are made before they run.
	end    context.CancelCauseFunc
	// left is closed once the attempt is to end before index builds do; leave closes it. The
	// next attempt repeats their commits, and all other collections continue.
	left     chan struct{}
	leave    func()
	batcher  *batcher.Batcher
	applier  *applier.Applier
	feedback *feedback.Feedback
	// unbrake is called when the attempt has ended: nothing of it is in flight any more.
	unbrake func()
	// start is the link's progress when the attempt started.
	start checkpoint.Progress
}

// newAttempt creates the stages for a link under a lease.
func (p *Pipeline) newAttempt(ctx, soft context.Context, link *checkpoint.Link, src checkpoint.Source, until oplog.OpTime) (*attempt, error) {
	st := link.State()
	a := &attempt{p: p, link: link, source: src, read: make(chan struct{}), left: make(chan struct{})}
	a.leave = sync.OnceFunc(func() { close(a.left) })
	leaveLast := time.Duration(0)
	switch { // a part that cannot be merged now is merged after the build
	case p.cfg.part != nil && !p.cfg.part.until.IsNull():
		a.leave() // the link waits for it
	case p.merges && !p.catchesUp:
		leaveLast = mergeWait // the part waits; on the way there it takes what it takes
	}
	a.ending, a.end = context.WithCancelCause(context.WithoutCancel(ctx))
	if st.Copy != nil && st.Copy.Phase != checkpoint.Copied {
		a.copy = st.Copy
	}
	if err := a.openQueue(soft, src, st, until); err != nil {
		return nil, err
	}
	share := p.memory()
	drain := a.ending.Done()
	if p.catchesUp {
		drain = soft.Done() // A drain continues to read.
	}
	passOver, err := p.passOver(ctx, st)
	if err != nil {
		return nil, err
	}
	a.batcher, err = batcher.New(batcher.Config{
		MaxOps: p.cfg.BatchOps, MaxBytes: p.cfg.BatchBytes, Delay: p.cfg.Delay, Drain: drain,
		PassOver: passOver, ApplyAfter: st.Applied, SpillDir: p.cfg.SpillDir, MemoryBytes: share.Txn,
		Release: a.release, Observer: p.cfg.Observer, Registry: p.cfg.Registry, Meter: &p.monitor.Gauges().Batcher,
	})
	if err != nil {
		return nil, err
	}
	cat, err := catalog.Load(ctx, p.target, nil)
	if err != nil {
		return nil, fmt.Errorf("read the target's collections: %w", err)
	}
	commands, err := p.commands(link, cat, st.Copy != nil)
	if err != nil {
		return nil, err
	}
	internal, err := plan.AskInternalApply(ctx, p.target, p.cfg.MetaDB)
	if err != nil {
		return nil, err
	}
	if a.feedback, err = p.reporter(); err != nil {
		return nil, err
	}
	start := st.Progress()
	start.Ops = p.monitor.Progress().Ops
	brake, unbrake := p.brakeFor(soft)
	a.applier, err = applier.New(applier.Config{
		Target: p.target, Checkpoint: link, Catalog: cat, Scope: p.resyncs.Scope(), Commands: commands, MetaDB: p.cfg.MetaDB, Link: p.cfg.Link,
		Relaxed: p.cfg.Relaxed, ReportDivergence: p.cfg.ReportDivergence, CopiedUntil: st.CopiedUntil,
		Plan:      plan.Options{InternalApply: internal, Coalesce: true},
		FlushDocs: p.cfg.FlushDocs, FlushBytes: p.cfg.FlushBytes, CoalesceWindow: p.cfg.CoalesceWindow,
		CutEvery: p.cfg.CutInterval, CutNow: p.cutNow, OnCut: p.toldCut, Repairs: p.repairs.groups(),
		ShareOps: p.cfg.ShareOps, ShareRest: p.cfg.ShareRest, Leave: a.left, LeaveLast: leaveLast,
		IndexBuilds: p.cfg.Copy.IndexWorkers, IndexSlots: p.cfg.slots, WindowBytes: share.Window, Release: a.release, Brake: brake, Start: start, OnFlush: p.cfg.OnFlush,
		Observer: p.cfg.Observer, Registry: p.cfg.Registry, Work: p.work(),
	})
	if err != nil {
		unbrake()
		return nil, err
	}
	a.unbrake = unbrake
	a.start = start
	p.monitor.Began(monitor.Attempt{
		State: st, Set: src.SetName, Start: start, Counts: a.applier.Stats, Spool: a.spool, Queue: a.queue,
	})
	return a, nil
}

// work is what the applier of each attempt measures its work with.
func (p *Pipeline) work() applier.Work {
	g := p.monitor.Gauges()
	return applier.Work{
		Dispatcher: &g.Dispatcher, Lanes: &g.Lanes, Latency: g.Latency, Tally: g.Namespaces.Count,
		SourceClock: func() (time.Time, bool) {
			c, _ := p.watcher.Clock()
			return c.Shows(time.Now())
		},
	}
}

// memory returns the shares of the present attempt.
func (p *Pipeline) memory() memory.Shares {
	if p.cfg.part != nil {
		return memory.SharesOfPart()
	}
	s := memory.SharesOf(p.cfg.Memory, p.resyncs.Running())
	if p.cfg.WindowBytes > 0 {
		s.Window = p.cfg.WindowBytes
	}
	return s
}

// readFrom returns the entry to read from.
func (p *Pipeline) readFrom(st checkpoint.State) oplog.OpTime {
	if !p.earlier.IsNull() && !st.Applied.Before(p.earlierFor) {
		// The source need not keep that entry any longer.
		p.earlier, p.earlierFor = oplog.OpTime{}, oplog.OpTime{}
	}
	if !p.earlier.IsNull() && p.earlier.Before(st.FetchFrom) {
		return p.earlier
	}
	return st.FetchFrom
}

// fetchConfig says how the source is read, from the entry that a state needs.
func (p *Pipeline) fetchConfig(src checkpoint.Source, st checkpoint.State) fetcher.Config {
	cfg := fetcher.Config{
		From: p.readFrom(st), Resolver: p.resolver, Watcher: p.watcher, MirrorMember: p.cfg.mirrorMember,
		Reader: fetcher.ReaderConfig{
			AwaitTime: p.cfg.Await, ReplyBytes: buffer.ReplyBytes(p.memory().Buffer), Observer: p.cfg.Observer, Registry: p.cfg.Registry,
			Meter: &p.monitor.Gauges().Fetcher,
		},
	}
	if id, ok := src.ReplicaSetID.ObjectIDOK(); ok {
		cfg.Reader.ReplicaSetID = id
	}
	return cfg
}

// reporter returns the stage that reports the link's progress to the source. It is the
// same one for all attempts: a report is never taken back.
func (p *Pipeline) reporter() (*feedback.Feedback, error) {
	if p.feedback != nil {
		return p.feedback, nil
	}
	f, err := feedback.New(feedback.Config{
		Mode: p.cfg.Feedback, MemberID: p.cfg.MemberID, Upstream: p.monitor, Primary: p.source, Link: p.cfg.Link, DB: p.cfg.MetaDB,
		KeepAlive: p.cfg.KeepAlive, Observer: p.cfg.Observer, Registry: p.cfg.Registry, Meter: &p.monitor.Gauges().Feedback,
	})
	if err != nil {
		return nil, fmt.Errorf("set up the feedback: %w", err)
	}
	p.feedback = f
	return f, nil
}

// run runs the stages until soft is done and they are drained, or one of them
// fails, or ctx is done.
func (a *attempt) run(ctx, soft context.Context) error {
	defer a.unbrake()
	loops := []func(context.Context) error{func(ctx context.Context) error { return a.resyncLoop(ctx, a.link) }}
	if a.log != nil {
		loops = append(loops, a.drainedLoop)
	}
	if a.overflow != nil {
		loops = append(loops, a.overflow.Run)
	}
	if a.log != nil && a.p.cfg.RelayBytes > 0 {
		loops = append(loops, a.p.heardLoop)
	}
	return a.p.alongside(ctx, a.link, func(ctx context.Context) error { return a.stages(ctx, soft) }, loops...)
}

// alongside runs work under a lease, concurrently with the loops that every attempt
// needs and with those given. They end after work has. If one of them fails, it cancels
// work with that error.
func (p *Pipeline) alongside(ctx context.Context, link *checkpoint.Link, work func(context.Context) error, loops ...func(context.Context) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	working, end := context.WithCancelCause(ctx)
	loops = append(loops, p.monitor.WindowLoop, link.TouchLoop)
	if p.cfg.part == nil { // otherwise, the pipeline of the whole link does this
		loops = append(loops, p.monitor.LackingLoop)
		if p.guard != nil {
			loops = append(loops, p.guard.Run)
		}
	}
	var side errgroup.Group
	for _, loop := range loops {
		side.Go(func() error {
			err := loop(working)
			if err == nil || working.Err() != nil {
				return nil //nolint:nilerr // It was told to end.
			}
			stop(err)
			return err
		})
	}
	err := work(ctx)
	if cause := context.Cause(ctx); cause != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = cause
	}
	end(nil)
	if failed := side.Wait(); err == nil {
		err = failed
	}
	return err
}

// stages runs the stages that read and apply the oplog.
func (a *attempt) stages(ctx, soft context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	head, stopHead := context.WithCancelCause(ctx)
	defer stopHead(nil)
	if !a.p.catchesUp {
		// Entries that the delay still withholds then are dropped.
		defer a.endWith(ctx, soft)()
	}
	//nolint:contextcheck // ending says when to stop, not what is stopped.
	defer context.AfterFunc(a.ending, func() { stopHead(errDrain) })()
	if err := a.tryFinish(ctx, a.start.Applied); err != nil {
		return err
	}

	fetched := make(chan oplog.Reply)
	queued := make(chan oplog.Reply)
	batches := make(chan batch.Batch, 1) // one is cut while another is applied
	applied := make(chan checkpoint.Applied)
	progress := make(chan checkpoint.Progress)
	check := checkpoint.NewCheckpointer(checkpoint.CheckpointerConfig{
		Link: a.link, Interval: a.p.cfg.CheckpointInterval, Start: a.start, Moved: a.p.monitor.Moved, Advanced: a.advanced,
		Source: func() checkpoint.Source { return a.p.monitor.Source(a.source) },
	})
	if a.log != nil {
		g.Go(named("spool", func() error { return a.log.Read(ctx, head, a.until, queued) }))
	} else {
		g.Go(named("fetcher", func() error {
			defer close(a.read)
			if err := a.p.monitor.Fetch(head, a.fetcher, fetched); !errors.Is(err, errDrain) {
				return err
			}
			return nil
		}))
		g.Go(named("buffer", func() error { return a.queue.Run(ctx, fetched, queued) }))
	}
	g.Go(named("batcher", func() error { return a.batcher.Run(ctx, queued, batches) }))
	g.Go(named("applier", func() error { return a.applier.Run(ctx, batches, applied) }))
	g.Go(named("checkpoint", func() error { return check.Run(ctx, applied, progress) }))
	g.Go(named("feedback", func() error { return a.feedback.Run(ctx, progress) }))
	return g.Wait()
}

// named adds the name of its stage to an error that does not name it.
func named(stage string, run func() error) func() error {
	return func() error {
		err := run()
		if err != nil && !strings.HasPrefix(err.Error(), stage+": ") {
			return fmt.Errorf("%s: %w", stage, err)
		}
		return err
	}
}
