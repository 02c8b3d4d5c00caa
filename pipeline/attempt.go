package pipeline

import (
	"context"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/feedback"
	"github.com/oplogrep/replicator/guard"
	"github.com/oplogrep/replicator/internal/memory"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/monitor"
	"github.com/oplogrep/replicator/pipeline/reading"
	"github.com/oplogrep/replicator/pipeline/stages"
)

// mergeWait is how long a link that has come to the entry where a part is to be merged waits
// there for an index build.
const mergeWait = 10 * time.Second

// attempt is one term of the link's lease, with the stages that work under it.
type attempt struct {
	p    *Pipeline
	link *checkpoint.Link
	// oplog reads the entries that the stages apply.
	oplog  *reading.Attempt
	stages *stages.Stages
	// unbrake is called when the attempt has ended: nothing of it is in flight any more.
	unbrake func()
	// start is the link's progress when the attempt started.
	start checkpoint.Progress
}

// newAttempt creates the stages for a link under a lease.
func (p *Pipeline) newAttempt(ctx, soft context.Context, link *checkpoint.Link, src checkpoint.Source, until oplog.OpTime) (*attempt, error) {
	st := link.State()
	a := &attempt{p: p, link: link, start: st.Progress()}
	a.start.Ops = p.monitor.Progress().Ops
	var err error
	if a.oplog, err = p.oplog.Attempt(ctx, soft, reading.AttemptConfig{Link: link, State: st, Source: src, Until: until}); err != nil {
		return nil, err
	}
	leaveLast := time.Duration(0)
	switch { // a part that cannot be merged now is merged after the build
	case p.cfg.part != nil && !p.cfg.part.of.Until.IsNull():
		a.oplog.Leave() // the link waits for it
	case p.merges && !p.catchesUp:
		leaveLast = mergeWait // the part waits; on the way there, builds have no time limit
	}
	passOver, err := guard.PassOver(ctx, p.source, p.target, p.cfg.MetaDB, st.Back, p.oplog.From(st))
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
	b.PassOver, b.Release, b.Meter, b.Drain = passOver, a.oplog.Release, &p.monitor.Gauges().Batcher, a.oplog.Ending()
	if p.catchesUp {
		b.Drain = soft.Done() // A drain continues to read.
	}
	c := &cfg.Checkpoint
	c.Moved, c.Advanced, c.Source = p.monitor.Moved, a.oplog.Advanced, func() checkpoint.Source { return p.monitor.Source(src) }
	w := &cfg.Applier
	w.CutEvery, w.CutNow, w.OnCut, w.Repairs = p.cfg.CutInterval, p.cutNow, p.toldCut, p.repairs.Groups()
	w.Leave, w.LeaveLast, w.Release, w.Work = a.oplog.Left(), leaveLast, a.oplog.Release, p.work()
	w.Brake, a.unbrake = p.brakeFor(soft)
	if a.stages, err = stages.New(ctx, cfg); err != nil {
		a.unbrake()
		return nil, err
	}
	p.monitor.Began(monitor.Attempt{
		State: st, Set: src.SetName, Start: a.start, Counts: a.stages.Stats, Spool: a.oplog.Spool(), Queue: a.oplog.Queue(),
	})
	return a, nil
}

// work measures the work of the applier of each attempt.
func (p *Pipeline) work() applier.Work {
	g := p.monitor.Gauges()
	return applier.Work{
		Dispatcher: &g.Dispatcher, Lanes: &g.Lanes, Latency: g.Latency, Tally: g.Namespaces.Count, Commanded: p.commanded,
		SourceClock: func() (time.Time, bool) {
			c, _ := p.watcher.Clock()
			return c.Shows(time.Now())
		},
	}
}

// commanded keeps the names of the namespaces that are counted those that exist.
func (p *Pipeline) commanded(op *oplog.Op) {
	known := &p.monitor.Gauges().Namespaces
	ns, to, err := op.Target()
	switch {
	case err != nil: // it could not have been carried out
	case op.Command == oplog.CommandDropDatabase:
		known.DroppedDatabase(op.NS.DB())
	case op.Command == oplog.CommandDrop:
		known.Dropped(ns)
	case op.Command == oplog.CommandRenameCollection:
		if _, in := p.cfg.Scope.Target(to); in {
			known.Renamed(ns, to)
		} else {
			known.Dropped(ns)
		}
	}
}

// unseen forgets the names of namespaces that something else may rename, or drop, from now on, or may have: another process that
// leads, another copy, or the part that copies a collection again.
func (p *Pipeline) unseen(which func(ns oplog.Namespace) bool) {
	p.monitor.Gauges().Namespaces.Forget(which)
}

func anyOf(oplog.Namespace) bool { return true }

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
	loops = append(loops, a.oplog.Loops()...)
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
		defer a.oplog.EndWith(ctx, soft)()
	}
	if err := a.oplog.TryFinish(ctx, a.start.Applied); err != nil {
		return err
	}
	return a.stages.Run(ctx, a.oplog.Read)
}
