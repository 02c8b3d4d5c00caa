package applier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// slowOps limits the operations of a flush that applies them one by one, where they
	// can be cut that small.
	slowOps = 64
	// slowFlush is the duration of a flush above which flushes are made smaller.
	slowFlush = time.Second
	// smallest is the minimum to which slow flushes reduce a flush, in documents.
	smallest = 16
	// unguardedFlushes is for how many flushes guards are left out after one has failed:
	// in a log that moves fields they fail repeatedly.
	unguardedFlushes = 64
	// patientFlushes is for how many flushes the size stays unchanged after a smaller one
	// was not faster.
	patientFlushes = 256
	// crowdedPart is the fraction (1/n) of RetryFor after which a flush is split: smaller
	// flushes meet fewer conflicts.
	crowdedPart = 10
	// thinOps is how many operations a command of a thin flush has at most, in the mean, and
	// thinPart how many times as many documents the flush after it may have.
	thinOps  = 8
	thinPart = 2
)

// writer writes through one lane. It is for one goroutine at a time.
type writer struct {
	*Applier
	name string
	lane lane
	// verify: flushes verify the positions of all other lanes.
	verify bool
	// limit is the current limit of documents in a flush.
	limit int
	// thin: the last flush, which was not small, had few operations in each command. Larger ones need fewer commands.
	thin    bool
	planner *plan.Planner
	// failed counts a retry. It is made once, so that a flush does not allocate it.
	failed func(error)
	// unguarded is for how many more flushes guards are switched off.
	unguarded int
	// slowest is the last flush that took too long, patience for how many more flushes
	// the size stays unchanged.
	slowest  flushed
	patience int
	// kept are the capped collections for which refused deletes were logged.
	kept map[oplog.Namespace]bool
	// refusedName is the operation for which the target has last refused a name with a dollar.
	refusedName checkpoint.Position
	// refusedKey is the one that an index has last refused which was not there any more.
	refusedKey checkpoint.Position
	// cmds and bodies are memory for the commands of a flush.
	cmds   []mongo.Command
	bodies []byte
	// tallies is memory for the namespaces of a flush.
	tallies []NamespaceOps
	// sampled is memory for the operations of a flush that are sampled; so many come before
	// the next of them.
	sampled   []SampledOp
	unsampled int
}

func newWriter(a *Applier, name string, l lane) *writer {
	w := &writer{Applier: a, name: name, lane: l, limit: a.cfg.FlushDocs, planner: plan.NewPlanner(a.cfg.Plan), kept: map[oplog.Namespace]bool{}}
	w.failed = func(error) {
		w.metrics.retries.Inc()
		w.stats.retries.Add(1)
	}
	return w
}

// isAnnounced reports whether an earlier term had announced the operation at a position,
// outside of a transaction.
func (w *writer) isAnnounced(at checkpoint.Position) bool {
	begun := w.lane.Announced()
	return begun != (checkpoint.Position{}) && at.Compare(begun) <= 0
}

// most is how many documents the next flush may have. A limit that an operator has lowered is
// not exceeded.
func (w *writer) most() int {
	if w.thin && w.cfg.FlushDocs >= defaultFlushDocs {
		return thinPart * w.limit
	}
	return w.limit
}

func isDirect(op *plan.Op) bool { return op.Collection != nil && op.Collection.Direct }

// write writes a span to the target and moves the lane after it.
func (w *writer) write(ctx context.Context, s span) error {
	defer w.planner.Release()
	for from := 0; from < len(s.ops); {
		to := from + 1
		if s.alike {
			to = len(s.ops)
		}
		for to < len(s.ops) && isDirect(&s.ops[to]) == isDirect(&s.ops[from]) {
			to++
		}
		part := s.part(from, to)
		if s.uncertain && !isDirect(&s.ops[from]) {
			if err := w.undecided(ctx, &part); err != nil {
				return err
			}
		}
		var err error
		if isDirect(&s.ops[from]) {
			err = w.direct(ctx, part)
		} else {
			err = w.transact(ctx, part)
		}
		if err != nil {
			return err
		}
		from = to
	}
	return nil
}

