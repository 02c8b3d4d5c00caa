package applier

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/metric"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
)

const (
	// cutShare limits the part of the time (1/n) that lanes are idle for cuts that were not
	// requested: after a cut for which a lane was idle for d, on average, the next one is made
	// after n*d.
	cutShare = 50
	// cutRest is the longest such time, if the interval is not longer: a failover of the target, or a target that hangs,
	// has lanes idle for long, and says nothing of the next cut.
	cutRest = time.Minute
	// cutAgain is the time after which a cut is tried again that could not be made, cutAskedAgain the longest time after which
	// one is that was requested and refused: something waits for it.
	cutAgain, cutAskedAgain = time.Second, 5 * time.Second
)

// cuts makes consistent cuts: see checkpoint.Cut. The dispatcher brings all lanes to the
// last entry that it has handed out, and commits the cut's record; the lanes continue
// while the majority of the target confirms it. A cut that cannot be made is left out: only
// what shows that the target, or the lease, is not this process's any more ends the attempt.
type cuts struct {
	// wanted tells confirmLoop to prepare the metadata; open says that they are, closed why they
	// could not be. Each has room for one.
	wanted chan struct{}
	open   atomic.Bool
	closed atomic.Pointer[string]
	// made passes a cut to confirmLoop; it has room for one. unconfirmed means that one is on
	// its way: no other is made then.
	made        chan checkpoint.Cut
	unconfirmed atomic.Bool
	// confirmFailed means that the last cut was not confirmed, for an error. It belongs to confirmLoop.
	confirmFailed bool
	// confirmed notifies the dispatcher of the end of that way, and that the metadata are
	// prepared.
	confirmed chan struct{}
	// timer fires when the next cut is due. It belongs to the dispatcher, like the rest. Asked
	// means that a cut is to be made as soon as possible, refused that the target has refused the
	// last one.
	timer          *time.Timer
	asked, refused bool
	// notBefore is when a cut that was requested is tried again after a refusal.
	notBefore time.Time
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

// cutIfAsked makes a cut if one was requested.
func (d *dispatcher) cutIfAsked(ctx context.Context) error {
	if !d.cuts.asked || time.Now().Before(d.cuts.notBefore) {
		return nil
	}
	return d.cutOrRest(ctx)
}

// restAfter sets when the next cut is due, after one for which a lane was idle for so long.
func (d *dispatcher) restAfter(idle time.Duration) {
	d.cuts.asked = false
	if d.cfg.CutEvery == 0 {
		d.cuts.timer.Stop() // it would retry a cut that was requested once
		return
	}
	d.cuts.timer.Reset(max(d.cfg.CutEvery, min(cutShare*idle, cutRest)))
}

// cutOrRest makes a cut, unless the target is not consistent at the last entry that was
// handed out. It is called between batches, so between two entries or transactions of the
// source.
func (d *dispatcher) cutOrRest(ctx context.Context) error {
	d.stats.meter.Enter(metric.Busy)
	why := d.noCut()
	d.stats.noCut.Store(&why)
	if why != "" {
		if !d.cuts.open.Load() {
			d.cuts.asked = true // it is made once the metadata are prepared
			signal(d.cuts.wanted)
		}
		if every := d.cfg.CutEvery; every > 0 {
			d.cuts.timer.Reset(min(cutAgain, every))
		} else if d.cuts.asked {
			d.cuts.timer.Reset(cutAgain)
		}
		return nil
	}
	began := time.Now()
	if err := d.quiesceLanes(ctx, d.last); err != nil {
		return err
	}
	made, err := d.barrier.lane.Cut(ctx, d.last, d.lastWall, d.tracker.positions())
	stall, idle := time.Since(began), d.tracker.idleSince(began)
	d.metrics.cutStall.Observe(stall.Seconds())
	if err != nil {
		return d.leaveOutCut(ctx, err, idle)
	}
	made.Stall, d.cuts.refused = stall, false
	d.restAfter(idle)
	d.cuts.unconfirmed.Store(true)
	select {
	case d.cuts.made <- made: // it has room: the one before is confirmed
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leaveOutCut continues after a cut that has failed, unless the process has lost the lease, or the
// target what a lane had written. Lanes do not wait for another try. Whatever is wrong with the
// target, lanes find out when they write.
func (d *dispatcher) leaveOutCut(ctx context.Context, err error, idle time.Duration) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, lease.ErrFenced), errors.Is(err, lease.ErrRewound), errors.Is(err, checkpoint.ErrAhead):
		return err
	}
	d.metrics.cutsDropped.Inc()
	why := refusedCut + err.Error()
	d.stats.noCut.Store(&why)
	if !d.cuts.refused {
		d.cuts.refused = true
		d.cfg.Observer.Log(slog.LevelWarn, "the target has refused a consistent cut, which is left out; it is tried again, and the link continues",
			slog.String(keyOpTime, d.last.String()), slog.String(keyCause, err.Error()))
	}
	again := max(cutAgain, min(cutShare*idle, cutRest))
	asked := min(again, cutAskedAgain)
	d.cuts.notBefore = time.Now().Add(asked) // it stays requested: there may be none when the timer fires
	if d.cuts.asked {
		again = asked
	}
	d.cuts.timer.Reset(again)
	return nil
}

// refusedCut precedes the error for which there was no cut.
const refusedCut = "the target has refused it: "

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
	case d.inDoubt:
		return "a prepared transaction of the source is not ended: it may take effect at an earlier time than its commit"
	case d.cuts.unconfirmed.Load():
		return "the last cut is not committed by a majority of the target yet"
	case !d.cuts.open.Load():
		if why := d.cuts.closed.Load(); why != nil {
			return *why
		}
		return "the metadata are being prepared for cuts"
	}
	return ""
}

// confirmLoop waits until cuts are majority-committed, and tells them then. A cut that is
// not confirmed is not told, and does no other harm. Before the first cut it prepares the
// metadata, and tells the newest cut of an earlier run.
func (a *Applier) confirmLoop(ctx context.Context) error {
	for {
		select {
		case <-a.cuts.wanted:
			a.openCuts(ctx)
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

func (a *Applier) openCuts(ctx context.Context) {
	if a.cuts.open.Load() {
		return
	}
	list, err := a.link.OpenCuts(ctx)
	if err != nil {
		why := refusedCut + err.Error()
		a.cuts.closed.Store(&why)
		_ = mongo.Pause(ctx, cutAgain) // it is asked for with each batch
		return
	}
	if len(list) > 0 {
		a.cfg.OnCut(list[0])
	}
	a.cuts.open.Store(true)
	signal(a.cuts.confirmed)
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
		if !a.cuts.confirmFailed {
			a.cfg.Observer.Log(slog.LevelWarn, "a consistent cut was not confirmed by the target, and is not told; the next one follows",
				slog.String(keyOpTime, c.Source.String()), slog.String(keyCause, err.Error()))
		}
		a.cuts.confirmFailed = true
	case !there:
		a.metrics.cutsDropped.Inc()
		a.cfg.Observer.Log(slog.LevelInfo, "a failover of the target has taken back a consistent cut, which was not told; the next one follows",
			slog.String(keyOpTime, c.Source.String()))
	default:
		a.cuts.confirmFailed = false
		a.metrics.cuts.Inc()
		a.stats.cuts.Add(1)
		a.cfg.OnCut(c)
	}
}
