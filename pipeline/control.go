package pipeline

import (
	"context"
	"fmt"
	"sync"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/control"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
	"github.com/oplogrep/replicator/repair"
)

// newControl creates the Controller that carries out the requests of operators. A part obeys that of its link,
// unless it is being merged: that is finished.
func (p *Pipeline) newControl() {
	if part := p.cfg.part; part != nil {
		if part.of.Until.IsNull() {
			p.brake = part.brake
		}
		return
	}
	p.repairs = repair.New(repair.Config{
		Source: p.source, Target: p.target, Scope: p.cfg.Scope, Cuts: p, Locks: p.newJobs("repair"), Held: p.isPaused, Delay: p.cfg.Delay, Proved: p.cfg.OnRepaired,
	})
	p.control = control.New(control.Config{
		Requests: p.requests, Target: p.target, Applied: func() oplog.OpTime { return p.monitor.Progress().Applied },
		Cuts: p, Repairs: p.repairs, Verification: p.cfg.Verification, SetLevel: p.cfg.SetLogLevel, Observer: p.cfg.Observer,
	})
	p.brake = p.control.Brake()
}

// beginControl carries out requests while attempts run. The result ends that.
func (p *Pipeline) beginControl(ctx context.Context) (end func()) {
	if p.control == nil {
		return func() {}
	}
	p.control.Begin()
	ctx, stop := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	running.Go(func() { p.control.Run(ctx) })
	running.Go(func() { p.repairs.Run(ctx) })
	return func() {
		stop(nil)
		running.Wait()
	}
}

// isPaused reports whether nothing may be applied.
func (p *Pipeline) isPaused() bool { return p.brake != nil && p.brake.Paused() }

// enter waits while nothing may be written. Leave says that those writes are finished.
func (p *Pipeline) enter(ctx context.Context) (leave func(), err error) {
	if p.brake == nil {
		return func() {}, nil
	}
	return p.brake.Enter(ctx)
}

// brakeFor returns the brake of an attempt, and how to release it.
func (p *Pipeline) brakeFor(soft context.Context) (brake applier.Brake, release func()) {
	if p.brake == nil {
		return nil, func() {}
	}
	h := p.brake.For(soft)
	return h, h.Release
}

// endPaused returns how a run ends that is to end in order while the link is paused: it applies
// nothing more. Unapplied entries are read again after the next start.
func (p *Pipeline) endPaused() error {
	if p.cfg.part == nil && !p.hasUnapplied() && !p.oplog.HasSpooled() && len(p.monitor.Gaps().LeftOut) == 0 {
		return nil
	}
	return fmt.Errorf("%w: the link is paused, so the entries read are not applied: the oplog was read up to %s, and is applied up to %s",
		failure.ErrStopped, p.unapplied, p.monitor.Progress().Applied)
}
