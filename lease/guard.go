package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
)

// guarded sends commands only while the lease is not over. A process that was suspended
// finds that out here, whatever its goroutines were about to do, before any timer has
// ended their contexts.
type guarded struct {
	mongo.Caller
	keeper *Keeper
}

// guardedPipeliner is a guarded whose Caller is a mongo.Pipeliner.
type guardedPipeliner struct {
	guarded
	pipeliner mongo.Pipeliner
}

// guard returns a Caller that sends commands only while the lease is not over. It does not
// change a Caller for a Keeper that is nil.
func (k *Keeper) guard(c mongo.Caller) mongo.Caller {
	if k == nil {
		return c
	}
	g := guarded{c, k}
	if p, ok := c.(mongo.Pipeliner); ok {
		return guardedPipeliner{g, p}
	}
	return g
}

// sendBy returns when a command has to be sent at last, zero without a lease.
func (g guarded) sendBy() (time.Time, error) {
	if err := g.keeper.Err(); err != nil {
		return time.Time{}, fmt.Errorf("not sent: %w", err)
	}
	return g.keeper.Until(), nil
}

// limit returns the time by which a command has to be sent: the end of the lease, or an
// earlier one of its own.
func limit(own, end time.Time) time.Time {
	if !end.IsZero() && (own.IsZero() || end.Before(own)) {
		return end
	}
	return own
}

// again reports whether a command that was not sent in time can be sent after all: the lease
// was renewed while it waited for a connection, or for a primary.
func (g guarded) again(err error, by time.Time) bool {
	return errors.Is(err, mongo.ErrTooLate) && g.keeper.Err() == nil && g.keeper.Until().After(by)
}

// late adds ErrExpired to the error of a command that was not sent in time.
func late(err error) error {
	if errors.Is(err, mongo.ErrTooLate) {
		return fmt.Errorf("%w: %w", ErrExpired, err)
	}
	return err
}

// Call implements mongo.Caller.
func (g guarded) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	own := cmd.SendBy
	for {
		by, err := g.sendBy()
		if err != nil {
			return nil, err
		}
		cmd.SendBy = limit(own, by)
		reply, err := g.Caller.Call(ctx, cmd)
		switch {
		case errors.Is(err, mongo.ErrTooLate) && cmd.Overdue() && !cmd.SendBy.Equal(by):
			return nil, err // by its own limit
		case !g.again(err, by):
			return reply, late(err)
		}
	}
}

// CallAll implements mongo.Pipeliner.
func (g guardedPipeliner) CallAll(ctx context.Context, cmds []mongo.Command, each func(i int, reply bson.Raw) error) error {
	own := make([]time.Time, len(cmds))
	for i := range cmds {
		own[i] = cmds[i].SendBy
	}
	for {
		by, err := g.sendBy()
		if err != nil {
			return err
		}
		for i := range cmds {
			cmds[i].SendBy = limit(own[i], by)
		}
		sent := false
		err = g.pipeliner.CallAll(ctx, cmds, func(i int, reply bson.Raw) error {
			sent = true
			return each(i, reply)
		})
		if sent || !g.again(err, by) {
			return late(err)
		}
	}
}
