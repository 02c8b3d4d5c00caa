package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/initialsync"
	"github.com/oplogrep/replicator/oplog"
)

// beginCopy chooses the member to copy, and finds where the oplog meets the copy.
func (p *Pipeline) beginCopy(ctx context.Context) (checkpoint.Copy, int64, error) {
	c, wall, err := initialsync.Begin(ctx, p.watcher, p.resolver, p.cfg.Observer)
	c.Cleared = !p.cfg.Copy.DropExisting
	return c, wall, err
}

// copyAnew starts another copy in place of a void one.
func (p *Pipeline) copyAnew(ctx context.Context, link *checkpoint.Link, old *checkpoint.Copy, why error) error {
	if p.copies >= p.cfg.Copy.MaxCopies {
		return fmt.Errorf("%w: %d were started since the start, copy %d was the last: %w", ErrCopies, p.copies, old.Number, why)
	}
	p.cfg.Observer.Log(slog.LevelWarn, "the copy is void and starts again", slog.Int64(keyNumber, old.Number), slog.Any(keyError, why))
	p.monitor.Starting("the copy has to be made anew: " + why.Error())
	next, wall, err := p.beginCopy(ctx)
	if err != nil {
		return err
	}
	next.Number, next.Why, next.Cleared = old.Number+1, why.Error(), false
	if err := p.resyncs.Stop(ctx); err != nil {
		return err
	}
	if err := link.BeginCopy(ctx, next, wall); err != nil {
		return err
	}
	p.copies++
	p.feedback, p.earlier, p.earlierFor = nil, oplog.OpTime{}, oplog.OpTime{}
	if err := p.log.Remove(); err != nil {
		return err
	}
	return p.resyncs.Remove(ctx)
}

// ErrCopies reports a source of which every copy became void.
var ErrCopies = errors.New("no copy of the source became consistent")
