package fetcher

import (
	"context"
	"fmt"

	"github.com/oplogrep/replicator/oplog"
)

// checkStart checks the first reply of a cursor: that the member has come as far
// as the entry that reading starts from, and that this entry is part of its
// history. A member that is behind must not be taken for one with another history.
func (t *tail) checkStart(ctx context.Context, p *page, meta *Metadata) error {
	var first oplog.OpTime
	if p.n > 0 {
		var err error
		if first, err = p.first(); err != nil {
			return err
		}
	}
	shows := meta.Committed
	switch {
	case shows.Before(t.last):
		return fmt.Errorf("%w: it shows entries up to %s, wanted is %s", ErrSourceBehind, shows, t.last)
	case t.cfg.RequireFresher && shows.Equal(t.last):
		return fmt.Errorf("%w: it shows nothing behind %s", ErrSourceBehind, t.last)
	case p.n > 0 && first.Equal(t.last):
		return nil
	}
	return t.startMissing(ctx, first)
}

// startMissing finds out why the start was not what the member showed first, but
// got, which is null if it showed nothing.
func (t *tail) startMissing(ctx context.Context, got oplog.OpTime) error {
	oldest, err := t.oldest(ctx)
	if err != nil {
		return fmt.Errorf("ask for the oldest entry: %w", err)
	}
	// Timestamps only: terms of two histories do not compare.
	if oplog.CompareTimestamps(t.last.TS, oldest.TS) < 0 {
		return &TooStaleError{Want: t.last, Oldest: oldest}
	}
	if !got.IsNull() {
		return &StartMissingError{Want: t.last, Got: got}
	}
	// The commit point may have come between the read and the metadata beside it.
	p, err := t.page(ctx, t.lookCommand(t.last.TS), probeTime, firstBatch)
	if err != nil {
		return fmt.Errorf("look for %s again: %w", t.last, err)
	}
	if p.n > 0 {
		if got, err = p.first(); err != nil {
			return err
		}
	}
	if !got.IsNull() && got.Equal(t.last) {
		return fmt.Errorf("%w: it showed %s only when asked again", ErrSourceBehind, t.last)
	}
	return &StartMissingError{Want: t.last, Got: got}
}

// oldest asks for the optime of the member's oldest entry.
func (t *tail) oldest(ctx context.Context) (oplog.OpTime, error) {
	p, err := t.page(ctx, t.oldestCommand(), probeTime, firstBatch)
	switch {
	case err != nil:
		return oplog.OpTime{}, err
	case p.n == 0:
		return oplog.OpTime{}, ErrEmptyOplog
	}
	return p.first()
}