// undecided handles operations that were announced to be applied outside of transactions,
// on a collection that transactions can write to by now: it was replaced by hand. If the
// run continues after divergences they are applied again, idempotently.
func (w *writer) undecided(ctx context.Context, s *span) error {
	d := divergence(&s.ops[0], fmt.Sprintf("the collection was replaced after %d operations outside of transactions (it was capped, for example) had been started; "+
		"it is unknown whether they were applied", len(s.ops)))
	if !w.cfg.ReportDivergence {
		return d
	}
	if err := w.keepMet(ctx, d); err != nil {
		return err
	}
	for i := range s.ops {
		s.ops[i].Mode = plan.ModeCopied
	}
	return nil
}

// transact writes a span in one transaction, or in several if one is not enough.
func (w *writer) transact(ctx context.Context, s span) error {
	start := time.Now()
	err := errOneByOne
	if !w.learned.meets(s.ops) {
		err = w.flush(ctx, s)
	}
	if err == nil {
		w.adapt(time.Since(start), len(s.ops))
		return nil
	}
	verdict := judge(err)
	if _, mayEase := errors.AsType[*easableError](err); mayEase { // of a Modify, which names its operation
		verdict = single
	}
	switch verdict {
	case smaller:
		w.limit = max(1, min(w.limit, len(s.ops))/2)
		return w.halves(ctx, s, err, w.transact)
	case single:
		if len(s.ops) > slowOps {
			if a, b, ok := s.split(); ok {
				if err := w.transact(ctx, a); err != nil {
					return err
				}
				return w.transact(ctx, b)
			}
		}
		w.cfg.Observer.Log(slog.LevelDebug, "operations are applied one by one", slog.String(keyLane, w.name),
			slog.Int(keyOps, len(s.ops)), slog.String(keyFrom, s.ops[0].At.String()), slog.Any(keyCause, err))
		return w.slow(ctx, s)
	default:
		return err
	}
}

// slow writes a span one by one, in as few transactions as the target accepts.
func (w *writer) slow(ctx context.Context, s span) error {
	tries := w.tries(&s)
	for {
		var t tally
		start := time.Now()
		txn := w.lane.Session().Begin()
		err := txn.End(ctx, false, w.oneByOne(ctx, txn, s, &t))
		if err == nil {
			w.committed(s, &t, time.Since(start))
			return nil
		}
		err = tries.wait(ctx, err)
		switch {
		case err == nil:
			continue
		case judge(err) == smaller:
			return w.halves(ctx, s, err, w.slow)
		}
		eased, err := w.ease(ctx, err)
		if !eased {
			return err
		}
		tries = w.tries(&s)
	}
}

// halves writes a span in two transactions, because one was too large. A source
// transaction is split as well: that it arrives matters more than that it is atomic.
func (w *writer) halves(ctx context.Context, s span, cause error, write func(context.Context, span) error) error {
	if len(s.ops) == 1 {
		return opError(&s.ops[0], cause)
	}
	a, b, ok := s.split()
	if !ok {
		w.logNotAtomic(s.ops[0].At.OpTime, len(s.ops), cause.Error())
		s.dissolve()
		a, b, _ = s.split()
	}
	if err := write(ctx, a); err != nil {
		return err
	}
	return write(ctx, b)
}

// adapt changes the size of flushes by the duration of the last one. If a smaller flush
// is not faster, the latency to the target dominates, and small flushes would only lower
// the throughput.
func (w *writer) adapt(took time.Duration, ops int) {
	switch {
	case took > slowFlush && ops > smallest:
		if w.patience > 0 {
			w.patience--
			return
		}
		if was := w.slowest; ops*3 <= was.ops*2 && took*4 >= was.took*3 {
			w.limit, w.patience, w.slowest = w.cfg.FlushDocs, patientFlushes, flushed{}
			return
		}
		w.slowest = flushed{took, ops}
		w.limit = max(smallest, min(w.limit, ops)/2)
		w.limit = min(w.limit, w.cfg.FlushDocs)
	case took < slowFlush/4 && w.limit < w.cfg.FlushDocs:
		w.slowest = flushed{}
		w.limit = min(w.cfg.FlushDocs, w.limit+w.limit/4+1)
	}
}

