package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/buffer"
	"github.com/oplogrep/replicator/buffer/spool"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/fetcher"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/initialsync/overflow"
	"github.com/oplogrep/replicator/internal/memory"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/pipeline/stages"
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
	left  chan struct{}
	leave func()
	// stages apply the entries.
	stages *stages.Stages
	// unbrake is called when the attempt has ended: nothing of it is in flight any more.
	unbrake func()
	// start is the link's progress when the attempt started.
	start checkpoint.Progress
}

// newAttempt creates the stages for a link under a lease.
func (p *Pipeline) newAttempt(ctx, soft context.Context, link *checkpoint.Link, src checkpoint.Source, until oplog.OpTime) (*attempt, error) {
	st := link.State()
	a := &attempt{p: p, link: link, source: src, read: make(chan struct{}), left: make(chan struct{}), start: st.Progress()}
	a.start.Ops = p.monitor.Progress().Ops
	a.leave = sync.OnceFunc(func() { close(a.left) })
	leaveLast := time.Duration(0)
	switch { // a part that cannot be merged now is merged after the build
	case p.cfg.part != nil && !p.cfg.part.until.IsNull():
		a.leave() // the link waits for it
	case p.merges && !p.catchesUp:
		leaveLast = mergeWait // the part waits; on the way there, builds have no time limit
	}
	a.ending, a.end = context.WithCancelCause(context.WithoutCancel(ctx))
	if st.Copy != nil && st.Copy.Phase != checkpoint.Copied {
		a.copy = st.Copy
	}
	if err := a.openQueue(soft, src, st, until); err != nil {
		return nil, err
	}
	passOver, err := guard.PassOver(ctx, p.source, p.target, p.cfg.MetaDB, st.Back, p.readFrom(st))
	if err != nil {
		return nil, err
	}
	report, err := p.reporter()
	if err != nil {
		return nil, err
	}
	cfg := p.cfg.Stages(link, p.target, p.resyncs.Scope(), p.memory())
	cfg.Start, cfg.Feedback, cfg.Commands = a.start, report, p.commands()
	b := &cfg.Batcher
	b.PassOver, b.Release, b.Meter, b.Drain = passOver, a.release, &p.monitor.Gauges().Batcher, a.ending.Done()
	if p.catchesUp {
		b.Drain = soft.Done() // A drain continues to read.
	}
	c := &cfg.Checkpoint
	c.Moved, c.Advanced, c.Source = p.monitor.Moved, a.advanced, func() checkpoint.Source { return p.monitor.Source(src) }
	w := &cfg.Applier
	w.CutEvery, w.CutNow, w.OnCut, w.Repairs = p.cfg.CutInterval, p.cutNow, p.toldCut, p.repairs.groups()
	w.Leave, w.LeaveLast, w.Release, w.Work = a.left, leaveLast, a.release, p.work()
	w.Brake, a.unbrake = p.brakeFor(soft)
	if a.stages, err = stages.New(ctx, cfg); err != nil {
		a.unbrake()
		return nil, err
	}
	p.monitor.Began(monitor.Attempt{
		State: st, Set: src.SetName, Start: a.start, Counts: a.stages.Stats, Spool: a.spool, Queue: a.queue,
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
		loops = append(loops, func(ctx context.Context) error { return a.log.NoteHeardLoop(ctx, a.p.heard) })
	}
	return a.p.alongside(ctx, a.link, func(ctx context.Context) error { return a.apply(ctx, soft) }, loops...)
}

// alongside runs work under a lease, concurrently with the loops that every attempt
// needs and with those given.
func (p *Pipeline) alongside(ctx context.Context, link *checkpoint.Link, work func(context.Context) error, loops ...func(context.Context) error) error {
	loops = append(loops, p.monitor.WindowLoop, link.TouchLoop)
	if p.cfg.part == nil { // otherwise, the pipeline of the whole link does this
		loops = append(loops, p.monitor.LackingLoop)
		if p.guard != nil {
			loops = append(loops, p.guard.Run)
		}
	}
	return stages.Alongside(ctx, work, loops...)
}

// apply reads the oplog and applies it.
func (a *attempt) apply(ctx, soft context.Context) error {
	if !a.p.catchesUp {
		// Entries that the delay still withholds then are dropped.
		defer a.endWith(ctx, soft)()
	}
	if err := a.tryFinish(ctx, a.start.Applied); err != nil {
		return err
	}
	return a.stages.Run(ctx, a.readAll)
}

// readAll reads the oplog from the spool or from a member, until the attempt is to end.
func (a *attempt) readAll(ctx context.Context, out chan<- oplog.Reply) error {
	if a.log != nil {
		head, stop := a.untilEnding(ctx)
		defer stop()
		return stages.Named("spool", func() error { return a.log.Read(ctx, head, a.until, out) })()
	}
	g, ctx := errgroup.WithContext(ctx)
	head, stop := a.untilEnding(ctx)
	defer stop()
	fetched := make(chan oplog.Reply)
	g.Go(stages.Named("fetcher", func() error {
		defer close(a.read)
		if err := a.p.monitor.Fetch(head, a.fetcher, fetched); !errors.Is(err, errDrain) {
			return err
		}
		return nil
	}))
	g.Go(stages.Named("buffer", func() error { return a.queue.Run(ctx, fetched, out) }))
	return g.Wait()
}

// untilEnding returns a context that is also done once no more entries are to be read.
func (a *attempt) untilEnding(ctx context.Context) (head context.Context, stop func()) {
	head, end := context.WithCancelCause(ctx)
	detach := context.AfterFunc(a.ending, func() { end(errDrain) })
	return head, func() {
		detach()
		end(nil)
	}
}
