package pipeline

import (
	"context"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
)

// endedWithin is how long an attempt that cannot ask the source asks the target whether the link has ended.
const endedWithin = 10 * time.Second

// endedOr returns the end of the link, if it has ended, and otherwise err, the error of an attempt that could not ask
// the source. A link is promoted because its source is gone: an attempt would not come to read its lease.
func (p *Pipeline) endedOr(ctx context.Context, err error) error {
	if p.cfg.part != nil || ctx.Err() != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, endedWithin)
	defer cancel()
	st, found, unread := p.store.Find(limited)
	if unread != nil || !found || st.Over == nil {
		return err
	}
	return &checkpoint.OverError{Link: p.cfg.Link, Over: *st.Over}
}