// flushed is the duration of a flush.
type flushed struct {
	took time.Duration
	ops  int
}

// flush writes a span as planned, in one transaction.
func (w *writer) flush(ctx context.Context, s span) error {
	opt := w.cfg.Plan
	if w.unguarded > 0 {
		w.unguarded--
		opt.NoGuards = true
	}
	opt.NoDollars = w.learned.anew.Load()
	for {
		err := w.flushWith(ctx, s, opt)
		short, ok := errors.AsType[*shortError](err)
		switch {
		case ok && short.guarded && !opt.NoGuards:
			w.unguarded = unguardedFlushes
			opt.NoGuards = true
		case servererr.IsDollarName(err) && !opt.NoPipelines:
			// Names that the entries show are tried first: a pipeline is refused for one that only the document has.
			opt.NoDollars, opt.NoPipelines = true, opt.NoDollars
			w.learnDollars(s.ops[0].At)
		default:
			return err
		}
	}
}

// flushWith writes a span as planned with opt.
func (w *writer) flushWith(ctx context.Context, s span, opt plan.Options) error {
	w.planner.SetOptions(opt)
	p, err := w.planner.Build(s.ops)
	if err != nil {
		return err
	}
	w.thin = !opt.NoDollars && len(s.ops) > w.limit/2 && thinOps*len(p.Writes) > len(s.ops)
	tries := w.tries(&s)
	for {
		var t tally
		start := time.Now()
		txn := w.lane.Session().Begin()
		err := txn.End(ctx, false, w.planned(ctx, txn, s, p.Writes, &t))
		if err == nil {
			w.committed(s, &t, time.Since(start))
			return nil
		}
		if err := tries.wait(ctx, err); err != nil {
			return err
		}
	}
}

// oneByOne applies the operations of a span in a transaction, each after reading the
// document that it meets.
func (w *writer) oneByOne(ctx context.Context, txn *mongo.Txn, s span, t *tally) error {
	if err := w.move(ctx, txn, s.last()); err != nil {
		return err
	}
	for i := range s.ops {
		if err := w.one(ctx, inTxn{txn}, &s.ops[i], t); err != nil {
			return err
		}
	}
	return w.keepDiverged(ctx, txn, t.diverged, bson.NilObjectID)
}

// move moves the lane, and verifies the positions of the others.
func (w *writer) move(ctx context.Context, txn *mongo.Txn, next checkpoint.Position) error {
	err := w.lane.Move(ctx, txn, next)
	if err == nil && w.verify {
		err = w.link.Verify(ctx, txn, w.tracker.positions())
	}
	return err
}

// committed records that a span is in the target.
func (w *writer) committed(s span, t *tally, took time.Duration) {
	w.lane.Moved(s.last())
	w.record(s, t, took)
}

// announce announces a span in the lane's document, complete records that it is
// applied.
func (w *writer) announce(ctx context.Context, s span) error {
	var others []checkpoint.Position
	if w.verify {
		others = w.tracker.positions()
	}
	return w.lane.Announce(ctx, s.last(), others)
}

func (w *writer) complete(ctx context.Context, s span) error {
	return w.lane.Complete(ctx, s.last())
}

// tries limits the retries of a span while its failures are transient. After a part of
// the time a span that can be split is tried in two halves instead.
type tries struct {
	w        *writer
	at       checkpoint.Position
	ops      int
	divided  bool // the span can be split in two
	first    *plan.Op
	attempts mongo.Tries
}

func (w *writer) tries(s *span) tries {
	t := tries{w: w, at: s.ops[0].At, ops: len(s.ops), first: &s.ops[0]}
	limit := w.cfg.RetryFor
	if _, _, t.divided = s.split(); t.divided {
		limit /= crowdedPart
	}
	passes := passesFlush
	if len(s.ops) == 1 {
		passes = passesAlone
	}
	t.attempts = w.retry(limit, passes).Start()
	return t
}

