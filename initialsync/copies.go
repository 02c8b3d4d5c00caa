package initialsync

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/oplogrep/replicator/checkpoint"
)

// ErrCopies reports a source of which every copy became void.
var ErrCopies = errors.New("no copy of the source became consistent")

// Copies begins the copies of one run of a link: that of a new link, and others in place of void
// ones. Its methods are for one goroutine.
type Copies struct {
	options Options
	members *Members
	// started is the number of copies that the run has started.
	started int64
}

// NewCopies returns the Copies of a run that has started none.
func NewCopies(options Options, members *Members) *Copies {
	return &Copies{options: options, members: members}
}

// Begin chooses the member to copy, and finds where the oplog meets the copy: see [Members.Begin].
func (c *Copies) Begin(ctx context.Context) (checkpoint.Copy, int64, error) {
	next, wall, err := c.members.Begin(ctx)
	next.Cleared = !c.options.DropExisting
	return next, wall, err
}

// Started counts a copy, once it is recorded.
func (c *Copies) Started() { c.started++ }

// Limit returns an error that wraps ErrCopies if no other copy may be started in place of a void
// one. Why is the reason that it is void.
func (c *Copies) Limit(old *checkpoint.Copy, why error) error {
	if c.started >= c.options.MaxCopies {
		return fmt.Errorf("%w: %d were started since the start, copy %d was the last: %w", ErrCopies, c.started, old.Number, why)
	}
	return nil
}

// Again begins a copy in place of a void one, unless a member can continue that after all.
func (c *Copies) Again(ctx context.Context, link *checkpoint.Link, old *checkpoint.Copy, why error) (checkpoint.Copy, int64, error) {
	next, wall, err := c.Begin(ctx)
	if err != nil {
		return next, wall, fmt.Errorf("the copy is void (%v), and another one cannot begin: %w", why, err) //nolint:errorlint // Only err says what to do.
	}
	if _, ok := errors.AsType[*NoMemberError](why); ok {
		// Members answer, at least now: one of them may continue the copy after all.
		if _, err := c.members.Choose(ctx, link); err == nil {
			return next, wall, fmt.Errorf("a member of the source answers again, and the copy continues: %w", why)
		}
	}
	c.members.cfg.Observer.Log(slog.LevelWarn, "the copy is void and starts again", slog.Int64(keyNumber, old.Number), slog.Any(keyError, why))
	next.Number, next.Why, next.Cleared = old.Number+1, why.Error(), false
	return next, wall, nil
}
