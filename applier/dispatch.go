package applier

import (
	"context"
	"errors"
	"time"

	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
	"github.com/oplogrep/replicator/oplog/txn"
)

// dispatcher hands the operations of batches to lanes, and applies those itself that must
// be processed individually. It is one goroutine.
type dispatcher struct {
	*Applier
	// floor: everything at or before it is in the target, in whichever lane.
	floor checkpoint.Position
	// last is the last entry of the last batch: the log up to it was handed out. lastWall is
	// the source's clock there, in milliseconds since the epoch. Furthest is how far a lane,
	// or the barrier, was at the start.
	last     oplog.OpTime
	lastWall int64
	furthest oplog.OpTime
	// inDoubt: a transaction of the source may be prepared, and not ended, at last.
	inDoubt bool
	// starts are the lanes' positions at the start. Nothing is handed out twice after
	// that.
	starts []checkpoint.Position
	// announced are the last positions that the lanes had announced, outside of transactions,
	// at the start; barrierAnnounced is the barrier's. The zero Position means none.
	announced        []checkpoint.Position
	barrierAnnounced checkpoint.Position
	// handed are the last operations that each lane was given of the span that it had
	// announced, as long as more of it may follow.
	handed []checkpoint.Position
	routes routes
	early  *headStarts
	// backlog has the operations that wait for index builds. It counts as one more lane.
	backlog backlog
	shares  shares
	// repairing has the repairs that operators have requested.
	repairing repairing
	lost      lost
	// ready are operations for each lane that have not been handed over yet, all of the
	// batch current.
	ready   [][]work
	current *pending
	group   uint32
	// inner has the operations of the batch's transactions.
	inner opMemory
	// ended: the copy has ended, or there is none.
	ended bool
	// patience ends the wait for index builds of a drain, nil if it has no limit.
	patience <-chan time.Time
	// wall is the source's clock at the current item, in milliseconds since the epoch.
	wall int64
}

// errNotIndividually reports a bug of the batcher: an entry that must be processed
// individually, in a batch with others.
var errNotIndividually = errors.New("it must be processed individually, and shares a batch")

func newDispatcher(a *Applier) *dispatcher {
	d := &dispatcher{
		Applier: a, ready: make([][]work, len(a.writers)), starts: a.tracker.positions(),
		floor: a.link.State().Barrier,
	}
	if at := a.barrier.lane.Position(); at.Compare(d.floor) > 0 {
		d.floor = at
	}
	// Before a span was announced individually, everything before its entry was applied.
	for _, w := range a.writers {
		d.announced = append(d.announced, w.lane.Announced())
	}
	d.starts, d.announced = append(d.starts, checkpoint.Position{}), append(d.announced, checkpoint.Position{})
	d.handed = make([]checkpoint.Position, len(d.announced))
	d.barrierAnnounced = a.barrier.lane.Announced()
	if begun := d.barrierAnnounced; begun != (checkpoint.Position{}) {
		if before := (checkpoint.Position{OpTime: begun.OpTime, Op: -1}); before.Compare(d.floor) > 0 {
			d.floor = before
		}
	}
	st := a.link.State()
	d.last, d.lastWall, d.furthest = st.Applied, st.AppliedWall, st.Furthest()
	d.inDoubt = st.FetchFrom.Before(st.Applied) // until it is known
	d.repairing.alone = d.last
	d.ended = !a.meetsCopy()
	d.routes.init(a)
	return d
}