// passesFlush reports whether a flush may be retried unchanged, passesAlone whether one
// with a single operation may: a single operation that was too much may succeed later,
// when the target has more room.
func passesFlush(err error) bool { return judge(err) == again }

func passesAlone(err error) bool {
	v := judge(err)
	return v == again || v == smaller
}

// wait returns nil if another try is to follow err.
func (t *tries) wait(ctx context.Context, err error) error {
	err = t.attempts.Wait(ctx, err)
	stuck, ok := errors.AsType[*mongo.StuckError](err)
	switch {
	case !ok:
		return err
	case t.divided:
		return &crowdedError{stuck.Err}
	}
	if _, named := errors.AsType[*OpError](stuck.Err); t.ops == 1 && !named {
		stuck.Err = opError(t.first, stuck.Err)
	}
	return t.w.stuck(stuck, t.at, t.ops)
}

// retry counts the retries.
func (w *writer) retry(limit time.Duration, passes func(error) bool) mongo.Retry {
	return mongo.Retry{For: limit, Again: passes, Failed: w.failed}
}

func (w *writer) stuck(e *mongo.StuckError, at checkpoint.Position, ops int) error {
	return &StuckError{Lane: w.name, At: at, Ops: ops, Tried: e.Tried, Err: e.Err}
}

// tally collects the other results of a transaction, to be counted once it has committed.
type tally struct {
	docs, deletesEmpty, ignored int
	// listed and listedDeletes are how many updates and deletes have no statement of their own.
	listed, listedDeletes int
	diverged              []*DivergenceError
	// refused are deletes from capped collections that the target refuses to clients.
	refused []*plan.Write
}

func (w *writer) record(s span, t *tally, took time.Duration) {
	ops := s.ops
	w.metrics.flushes.Inc()
	w.metrics.flushSeconds.Observe(took.Seconds())
	w.took(took, ops)
	w.metrics.flushDocs.Observe(float64(t.docs))
	w.count(ops)
	w.stats.flushes.Add(1)
	if n := len(ops) - t.docs; n > 0 {
		w.metrics.coalesced.Add(float64(n))
		w.stats.coalesced.Add(int64(n))
	}
	w.metrics.listed.Add(float64(t.listed))
	w.metrics.listedDeletes.Add(float64(t.listedDeletes))
	w.stats.listed.Add(int64(t.listed))
	w.stats.listedDeletes.Add(int64(t.listedDeletes))
	w.recordTally(t)
	w.arrived(len(ops), s.wall)
}

// arrived reports how long operations took to arrive, by the wall clock of the oldest.
// The two clocks may be on two machines.
func (a *Applier) arrived(ops int, wall int64) {
	if wall == 0 {
		return
	}
	now := time.Now()
	a.metrics.commitToApplied.Observe(max(0, now.Sub(time.UnixMilli(wall)).Seconds()))
	if a.cfg.OnFlush != nil {
		a.cfg.OnFlush(ops, bson.DateTime(wall), now)
	}
}

func (w *writer) recordTally(t *tally) {
	w.metrics.deletesEmpty.Add(float64(t.deletesEmpty))
	w.stats.deletesEmpty.Add(int64(t.deletesEmpty))
	w.metrics.ignored.Add(float64(t.ignored))
	w.stats.ignored.Add(int64(t.ignored))
	for _, d := range t.diverged {
		w.diverged(d)
	}
}

// diverged reports a divergence after which the run continues.
func (a *Applier) diverged(d *DivergenceError) {
	a.metrics.divergences.Inc()
	a.stats.divergences.Add(1)
	a.cfg.Observer.Log(slog.LevelWarn, Diverged, slog.String(keyNS, string(d.NS)), slog.String(keyID, showID(d.ID)),
		slog.String(keyOpTime, d.OpTime.String()), slog.String(keyWhat, d.What))
}

// divergence returns d if it ends the run, and otherwise keeps it for the report.
func (w *writer) divergence(d *DivergenceError, t *tally) error {
	if !w.cfg.ReportDivergence {
		return d
	}
	t.diverged = append(t.diverged, d)
	return nil
}
