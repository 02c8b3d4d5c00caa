package control

import (
	"context"

	"github.com/oplogrep/replicator/request"
)

// Repairs rewrites documents of the link: *repair.Manager. It is safe for concurrent use.
type Repairs interface {
	// Follow begins a repair under the term of a lease, unless it is begun, and returns its
	// state and outcome so far. It does not block.
	Follow(term int64, id string, args request.RepairArgs, why string) (state, outcome string)
	// Forget forgets one that has ended.
	Forget(id string)
}

// repair rewrites documents, and follows that to its end. A process that takes the link over
// begins it again.
func (c *Controller) repair(ctx context.Context, r *request.Record) error {
	args, err := r.Repair()
	if err != nil {
		return c.answer(ctx, r, request.Refused, err.Error())
	}
	c.mu.Lock()
	by := c.leader
	c.mu.Unlock()
	if by == nil {
		return errAcquires
	}
	state, outcome := c.cfg.Repairs.Follow(by.Term(), r.ID, args, r.Why)
	if now := c.paused(); now != nil && state == request.Working {
		outcome = "waits: the link is paused"
	}
	if err := c.answer(ctx, r, state, outcome); err != nil {
		return err
	}
	if !r.Open() {
		c.cfg.Repairs.Forget(r.ID)
	}
	return nil
}
