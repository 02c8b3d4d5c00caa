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
	c, wall, err := p.members.Begin(ctx)
	c.Cleared = !p.cfg.Copy.DropExisting
	return c, wall, err
}

// copyOrFollow continues the copy, or applies the oplog. A copy that has become void starts
// again.
func (p *Pipeline) copyOrFollow(ctx, soft context.Context, link *checkpoint.Link, src checkpoint.Source, until oplog.OpTime) (err error) {
	st := link.State()
	if st.Copy != nil && st.Copy.Phase == checkpoint.Copying {
		err = p.copy(ctx, soft, link, src)
	} else {
		err = p.follow(ctx, soft, link, src, until)
	}
	// The copier does not announce a member that it could not even reach.
	if st.Copy == nil || !initialsync.Void(err) || st.Copy.Phase != checkpoint.Copying && !p.monitor.Gaps().Copying {
		return err
	}
	if err = p.candidate.BeforeEnd(ctx, soft, err); ctx.Err() != nil {
		return err
	}
	return p.copyAnew(ctx, link, st.Copy, err)
}

// copyAnew starts another copy in place of a void one.
func (p *Pipeline) copyAnew(ctx context.Context, link *checkpoint.Link, old *checkpoint.Copy, why error) error {
	if p.copies >= p.cfg.Copy.MaxCopies {
		return fmt.Errorf("%w: %d were started since the start, copy %d was the last: %w", ErrCopies, p.copies, old.Number, why)
	}
	p.monitor.Starting("the copy will start again from the beginning, once a member of the source can be copied: " + why.Error())
	next, wall, err := p.beginCopy(ctx)
	if err != nil {
		return fmt.Errorf("the copy is void (%v), and another one cannot begin: %w", why, err) //nolint:errorlint // Only err says what to do.
	}
	if as[*initialsync.NoMemberError](why) {
		// Members answer, at least now: one of them may continue the copy after all.
		if _, err := p.members.Choose(ctx, link); err == nil {
			return fmt.Errorf("a member of the source answers again, and the copy continues: %w", why)
		}
	}
	p.cfg.Observer.Log(slog.LevelWarn, "the copy is void and starts again", slog.Int64(keyNumber, old.Number), slog.Any(keyError, why))
	p.monitor.Starting("the copy starts again from the beginning: " + why.Error())
	next.Number, next.Why, next.Cleared = old.Number+1, why.Error(), false
	if err := p.resyncs.Stop(ctx); err != nil {
		return err
	}
	if err := link.BeginCopy(ctx, next, wall); err != nil {
		return err
	}
	p.copies++
	p.feedback = nil
	if err := p.oplog.Remove(); err != nil {
		return err
	}
	return p.resyncs.Remove(ctx)
}

// ErrCopies reports a source of which every copy became void.
var ErrCopies = errors.New("no copy of the source became consistent")
