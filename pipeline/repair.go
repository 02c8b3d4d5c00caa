package pipeline

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/jobs"
	"github.com/oplogrep/replicator/repair"
)

// repairs rewrites documents for requests of operators. A nil one does nothing.
type repairs struct {
	*repair.Manager
	locks *jobs.Locks
}

func (p *Pipeline) newRepairs() {
	locks := p.newJobs("repair")
	p.repairs = &repairs{locks: locks, Manager: repair.New(repair.Config{
		Source: p.source, Target: p.target, Scope: p.cfg.Scope, Cuts: p, Locks: locks, Held: p.isPaused, Delay: p.cfg.Delay, Proved: p.cfg.OnRepaired,
	})}
}

// groups are what an attempt is to write, nil for none.
func (r *repairs) groups() <-chan *applier.Repair {
	if r == nil {
		return nil
	}
	return r.Groups()
}

// run carries out repairs while this process leads, until ctx is done.
func (r *repairs) run(ctx context.Context) {
	locking, end := outlast(ctx, releaseWithin) // locks that are held are unlocked at the end
	defer end()
	r.locks.Begin(locking)
	r.Run(ctx)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	r.locks.End(ending)
}

// outlast returns a context that ends so long after another one.
func outlast(ctx context.Context, d time.Duration) (context.Context, func()) {
	longer, end := context.WithCancelCause(context.WithoutCancel(ctx))
	var timer *time.Timer
	begun := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(begun)
		timer = time.AfterFunc(d, func() { end(context.Cause(ctx)) })
	})
	return longer, func() {
		if !stop() {
			<-begun
			timer.Stop()
		}
		end(nil)
	}
}
