package applier

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/oplogrep/replicator/applier/catalog"
	"github.com/oplogrep/replicator/applier/ddl"
	"github.com/oplogrep/replicator/applier/plan"
	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/oplog"
)

// backlog has the operations that wait for index builds. While the target executes a commitIndexBuild, the
// operations of that collection are kept back, in order, and the lanes continue with all
// others:
//
//	lanes idle        build ends                lanes idle
//	──┬─────────────────┬──────────────────────────┬──────────▶ log
//	  commit announced  commit completed,          the barrier is at the last entry handed
//	  keptBack recorded backlog written by the     out; keptBack is removed
//	                    barrier's lane
//
// So the lanes get ahead of the barrier, and the record says of which collection their
// positions show nothing: see [checkpoint.KeptBack]. A commit of another collection
// meanwhile joins the queue. Everything else that needs a barrier waits for all of it. The
// backlog belongs to the dispatcher.
type backlog struct {
	// queue are commits and operations of the collections kept back, in the log's order.
	// Their memory is not the batches'.
	queue []work
	bytes int64
	// building is the commit that the target executes, nil for none.
	building *building
	// ctx ends the builds of this dispatcher.
	ctx  context.Context
	stop context.CancelCauseFunc
	wg   sync.WaitGroup
}

// building is a commitIndexBuild that is being executed.
type building struct {
	work
	begun time.Time
	ended chan struct{}
	err   error // once ended is closed
}

func (b *backlog) begin(ctx context.Context) { b.ctx, b.stop = context.WithCancelCause(ctx) }

// end stops waiting for the target, which may continue a build.
func (b *backlog) end() {
	b.stop(errEnded)
	b.wg.Wait()
}

// endBacklog ends the backlog: the next run keeps back the same operations when it reads them again.
func (d *dispatcher) endBacklog() {
	d.backlog.end()
	d.backlog.queue, d.backlog.bytes = nil, 0
	d.showBacklog()
}

// isEmpty reports whether nothing waits for a build.
func (b *backlog) isEmpty() bool { return b.building == nil && len(b.queue) == 0 }

// ended returns a channel that is closed once the present build has ended, or nil.
func (b *backlog) ended() <-chan struct{} {
	if b.building == nil {
		return nil
	}
	return b.building.ended
}

// commitBuild executes a commitIndexBuild. If it takes long, only its collection waits.
func (d *dispatcher) commitBuild(ctx context.Context, op *oplog.Op) error {
	at := checkpoint.Position{OpTime: op.OpTime}
	r, err := d.keepable(ctx, op, at)
	if err != nil {
		return err
	}
	if r == nil {
		return d.command(ctx, op, at)
	}
	if err := d.quiesceLanes(ctx, at.OpTime); err != nil {
		return err
	}
	own := op.Clone()
	w := work{op: routedOp{Op: &own, at: at, route: r}, meta: meta{p: d.current, wall: d.wall, bytes: int64(len(op.O)) + ownOverhead}}
	d.keep(w)
	if d.backlog.building == nil {
		if err := d.write(ctx); err != nil {
			return err
		}
		// Before this commit another one may have been in the queue.
		if ended, err := d.endsSoon(ctx); err != nil || ended && d.backlog.isEmpty() {
			return err
		}
	}
	if _, kept := d.routes.kept[r.target]; kept {
		return nil
	}
	d.cfg.Observer.Log(slog.LevelInfo, "collection waits for its index build, and the others continue",
		slog.String(keyOpTime, op.OpTime.String()), slog.String(keyNS, string(r.target)))
	d.routes.kept[r.target] = at
	d.routes.forget()
	d.stats.waits(r.target, at.OpTime)
	return d.recordKept(ctx)
}

// keepable returns the collection of a commitIndexBuild if it can be kept back. A copy may
// be newer than the log, and what cannot be written in transactions is announced by its
// lane's document, not by the barrier's.
func (d *dispatcher) keepable(ctx context.Context, op *oplog.Op, at checkpoint.Position) (*route, error) {
	if at.Compare(d.floor) <= 0 || !d.cfg.CopiedUntil.IsNull() && !at.OpTime.After(d.cfg.CopiedUntil) {
		return nil, nil
	}
	if inScope, err := d.cfg.Commands.InScope(op); err != nil || !inScope {
		return nil, err
	}
	entry, err := op.IndexBuild()
	if err != nil {
		return nil, err
	}
	r, err := d.routes.of(ctx, d, entry.NS)
	if err != nil || !r.inScope || r.collection == nil || r.collection.Type != catalog.TypeCollection || r.collection.Direct {
		return nil, err
	}
	return r, nil
}

// keep appends to the backlog.
func (d *dispatcher) keep(w work) {
	d.tracker.keep(w.p, 1)
	d.backlog.queue = append(d.backlog.queue, w)
	d.backlog.bytes += w.bytes
	d.showBacklog()
}

