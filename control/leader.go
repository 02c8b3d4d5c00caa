package control

import (
	"context"
	"errors"

	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/request"
)

// errAcquires cancels writes under a lease that the process acquires again.
var errAcquires = errors.New("the process acquires its lease")

// passes reports whether an error needs no mention: the lease says what comes next, or it is
// tried again in a second.
func passes(err error) bool {
	for _, is := range []error{errAcquires, request.ErrChanged, lease.ErrFenced, lease.ErrExpired, lease.ErrSpent} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

// Leads records the lease under which requests are acted on, nil while the process has none, or
// acquires the next one. When it returns, nothing is written any more under the one before.
func (c *Controller) Leads(by request.Leader) {
	c.mu.Lock()
	c.leader = by
	stop := c.stop
	c.mu.Unlock()
	if stop != nil {
		stop(errAcquires)
	}
	c.writing <- struct{}{}
	<-c.writing
}

func (c *Controller) leads() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leader != nil
}

// under writes something under the lease that the process has.
func (c *Controller) under(ctx context.Context, write func(ctx context.Context, by request.Leader) error) error {
	c.writing <- struct{}{}
	defer func() { <-c.writing }()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c.mu.Lock()
	by := c.leader
	c.stop = stop
	c.mu.Unlock()
	if by == nil {
		return errAcquires
	}
	err := write(ctx, by)
	if err != nil && errors.Is(context.Cause(ctx), errAcquires) {
		return errAcquires
	}
	return err
}
