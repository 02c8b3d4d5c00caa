package cutover

import (
	"context"
	"errors"
	"fmt"

	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// unblocked is the result of the step unblock.
const unblocked = "the target takes writes of users"

// unblockTarget lets the target take writes of users, if it blocks them: an operator has blocked it
// while it was a mirror, or it is the old source of a cutover that goes back. Nothing is recorded of a
// target that has no block. It follows the commit point, so it may be repeated at any time.
func (w *work) unblockTarget(ctx context.Context) error {
	on, err := Blocked(ctx, w.cfg.Target)
	switch {
	case err != nil && servererr.Classify(err) == servererr.Auth:
		w.cfg.Drain.say("whether writes of users to the target are blocked is not known: " + err.Error())
		return nil
	case err != nil:
		return &StepError{record.Unblock, fmt.Errorf("ask whether writes of users to the target are blocked: %w", err)}
	case !on && w.rec.Began(record.Unblock) && !w.rec.Has(record.Unblock): // by a process that was interrupted then
		return w.change(ctx, func(r *record.Record) { r.End(record.Unblock, unblocked, now()) })
	case !on:
		return nil
	}
	blockedSince := !w.rec.Has(record.Unblock) // since the commit: nobody could write
	return w.step(ctx, record.Unblock, func(ctx context.Context, r *record.Record) (string, error) {
		if _, err := w.lower(ctx, w.cfg.Target, w.ours); err != nil {
			if servererr.Classify(err) == servererr.Auth {
				err = errors.Join(err, errors.New("grant setUserWriteBlockMode on the target, or lift the block by hand"))
			}
			return "", fmt.Errorf("let the target take writes: %w", err)
		}
		if blockedSince && !r.Frozen.IsZero() {
			r.DowntimeSeconds = max(0, now().Sub(r.Frozen)).Seconds()
		}
		return unblocked, nil
	})
}