func (d *dispatcher) run(ctx context.Context, in <-chan batch.Batch) (err error) {
	defer func() {
		if err != nil {
			drop(in)
		}
	}()
	d.early = newHeadStarts(ctx, &d.cfg)
	defer d.early.end()
	d.backlog.begin(ctx)
	defer d.endBacklog()
	defer d.endRepair()
	if err := d.prepare(ctx); err != nil {
		return err
	}
	defer d.stats.meter.Enter(metric.Idle)
	due, endCuts := d.beginCuts()
	defer endCuts()
	for {
		changed := d.braked()
		if err := d.hold(ctx); err != nil {
			return err
		}
		d.stats.meter.Enter(metric.Idle)
		select {
		case <-due:
			if err := d.cutOrRest(ctx); err != nil {
				return err
			}
		case <-d.cuts.confirmed:
		case <-d.cfg.CutNow:
			d.cuts.asked, d.cuts.notBefore = true, time.Time{}
		case d.repairing.now = <-d.repairs():
		case b, ok := <-in:
			d.stats.meter.Enter(metric.Busy)
			if !ok {
				return d.drain(ctx)
			}
			if err := d.batch(ctx, &b); err != nil {
				return err
			}
		case <-d.backlog.ended():
			d.stats.meter.Enter(metric.Busy)
		case <-changed:
			continue
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := d.hold(ctx); err != nil {
			return err
		}
		if err := d.between(ctx); err != nil {
			return err
		}
	}
}

// between does the work between two batches.
func (d *dispatcher) between(ctx context.Context) error {
	// The lanes may have been ahead of the log until now, and a next batch may be far.
	if err := d.resume(ctx); err != nil {
		return err
	}
	if err := d.cutIfAsked(ctx); err != nil {
		return err
	}
	return d.repairIfAsked(ctx)
}

// prepare reads the records that earlier attempts have left. Collections that were kept back, and need not be any more,
// are not from here on.
func (d *dispatcher) prepare(ctx context.Context) error {
	if d.ended {
		if err := d.early.resume(ctx); err != nil {
			return err
		}
	}
	if err := errors.Join(d.routes.load(ctx), d.loadDiverged(ctx)); err != nil {
		return err
	}
	// Before anything is handed out: a collection may have been made capped since it was recorded to be
	// kept back, and the operations of such a one must not be (see keepable).
	return d.resume(ctx)
}

// drop closes the transactions of batches that were sent and will not be applied.
func drop(in <-chan batch.Batch) {
	for {
		select {
		case b, ok := <-in:
			if !ok {
				return
			}
			for i := range b.Items {
				if tx := b.Items[i].Txn; tx != nil {
					_ = tx.Close()
				}
			}
		default:
			return
		}
	}
}

// drain waits for the lanes to finish, then for index builds. An attempt that leaves a build
// has less to read again if the lanes have finished.
func (d *dispatcher) drain(ctx context.Context) error {
	if d.isCut() {
		return ErrLogIncomplete
	}
	if err := d.quiesceLanes(ctx, oplog.OpTime{}); err != nil {
		return err
	}
	if d.cfg.LeaveLast > 0 {
		timer := time.NewTimer(d.cfg.LeaveLast)
		defer timer.Stop()
		d.patience = timer.C
	}
	if err := d.quiesce(ctx, oplog.OpTime{}); err != nil {
		return err
	}
	if err := d.resume(ctx); err != nil {
		return err
	}
	for _, w := range d.writers {
		w.end()
	}
	d.tracker.finish()
	return nil
}

func (d *dispatcher) batch(ctx context.Context, b *batch.Batch) error {
	d.current = d.tracker.open(b)
	if err := d.thaw(ctx); err != nil {
		return err
	}
	if err := d.compareShares(ctx); err != nil {
		return err
	}
	var err error
	if b.Individually {
		d.repairing.alone = b.Last
		for i := range b.Items {
			if err = d.individually(ctx, &b.Items[i]); err != nil {
				return err
			}
		}
	} else if err = d.items(ctx, b.Items); err != nil {
		return err
	}
	d.inner = nil
	d.handOver()
	d.pass(b.Last)
	d.last, d.lastWall, d.inDoubt = b.Last, int64(b.Wall), b.InDoubt
	if !b.Last.Before(d.cfg.CopiedUntil) {
		// Nothing that follows the copy's end has been handed out if it has not ended yet: the rest
		// of the batch are entries without operations.
		if err := d.endCopy(ctx); err != nil {
			return err
		}
	}
	if err := d.keepLost(ctx); err != nil {
		return err
	}
	return d.tracker.close(d.current)
}

func (d *dispatcher) items(ctx context.Context, items []batch.Item) error {
	for i := 0; i < len(items); {
		n, err := d.item(ctx, items[i:])
		if err != nil {
			return err
		}
		i += n
	}
	return nil
}

// item hands out the first of items, and returns how many it has handled: more than one
// where several share a barrier.
func (d *dispatcher) item(ctx context.Context, items []batch.Item) (int, error) {
	item := &items[0]
	d.wall = int64(item.Entry.Wall)
	if err := d.leaveCopy(ctx, itemTime(item)); err != nil {
		return 0, err
	}
	if t := item.Txn; t != nil {
		// A transaction is not interrupted. Its cost delays the operations after it.
		if err := d.throttle(ctx, 0, 0); err != nil {
			return 0, err
		}
		switch {
		case t.MustBeProcessedIndividually:
			return 0, item.Entry.Fault("o", errNotIndividually)
		case t.OpTime == d.barrierAnnounced.OpTime:
			// It was announced after the barrier, whatever the settings were then, and
			// only the barrier's lane shows which part is in the target.
			return 1, d.chunks(ctx, t)
		case t.Kind == txn.KindTransaction && !d.cfg.Relaxed:
			return d.transaction(ctx, items)
		default:
			return 1, d.oneByOne(ctx, t)
		}
	}
	op := &item.Entry.Op
	switch {
	case op.Kind == oplog.KindNoop:
		return 1, nil
	case op.MustBeProcessedIndividually():
		return 0, op.Fault("", errNotIndividually)
	}
	var o routed
	if err := d.route(ctx, op, checkpoint.Position{OpTime: op.OpTime}, false, &o); err != nil {
		return 0, err
	}
	return 1, d.dispatch(ctx, &o)
}

// oneByOne hands out the operations of a group that need not be atomic, one by one, because
// they may not fit into memory.
func (d *dispatcher) oneByOne(ctx context.Context, t *txn.Transaction) error {
	n := int64(0)
	var o routed
	for op, err := range t.Ops() {
		if err != nil {
			return err
		}
		if err := d.routeInner(ctx, t, &op, n, &o); err != nil {
			return err
		}
		if err := d.dispatch(ctx, &o); err != nil {
			return err
		}
		n++
	}
	return nil
}

// routeInner routes operation n of a transaction.
func (d *dispatcher) routeInner(ctx context.Context, t *txn.Transaction, op *oplog.Op, n int64, o *routed) error {
	if op.Kind == oplog.KindNoop {
		o.disposition = notMirrored
		return nil
	}
	at := checkpoint.Position{OpTime: t.OpTime, Op: n}
	err := d.route(ctx, d.inner.own(op), at, t.Kind == txn.KindApplyOps, o)
	o.bytes = sizeOf(op) + ownOverhead
	return err
}

// disposition says how the dispatcher handles an operation.
type disposition uint8

const (
	toApply        disposition = iota + 1
	notMirrored                // it is not mirrored
	alreadyApplied             // it is in the target
	noCollection               // its collection does not exist
)

// routed is an operation with its disposition.
type routed struct {
	work
	disposition disposition
	lane        int
	what        string // for noCollection
	// inTurn: it must not overtake other operations of its collection in any lane.
	inTurn bool
}

// route determines the lane and the disposition of an operation.
func (d *dispatcher) route(ctx context.Context, op *oplog.Op, at checkpoint.Position, grouped bool, o *routed) error {
	r, err := d.routes.of(ctx, d, op.NS)
	if err != nil {
		return err
	}
	switch {
	case !r.inScope:
		o.disposition = notMirrored
		return nil
	case at.Compare(d.floor) <= 0:
		o.disposition = alreadyApplied
		return nil
	}
	o.op = routedOp{
		Op: op, at: at, route: r, mode: plan.ModeExact, grouped: grouped, direct: r.direct,
	}
	if !d.cfg.CopiedUntil.IsNull() && !at.OpTime.After(d.cfg.CopiedUntil) {
		o.op.mode = plan.ModeCopied
	}
	if !r.isCollection {
		o.disposition, o.what = noCollection, "the collection does not exist"
		if r.collection != nil {
			o.what = "it is a view"
		}
		return nil
	}
	h := r.seed
	o.hash, o.inTurn = 0, r.inTurn
	switch {
	case !r.oneLane:
		h = oplog.HashID(r.seed, op.ID)
		o.hash, o.op.hash = h|1, h
		if r.few.n > 0 {
			h = r.few.first + h%r.few.n
		}
	case !r.ordered:
		// For the plan. Here the entries are read in their order in memory.
		o.op.hash = oplog.HashID(r.seed, op.ID)
	}
	o.lane = int(h % uint32(len(d.writers)))
	o.disposition = toApply
	if r.kept && at.Compare(r.since) > 0 {
		o.lane, o.inTurn = len(d.writers), false
	}
	if at.Compare(d.starts[o.lane]) <= 0 {
		o.disposition = alreadyApplied
	}
	if o.bytes = sizeOf(op) + opOverhead; d.isKept(o) {
		o.bytes = sizeOf(op) + ownOverhead
	}
	o.group = 0
	return nil
}

// dispatch hands an operation to its lane, or counts it.
func (d *dispatcher) dispatch(ctx context.Context, o *routed) error {
	switch o.disposition {
	case toApply:
		if err := d.throttle(ctx, 1, sizeOf(o.op.Op)); err != nil {
			return err
		}
		if d.isKept(o) {
			if err := d.reserveKept(ctx, o.bytes, o.op.at.OpTime); err != nil {
				return err
			}
			d.keepBack(o)
			return nil
		}
		if err := d.inTurn(ctx, o); err != nil {
			return err
		}
		if err := d.reserve(ctx, o.bytes); err != nil {
			return err
		}
		d.append(o)
		return nil
	default:
		return d.settle(o)
	}
}

// settle counts an operation that is not applied.
func (d *dispatcher) settle(o *routed) error {
	switch o.disposition {
	case alreadyApplied:
		d.metrics.skipped.Inc()
		d.stats.skipped.Add(1)
	case noCollection:
		if o.op.mode == plan.ModeCopied {
			d.metrics.ignored.Inc()
			d.stats.ignored.Add(1)
			return nil
		}
		return d.lose(o)
	default:
		// It is not mirrored.
	}
	return nil
}

// append adds an operation to those that are handed over next. Its bytes are reserved in
// the window already.
func (d *dispatcher) append(o *routed) {
	o.p, o.wall = d.current, d.wall
	if o.op.at.Compare(d.announced[o.lane]) <= 0 {
		d.handed[o.lane] = o.op.at
	}
	d.ready[o.lane] = append(d.ready[o.lane], o.work)
	d.shares.count(o.op.route)
}

// reserve takes bytes of the window. Before it waits, it hands the lanes all that is
// ready.
func (d *dispatcher) reserve(ctx context.Context, bytes int64) error {
	if d.window.try(bytes) {
		return nil
	}
	d.handOver()
	d.stats.wait(laneRoom)
	defer d.stats.wait(nothing)
	return d.window.acquire(ctx, bytes)
}

// handOver gives the lanes the operations that are ready.
func (d *dispatcher) handOver() {
	d.metrics.window.Set(float64(d.window.used.Load()))
	for i := range d.ready {
		if n := len(d.ready[i]); n > 0 {
			d.tracker.add(d.current, i, n)
			d.writers[i].push(d.ready[i])
			clear(d.ready[i])
			d.ready[i] = d.ready[i][:0]
		}
	}
}