func (d *dispatcher) showBacklog() {
	d.metrics.keptBack.Set(float64(len(d.backlog.queue)))
	d.metrics.keptBackBytes.Set(float64(d.backlog.bytes))
}

// isKept reports whether an operation is to be kept back: it was routed to the backlog.
func (d *dispatcher) isKept(o *routed) bool { return o.lane == len(d.writers) }

// keepBack keeps an operation back. Its memory is copied, so that the batch's can be
// released.
func (d *dispatcher) keepBack(o *routed) {
	w := o.work
	op := o.op.Clone()
	w.op.Op = &op
	w.p, w.wall = d.current, d.wall
	d.keep(w)
}

// reserveKept waits until the backlog has room for so many bytes: for the end of the
// build. As long as a lane may wait for the rest of a span that it had announced, the
// backlog may become larger: it was in memory with that span before.
func (d *dispatcher) reserveKept(ctx context.Context, bytes int64, at oplog.OpTime) error {
	for len(d.backlog.queue) > 0 && d.backlog.bytes+bytes > d.cfg.KeptBytes && !d.isCrossed(at) {
		if err := d.writeNext(ctx, at); err != nil {
			return err
		}
	}
	return nil
}

// writeNext waits for the present build and writes the backlog up to the next commit.
func (d *dispatcher) writeNext(ctx context.Context, at oplog.OpTime) error {
	if err := d.awaitBuilding(ctx, at); err != nil {
		return err
	}
	if err := d.quiesceLanes(ctx, at); err != nil {
		return err
	}
	return d.write(ctx)
}

// write writes the backlog through the barrier's lane, up to the next commit, which it
// begins. The lanes must be idle: everything before the backlog's operations is in the
// target.
func (d *dispatcher) write(ctx context.Context) error {
	b := &d.backlog
	if b.building != nil {
		return nil
	}
	from := 0
	defer func() {
		clear(b.queue[:from])
		if b.queue = b.queue[from:]; len(b.queue) == 0 {
			b.queue = nil
		}
		d.showBacklog()
	}()
	for from < len(b.queue) {
		if b.queue[from].op.Kind == oplog.KindCommand {
			from++
			return d.beginBuild(ctx, b.queue[from-1])
		}
		n := d.fit(b.queue[from:])
		if err := d.writeKept(ctx, b.queue[from:from+n]); err != nil {
			return err
		}
		from += n
	}
	return nil
}

// fit returns how many operations at the head of the backlog go into the next flush.
func (d *dispatcher) fit(queue []work) (n int) {
	size := int64(0)
	for n < len(queue) && queue[n].op.Kind != oplog.KindCommand {
		whole := n > 0 && queue[n].group != 0 && queue[n].group == queue[n-1].group
		if n > 0 && !whole && (n >= d.barrier.limit || size+queue[n].bytes > int64(d.cfg.FlushBytes)) {
			break
		}
		size += queue[n].bytes
		n++
	}
	return n
}

// writeKept writes operations of the backlog.
func (d *dispatcher) writeKept(ctx context.Context, queue []work) error {
	s := span{wall: queue[0].wall}
	for i := range queue {
		s.ops, s.groups = append(s.ops, queue[i].op.planned()), append(s.groups, queue[i].group)
	}
	if err := d.readAgain(ctx, s.ops); err != nil {
		return err
	}
	if err := d.barrier.write(ctx, s); err != nil {
		return within(ctx, "barrier", err)
	}
	d.raiseFloor(s.last())
	for i := range queue {
		d.acknowledged(1, queue[i].wall)
	}
	d.barrier.tally(s.ops)
	return d.written(queue)
}

// readAgain looks up the collections of operations that were routed before a build ended:
// its index may require another order of writes.
func (d *dispatcher) readAgain(ctx context.Context, ops []plan.Op) error {
	for i := range ops {
		r, err := d.routes.of(ctx, d, ops[i].NS)
		if err != nil {
			return err
		}
		if r.collection != nil {
			ops[i].Collection = r.collection
		}
	}
	return nil
}

// written records that a part of the backlog is in the target.
func (d *dispatcher) written(queue []work) error {
	var shares []share
	for i := range queue {
		d.backlog.bytes -= queue[i].bytes
		if n := len(shares); n > 0 && shares[n-1].p == queue[i].p {
			shares[n-1].n++
		} else {
			shares = append(shares, share{p: queue[i].p, n: 1})
		}
	}
	d.showBacklog()
	return d.tracker.settle(shares)
}

// beginBuild begins to execute a commit. Everything before it is in the target.
func (d *dispatcher) beginBuild(ctx context.Context, w work) error {
	again := ddl.Once
	if d.barrierAnnounced == w.op.at {
		again = ddl.Maybe
	}
	b := &building{work: w, begun: time.Now(), ended: make(chan struct{})}
	if err := d.barrier.announce(ctx, span{ops: []plan.Op{b.op.planned()}}); err != nil {
		return err
	}
	h, err := d.early.take(b.op.Op)
	if err != nil {
		return err
	}
	d.backlog.building = b
	d.backlog.wg.Go(func() {
		defer close(b.ended)
		if b.err = d.early.await(d.backlog.ctx, b.op.Op, h); b.err == nil {
			b.err = d.cfg.Commands.Apply(d.backlog.ctx, b.op.Op, again)
		}
	})
	return nil
}

