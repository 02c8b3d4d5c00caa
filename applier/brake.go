package applier

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/applier/plan"
)

// Brake stops the dispatcher, or slows it down, as operators ask for. What the lanes have
// already is not affected, so the order of operations does not change. All methods are called
// by the dispatcher's goroutine, except Took.
type Brake interface {
	// Free reports whether nothing holds or limits. It is called for each operation.
	Free() bool
	// Changed returns a channel that is closed when that, or a limit, may have changed.
	Changed() <-chan struct{}
	// Paused reports whether nothing may be applied.
	Paused() bool
	// Hold is called when everything that was handed to lanes is in the target. It returns
	// once operations may be applied, or an error that ends the run.
	Hold(ctx context.Context) error
	// Delay returns how long to wait before the next operation is handed to a lane.
	Delay() time.Duration
	// Spend counts operations that are handed to lanes. It may be more than the limits allow: that delays
	// what follows. Bytes are those of their documents, as in Took.
	Spend(ops int, bytes int64)
	// Took reports how long a flush took. Lanes call it concurrently.
	Took(d time.Duration, ops int, bytes func() int64)
}

// throttle waits until operations of this size may be handed to lanes, and counts them.
func (d *dispatcher) throttle(ctx context.Context, ops int, bytes int64) error {
	b := d.cfg.Brake
	if b == nil || b.Free() {
		return nil
	}
	for {
		changed := b.Changed()
		if err := d.hold(ctx); err != nil {
			return err
		}
		wait := b.Delay()
		if wait <= 0 {
			b.Spend(ops, bytes)
			return nil
		}
		if err := d.rest(ctx, wait, changed); err != nil {
			return err
		}
	}
}

// spend counts operations that do not wait for their turn.
func (d *dispatcher) spend(ops int, bytes func() int64) {
	if b := d.cfg.Brake; b != nil && !b.Free() {
		b.Spend(ops, bytes())
	}
}

// bytesOf is the size of operations in the log, in bytes.
func bytesOf(ops []plan.Op) int64 {
	n := int64(0)
	for i := range ops {
		n += sizeOf(&ops[i].Op)
	}
	return n
}

// rest waits, or until the brake changes. Ready operations go to the lanes before that.
func (d *dispatcher) rest(ctx context.Context, wait time.Duration, changed <-chan struct{}) error {
	d.handOver()
	d.stats.wait(throttled)
	defer d.stats.wait(nothing)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// hold waits while nothing may be applied. The lanes finish their operations first: a lane
// that waits for the rest of a span that it had announced at the start gets that rest.
func (d *dispatcher) hold(ctx context.Context) error {
	b := d.cfg.Brake
	if b == nil || b.Free() || !b.Paused() || d.isCut() {
		return nil
	}
	d.handOver()
	for !d.tracker.quiet() {
		select {
		case <-d.tracker.idle:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	d.stats.wait(resumption)
	defer d.stats.wait(nothing)
	return b.Hold(ctx)
}

// braked returns the channel on which a change of the brake is noticed while no batch comes,
// nil if there is no brake.
func (d *dispatcher) braked() <-chan struct{} {
	if b := d.cfg.Brake; b != nil {
		return b.Changed()
	}
	return nil
}

// took reports a flush to the brake.
func (a *Applier) took(d time.Duration, ops []plan.Op) {
	b := a.cfg.Brake
	if b == nil || b.Free() {
		return
	}
	b.Took(d, len(ops), func() int64 { return bytesOf(ops) })
}
