package applier

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/oplog/batch"
	"github.com/oplogrep/replicator/oplog/txn"
)

// longBarrier is the time after which a wait for the lanes is logged, and the interval at
// which it is logged again.
const longBarrier = 10 * time.Second

// quiesce waits until everything that was handed out, or kept back, is in the target. It
// has no time limit; only ctx ends it early.
func (d *dispatcher) quiesce(ctx context.Context, at oplog.OpTime) error {
	if err := d.clearBacklog(ctx, at); err != nil {
		return err
	}
	return d.quiesceLanes(ctx, at)
}

// quiesceLanes waits until everything that was handed to lanes is in the target. A lane
// that had announced a span after at had applied everything up to there, and the span
// follows.
func (d *dispatcher) quiesceLanes(ctx context.Context, at oplog.OpTime) error {
	d.handOver()
	if err := d.keepLost(ctx); err != nil {
		return err
	}
	for i, w := range d.writers {
		if at.IsNull() || d.announced[i].OpTime.Before(at) || d.handed[i] != (checkpoint.Position{}) {
			w.pass()
		}
	}
	return d.awaitQuiet(ctx, at)
}

// awaitQuiet waits until the lanes have applied everything that they were given.
func (d *dispatcher) awaitQuiet(ctx context.Context, at oplog.OpTime) error {
	if d.tracker.quiet() {
		return nil
	}
	d.stats.wait(idleLanes)
	defer d.stats.wait(nothing)
	start := time.Now()
	ticker := time.NewTicker(longBarrier)
	defer ticker.Stop()
	for !d.tracker.quiet() {
		select {
		case <-d.tracker.idle:
		case <-ticker.C:
			d.cfg.Observer.Log(slog.LevelInfo, "still waiting for earlier operations",
				slog.String(keyOpTime, at.String()), slog.Duration(keyWaited, time.Since(start)))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	d.stats.barrier.Add(1)
	d.metrics.barrierSec.Observe(time.Since(start).Seconds())
	return nil
}

// afterBarrier writes a span once all lanes are empty.
func (d *dispatcher) afterBarrier(ctx context.Context, s span) error {
	if len(s.ops) == 0 {
		return nil
	}
	routedBefore := !d.backlog.isEmpty()
	if err := d.quiesce(ctx, s.ops[0].At.OpTime); err != nil {
		return err
	}
	if routedBefore {
		if err := d.readAgain(ctx, s.ops); err != nil {
			return err
		}
	}
	s.wall = d.wall
	if err := d.barrier.write(ctx, s); err != nil {
		return within(ctx, "barrier", err)
	}
	d.countAll(s.ops)
	d.acknowledged(len(s.ops), d.wall)
	d.barrier.tally(s.ops)
	d.raiseFloor(s.last())
	d.tracker.applied(d.current, len(s.ops))
	return nil
}

// raiseFloor raises the floor: everything up to it is in the target.
func (d *dispatcher) raiseFloor(to checkpoint.Position) {
	if to.Compare(d.floor) > 0 {
		d.floor = to
	}
}

// gathered is a transaction of the source, or a plain entry, ready to be written.
type gathered struct {
	ops       []routed
	bytes     int64
	lane      int
	spans     bool // several lanes
	direct    bool // some cannot be in a transaction
	atomic    bool // it was a transaction at the source
	announced bool // announced by their lane, so some may be in the target
}

// transaction applies the first of items, which is atomic, and returns how many items it
// has applied. If that item spans lanes, the items up to the last one that also spans
// lanes go after the same barrier, as many as fit, so that a log full of such
// transactions does not wait for each.
func (d *dispatcher) transaction(ctx context.Context, items []batch.Item) (int, error) {
	t := items[0].Txn
	// Many small operations take more memory than their bytes in the log.
	if t.Bytes+int64(t.Count)*ownOverhead > d.cfg.WindowBytes {
		if d.isCrossed(t.OpTime) {
			return 1, d.oneByOne(ctx, t)
		}
		d.logNotAtomic(t.OpTime, t.Count, "it is larger than the writers' window")
		return 1, d.chunks(ctx, t)
	}
	first, err := d.gather(ctx, &items[0], true)
	if err != nil {
		return 0, err
	}
	switch {
	case len(first.ops) == 0:
		return 1, nil
	case first.announced:
		// Lanes announced it while transactions were relaxed, and only their positions
		// show which part of it is in the target.
		return 1, d.oneByOne(ctx, t)
	case !first.direct && !first.spans && (d.isKept(&first.ops[0]) || len(first.ops) <= d.cfg.CoalesceWindow && first.bytes <= int64(d.cfg.FlushBytes)):
		return 1, d.whole(ctx, &first)
	case d.isCrossed(t.OpTime):
		d.logNotAtomic(t.OpTime, t.Count, "what an earlier attempt had begun reaches beyond it")
		return 1, d.oneByOne(ctx, t)
	case first.direct:
		d.logNotAtomic(t.OpTime, t.Count, "it writes to collections that transactions cannot write to")
		return 1, d.chunks(ctx, t)
	}
	run := d.collect(span{}, &first)
	size, upTo := first.bytes, 1
	together := run
	for i := 1; i < len(items) && len(together.ops) < d.cfg.FlushDocs && size < int64(d.cfg.FlushBytes); i++ {
		if tx := items[i].Txn; tx != nil && tx.Bytes > int64(d.cfg.FlushBytes) {
			break
		}
		next, err := d.gather(ctx, &items[i], false)
		size += next.bytes
		other := len(next.ops) > 0 && next.ops[0].op.mode != first.ops[0].op.mode
		if err != nil || next.direct || next.announced || other || len(together.ops)+len(next.ops) > d.cfg.FlushDocs || size > int64(d.cfg.FlushBytes) {
			break // the error recurs when it is this item's turn
		}
		together = d.collect(together, &next)
		if next.spans && next.atomic {
			run, upTo = together, i+1
		}
	}
	d.spend(len(run.ops), func() int64 { return bytesOf(run.ops) })
	return upTo, d.afterBarrier(ctx, run)
}

// isCrossed reports whether, at the start, a lane had announced a span that reaches as
// far as this entry. There was no barrier at the entry then, and there must be none now:
// only the complete span shows which part of it is in the target.
func (d *dispatcher) isCrossed(at oplog.OpTime) bool {
	return slices.ContainsFunc(d.announced, func(p checkpoint.Position) bool { return !at.After(p.OpTime) })
}

// pass notifies the lanes whose announced spans end at last or before it: no more of them
// follows.
func (d *dispatcher) pass(last oplog.OpTime) {
	for i := range d.handed {
		if d.handed[i] != (checkpoint.Position{}) && !last.Before(d.announced[i].OpTime) {
			d.writers[i].pass()
			d.handed[i] = checkpoint.Position{}
		}
	}
}

// isCut reports whether a lane has received a part, and not all, of the span that it had
// announced at the start.
func (d *dispatcher) isCut() bool {
	return slices.ContainsFunc(d.handed, func(p checkpoint.Position) bool { return p != (checkpoint.Position{}) })
}

// errApart reports an item that must not share the barrier of another one.
var errApart = errors.New("not to be gathered")

// gather routes the operations of an item. Those that need no write are left out. They
// are counted only for the first item that is gathered, because the others may be
// gathered again; another item with something to report is errApart.
func (d *dispatcher) gather(ctx context.Context, item *batch.Item, first bool) (gathered, error) {
	g := gathered{lane: -1}
	t := item.Txn
	if t == nil {
		op := &item.Entry.Op
		switch {
		case op.Kind == oplog.KindNoop:
			return g, nil
		case op.MustBeProcessedIndividually():
			return g, errApart
		}
		var o routed
		if err := d.route(ctx, op, checkpoint.Position{OpTime: op.OpTime}, false, &o); err != nil {
			return g, err
		}
		return g, d.gatherOne(&g, &o, first)
	}
	if t.MustBeProcessedIndividually {
		return g, errApart
	}
	g.atomic = t.Kind == txn.KindTransaction
	n := int64(0)
	var o routed
	for op, err := range t.Ops() {
		if err == nil {
			err = d.routeInner(ctx, t, &op, n, &o)
		}
		if err == nil {
			err = d.gatherOne(&g, &o, first)
		}
		if err != nil {
			return g, err
		}
		n++
	}
	return g, nil
}

func (d *dispatcher) gatherOne(g *gathered, o *routed, first bool) error {
	switch {
	case o.disposition == toApply:
		g.spans = g.spans || g.lane >= 0 && g.lane != o.lane
		g.lane = o.lane
		g.bytes += o.bytes
		g.direct = g.direct || o.op.direct
		g.announced = g.announced || o.op.at.Compare(d.announced[o.lane]) <= 0
		g.ops = append(g.ops, *o)
		return nil
	case first:
		return d.settle(o)
	case o.disposition == noCollection:
		return errApart
	default:
		return nil
	}
}

// collect appends a gathered item to a span, as a group.
func (d *dispatcher) collect(s span, g *gathered) span {
	group := uint32(0)
	if g.atomic {
		d.nextGroup()
		group = d.group
	}
	for i := range g.ops {
		s.ops = append(s.ops, g.ops[i].op.planned())
		s.groups = append(s.groups, group)
	}
	return s
}

func (d *dispatcher) nextGroup() {
	d.group++
	if d.group == 0 { // no transaction has number 0
		d.group = 1
	}
}

// whole hands a transaction to its only lane.
func (d *dispatcher) whole(ctx context.Context, g *gathered) error {
	d.spend(len(g.ops), func() int64 {
		n := int64(0)
		for i := range g.ops {
			n += sizeOf(g.ops[i].op.Op)
		}
		return n
	})
	if d.isKept(&g.ops[0]) {
		if err := d.reserveKept(ctx, g.bytes, g.ops[0].op.at.OpTime); err != nil {
			return err
		}
		d.nextGroup()
		for i := range g.ops {
			g.ops[i].group = d.group
			d.keepBack(&g.ops[i])
		}
		return nil
	}
	for i := range g.ops {
		if err := d.inTurn(ctx, &g.ops[i]); err != nil {
			return err
		}
	}
	if err := d.reserve(ctx, g.bytes); err != nil {
		return err
	}
	d.nextGroup()
	for i := range g.ops {
		g.ops[i].group = d.group
		d.append(&g.ops[i])
	}
	return nil
}

// chunks applies the operations of a transaction after the barrier, in as many
// transactions as needed, and executes DDL between them.
func (d *dispatcher) chunks(ctx context.Context, t *txn.Transaction) error {
	var s span
	size := int64(0)
	write := func() error {
		d.spend(len(s.ops), func() int64 { return bytesOf(s.ops) }) // it does not wait within a transaction
		err := d.afterBarrier(ctx, s)
		s, size = span{}, 0
		return err
	}
	n := int64(-1)
	var o routed
	for op, err := range t.Ops() {
		if err != nil {
			return err
		}
		if n++; op.Kind == oplog.KindNoop {
			continue
		}
		at := checkpoint.Position{OpTime: t.OpTime, Op: n}
		if op.IsDDL() {
			if err := write(); err != nil {
				return err
			}
			if err := d.command(ctx, &op, at); err != nil {
				return err
			}
			continue
		}
		if err := d.routeInner(ctx, t, &op, n, &o); err != nil {
			return err
		}
		if o.disposition != toApply {
			if err := d.settle(&o); err != nil {
				return err
			}
			continue
		}
		// A span that an earlier term had announced is one chunk again: only the complete
		// span shows which part of it is in the target.
		uncertain := at.Compare(d.barrierAnnounced) <= 0
		full := len(s.ops) >= d.barrier.limit || size+o.bytes > int64(d.cfg.FlushBytes)
		if len(s.ops) > 0 && (uncertain != s.uncertain || !uncertain && (full || o.op.direct != isDirect(&s.ops[0]))) {
			if err := write(); err != nil {
				return err
			}
		}
		s.uncertain = uncertain
		s.ops, s.groups = append(s.ops, o.op.planned()), append(s.groups, 0)
		size += o.bytes
	}
	return write()
}

// individually applies an item that must be processed individually.
func (d *dispatcher) individually(ctx context.Context, item *batch.Item) error {
	d.wall = int64(item.Entry.Wall)
	if err := d.throttle(ctx, 0, 0); err != nil {
		return err
	}
	if err := d.leaveCopy(ctx, itemTime(item)); err != nil {
		return err
	}
	if t := item.Txn; t != nil {
		return d.chunks(ctx, t)
	}
	op := &item.Entry.Op
	switch {
	case op.Kind == oplog.KindNoop:
		return nil
	case !op.IsDDL(): // users and roles
		var o routed
		if err := d.route(ctx, op, checkpoint.Position{OpTime: op.OpTime}, false, &o); err != nil {
			return err
		}
		if o.disposition != toApply {
			return d.settle(&o)
		}
		s := span{ops: []plan.Op{o.op.planned()}, groups: []uint32{0}, uncertain: o.op.at.Compare(d.barrierAnnounced) <= 0}
		return d.afterBarrier(ctx, s)
	case op.Command == oplog.CommandCommitIndexBuild:
		return d.commitBuild(ctx, op)
	default:
		return d.command(ctx, op, checkpoint.Position{OpTime: op.OpTime})
	}
}

// command executes DDL.
func (d *dispatcher) command(ctx context.Context, op *oplog.Op, at checkpoint.Position) error {
	if at.Compare(d.floor) <= 0 {
		d.metrics.skipped.Inc()
		d.stats.skipped.Add(1)
		return nil
	}
	if op.Command == oplog.CommandStartIndexBuild {
		return d.startBuild(ctx, op)
	}
	inScope, err := d.cfg.Commands.InScope(op)
	if err != nil || !inScope {
		return err
	}
	if op.Command == oplog.CommandCommitIndexBuild {
		if err := d.awaitBuild(ctx, op); err != nil {
			return err
		}
	}
	if err := d.quiesce(ctx, at.OpTime); err != nil {
		return err
	}
	s := span{ops: []plan.Op{{Op: *op, At: at}}}
	mode := ddl.Once
	switch {
	case !d.cfg.CopiedUntil.IsNull() && !at.OpTime.After(d.cfg.CopiedUntil):
		mode = ddl.Copied
	case d.barrierAnnounced == at:
		mode = ddl.Maybe
	}
	if err := d.barrier.announce(ctx, s); err != nil {
		return err
	}
	carryOut := d.carryOut
	if op.Command == oplog.CommandAbortIndexBuild {
		carryOut = d.abortBuild
	}
	if err := carryOut(ctx, op, mode); err != nil {
		return err
	}
	if err := d.followDiverged(ctx, op, at.OpTime); err != nil {
		return err
	}
	if told := d.cfg.Work.Commanded; told != nil {
		told(op)
	}
	if err := d.barrier.complete(ctx, s); err != nil {
		return err
	}
	d.raiseFloor(at)
	d.routes.forget()
	d.applied(op, at.OpTime, d.wall)
	d.tracker.applied(d.current, 1)
	return nil
}

// carryOut executes a command. Newer documents of a copy may prevent an index build: the
// index is deferred then, because the log will drop it or remove the obstacle.
func (d *dispatcher) carryOut(ctx context.Context, op *oplog.Op, mode ddl.Mode) error {
	deferred := map[string]bool{}
	for {
		err := d.cfg.Commands.Apply(ctx, op, mode)
		e, ok := errors.AsType[*ddl.IndexError](err)
		if !ok || deferred[e.Index] {
			return err
		}
		deferred[e.Index] = true
		d.cfg.Observer.Log(slog.LevelWarn, "index cannot be built on the copy, and is deferred", slog.String(keyOpTime, e.OpTime.String()),
			slog.String(keyNS, string(e.NS)), slog.String(keyIndex, e.Index), slog.String(keyCause, e.Err.Error()))
		if err := d.cfg.Commands.DeferBuild(ctx, op, e.Index); err != nil {
			return err
		}
	}
}