// endsSoon waits a moment for the build that was begun: for a short one it is not worth
// while to record anything.
func (d *dispatcher) endsSoon(ctx context.Context) (bool, error) {
	if d.backlog.building == nil {
		return true, nil
	}
	d.stats.wait(indexBuild)
	defer d.stats.wait(nothing)
	patience := time.NewTimer(d.cfg.BuildWait)
	defer patience.Stop()
	select {
	case <-d.backlog.ended():
		return true, d.endBuild(ctx)
	case <-patience.C:
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// endBuild completes the commit whose build has ended.
func (d *dispatcher) endBuild(ctx context.Context) error {
	b := d.backlog.building
	d.backlog.building = nil
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx) // the command may have been interrupted for it
	case b.err != nil:
		return b.err
	}
	if err := d.barrier.complete(ctx, span{ops: []plan.Op{b.op.planned()}}); err != nil {
		return err
	}
	d.raiseFloor(b.op.at)
	d.routes.forget()
	d.applied(b.op.Op, b.op.at.OpTime, b.wall)
	if _, kept := d.routes.kept[b.op.route.target]; kept {
		d.cfg.Observer.Log(slog.LevelInfo, "index build committed; the operations kept back for it follow", slog.String(keyOpTime, b.op.at.OpTime.String()),
			slog.String(keyNS, string(b.op.route.target)), slog.Duration(keyWaited, time.Since(b.begun)), slog.Int(keyOps, len(d.backlog.queue)))
	}
	return d.written([]work{b.work})
}

// awaitBuilding waits for the present build, and completes its commit, unless the attempt is
// to leave it.
func (d *dispatcher) awaitBuilding(ctx context.Context, at oplog.OpTime) error {
	if d.backlog.building == nil {
		return nil
	}
	d.handOver()
	d.stats.wait(indexBuild)
	defer d.stats.wait(nothing)
	start := time.Now()
	ticker := time.NewTicker(longBarrier)
	defer ticker.Stop()
	for {
		select {
		case <-d.backlog.ended():
			return d.endBuild(ctx)
		case <-ticker.C:
			d.cfg.Observer.Log(slog.LevelInfo, "all collections wait for an index build", slog.String(keyOpTime, at.String()),
				slog.String(keyNS, string(d.backlog.building.op.route.target)), slog.Duration(keyWaited, time.Since(start)))
		case <-d.cfg.Leave:
			return ErrLeft
		case <-d.patience:
			return ErrLeft
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// clearBacklog waits for all builds and writes the backlog.
func (d *dispatcher) clearBacklog(ctx context.Context, at oplog.OpTime) error {
	for !d.backlog.isEmpty() {
		if err := d.writeNext(ctx, at); err != nil {
			return err
		}
	}
	return nil
}

// resume writes the backlog if its build has ended, and begins the next one. Without a next
// one, the collections go through the lanes again. It is called between batches.
func (d *dispatcher) resume(ctx context.Context) error {
	if d.backlog.building != nil {
		select {
		case <-d.backlog.ended():
		default:
			return nil
		}
		if err := d.endBuild(ctx); err != nil {
			return err
		}
	}
	if len(d.routes.kept) == 0 || d.routes.areAhead(d.last) {
		return nil
	}
	if err := d.quiesceLanes(ctx, d.last); err != nil {
		return err
	}
	if err := d.write(ctx); err != nil || d.backlog.building != nil {
		return err
	}
	return d.rejoin(ctx)
}

// rejoin gives the collections that were kept back to the lanes again. The lanes are idle,
// nothing is kept back any more, and no lane is ahead of the last entry handed out: the
// barrier moves there.
func (d *dispatcher) rejoin(ctx context.Context) error {
	r := &d.routes
	r.frozen, r.turn = false, 0
	clear(r.kept)
	d.stats.keptBack.Store(nil)
	r.forget()
	if err := d.reroute(ctx, checkpoint.Position{OpTime: d.last, Op: checkpoint.AllOps}, r.differences()); err != nil {
		return err
	}
	return d.recordKept(ctx)
}

// recordKept records which collections are kept back.
func (d *dispatcher) recordKept(ctx context.Context) error {
	var list []checkpoint.KeptBack
	for ns, since := range d.routes.kept {
		list = append(list, checkpoint.KeptBack{NS: ns, Since: since})
	}
	s := span{ops: []plan.Op{{At: checkpoint.Position{OpTime: d.last, Op: checkpoint.AllOps}}}}
	for tries := d.barrier.tries(&s); ; {
		err := d.link.KeepBack(ctx, list)
		if err == nil {
			return nil
		}
		if err := tries.wait(ctx, err); err != nil {
			return err
		}
	}
}
