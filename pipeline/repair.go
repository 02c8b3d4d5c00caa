package pipeline

import (
	"context"

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
		Source: p.source, Target: p.target, Scope: p.cfg.Scope, Cuts: p, Locks: locks,
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
	r.locks.Begin(context.WithoutCancel(ctx)) // what is held is unlocked at the end
	r.Run(ctx)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	r.locks.End(ending)
}
