package applier

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metric"
)

const (
	// cutShare limits the part of the time (1/n) that lanes are idle for cuts, as long as nobody
	// asks for one: after a cut for which a lane was idle for d, on average, the next one is made
	// after n*d.
	cutShare = 50
	// cutAgain is the time after which a cut is tried again that could not be made.
	cutAgain = time.Second
)

// cuts makes consistent cuts: see checkpoint.Cut. The dispatcher brings all lanes to the
// last entry that it has handed out, and commits the cut's record; the lanes continue
// while the majority of the target confirms it.
type cuts struct {
	// made passes a cut to confirmLoop; it has room for one. unconfirmed means that one is on
	// its way: no other is made then.
	made        chan checkpoint.Cut
	unconfirmed atomic.Bool
	// confirmed notifies the dispatcher of the end of that way.
	confirmed chan struct{}
	// timer fires when the next cut is due. It belongs to the dispatcher, like the rest. Asked
	// means that somebody has asked for a cut that was not made yet, open that the metadata are
	// prepared.
	timer       *time.Timer
	asked, open bool
}

// beginCuts returns the channel that says when a cut is due.
func (d *dispatcher) beginCuts() (due <-chan time.Time, endCuts func()) {
	d.cuts.timer = time.NewTimer(d.cfg.CutEvery)
	if d.cfg.CutEvery == 0 {
		d.cuts.timer.Stop()
	}
	return d.cuts.timer.C, func() {
		d.cuts.timer.Stop()
		close(d.cuts.made)
	}
}

// openCuts prepares the first cut, and tells the newest one of an earlier run.
func (d *dispatcher) openCuts(ctx context.Context) error {
	if d.cuts.open {
		return nil
	}
	list, err := d.link.OpenCuts(ctx)
	if err != nil {
		return err
	}
	d.cuts.open = true
	if len(list) > 0 {
		d.cfg.OnCut(list[0])
	}
	return nil
}

// cutIfAsked makes a cut if somebody has asked for one.
func (d *dispatcher) cutIfAsked(ctx context.Context) error {
	if !d.cuts.asked {
		return nil
	}
	return d.cutOrRest(ctx)
}

// restAfter sets when the next cut is due, after one for which a lane was idle for so long.
func (d *dispatcher) restAfter(idle time.Duration) {
	d.cuts.asked = false
	if d.cfg.CutEvery > 0 {
		d.cuts.timer.Reset(max(d.cfg.CutEvery, cutShare*idle))
	}
}

// cutOrRest makes a cut, unless the target is not consistent at the last entry that was
// handed out. It is called between batches, so between two entries or transactions of the
// source.
func (d *dispatcher) cutOrRest(ctx context.Context) error {
	d.stats.meter.Enter(metric.Busy)
	why := d.noCut()
	d.stats.noCut.Store(&why)
	if why != "" {
		if every := d.cfg.CutEvery; every > 0 {
			d.cuts.timer.Reset(min(cutAgain, every))
		} else if d.cuts.asked {
			d.cuts.timer.Reset(cutAgain)
		}
		return nil
	}
	if err := d.openCuts(ctx); err != nil {
		return err
	}
	began := time.Now()
	if err := d.quiesceLanes(ctx, d.last); err != nil {
		return err
	}
	made, err := d.barrier.lane.Cut(ctx, d.last, d.lastWall, d.tracker.positions())
	stall, idle := time.Since(began), d.tracker.idleSince(began)
	d.metrics.cutStall.Observe(stall.Seconds())
	switch {
	case err != nil && (judge(err) == again || judge(err) == smaller):
		// The lanes do not wait for another try.
		why = "the target has refused it for the moment: " + err.Error()
		d.stats.noCut.Store(&why)
		d.cuts.asked = false
		d.cuts.timer.Reset(max(cutAgain, cutShare*idle))
		return nil
	case err != nil:
		return err
	}
	made.Stall = stall
	d.restAfter(idle)
	d.cuts.unconfirmed.Store(true)
	select {
	case d.cuts.made <- made: // it has room: the one before is confirmed
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// noCut returns why the target is not the source as of the last entry that was handed out,
// whatever the lanes have applied, or why there can be no cut now; empty if there can be.
func (d *dispatcher) noCut() string {
	gaps := d.link.Gaps()
	switch {
	case !d.ended || gaps.Copying || d.last.Before(gaps.CopiedUntil):
		return "the copy is not consistent yet"
	case len(gaps.LeftOut) > 0:
		return "a collection is left out until it has been copied again: " + string(gaps.LeftOut[0].NS)
	case !d.backlog.isEmpty() || len(d.routes.kept) > 0:
		return "a collection waits for its index build"
	case d.last.Before(d.furthest):
		return "before the last start some lanes were ahead of others, up to " + d.furthest.String()
	case d.cuts.unconfirmed.Load():
		return "the last cut is not committed by a majority of the target yet"
	}
	return ""
}

// confirmLoop waits until cuts are majority-committed, and tells them then. A cut that is
// not confirmed is not told, and does no other harm.
func (a *Applier) confirmLoop(ctx context.Context) error {
	for {
		select {
		case c, ok := <-a.cuts.made:
			if !ok {
				return nil
			}
			a.confirm(ctx, c)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (a *Applier) confirm(ctx context.Context, c checkpoint.Cut) {
	defer func() {
		a.cuts.unconfirmed.Store(false)
		signal(a.cuts.confirmed)
	}()
	there, err := a.link.Confirm(ctx, c)
	switch {
	case ctx.Err() != nil:
		// The attempt ends.
	case err != nil:
		a.metrics.cutsDropped.Inc()
		a.cfg.Observer.Log(slog.LevelWarn, "a consistent cut was not confirmed by the target, and is not told; the next one follows",
			slog.String(keyOpTime, c.Source.String()), slog.String(keyCause, err.Error()))
	case !there:
		a.metrics.cutsDropped.Inc()
		a.cfg.Observer.Log(slog.LevelInfo, "a failover of the target has taken back a consistent cut, which was not told; the next one follows",
			slog.String(keyOpTime, c.Source.String()))
	default:
		a.metrics.cuts.Inc()
		a.stats.cuts.Add(1)
		a.cfg.OnCut(c)
	}
}
