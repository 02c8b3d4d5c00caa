package cutover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
)

// ErrBusy reports that clients continue to write to the source.
var ErrBusy = errors.New("the source is still written to")

const (
	// quietFor is how long the source must have had no write to count as quiet.
	quietFor = 5 * time.Second
	// quietLook is the time between two looks at its oplog.
	quietLook = 500 * time.Millisecond
)

// freeze stops writes to the source.
func (w *work) freeze(ctx context.Context, r *record.Record) (string, error) {
	limited, cancel := context.WithTimeout(ctx, w.cfg.Drain.Within)
	defer cancel()
	outcome := ""
	switch o := &r.Options; o.Freeze {
	case record.Block:
		w.sent = !r.Found
		again, err := setBlock(limited, w.cfg.Drain.Source, true, w.cfg.blockWithin(), time.Time{})
		if again {
			r.Late = now()
		}
		if again || err != nil {
			w.late = now()
		}
		if err != nil {
			return "", fmt.Errorf("block writes to the source: %w", err)
		}
		outcome = "writes of users are blocked"
		if r.Found {
			outcome += ", as they were before"
		}
	case record.Command:
		if err := w.cfg.Shell(limited, o.FreezeCommand, w.environment(record.Freeze)); err != nil {
			return "", fmt.Errorf("run the command that stops writes: %w", err)
		}
		outcome = "the command that stops writes has ended with exit code 0"
	case record.Quiet:
		if err := w.quiet(limited); err != nil {
			return "", err
		}
		outcome = fmt.Sprintf("no client has written for %s", quietFor)
	case record.Stopped:
		outcome = "the operator states that no client writes"
	default:
		return "", fmt.Errorf("stop writes to the source: unknown method %q", o.Freeze)
	}
	if r.Frozen.IsZero() {
		r.Frozen = now()
	}
	return outcome, nil
}

// thaw lets the source take writes again, as it did before the cutover.
func (w *work) thaw(ctx context.Context, r *record.Record) error {
	switch o := &r.Options; {
	case !r.Began(record.Freeze):
	case o.Freeze == record.Block && !r.Found:
		return w.unblock(ctx, r)
	case o.Freeze == record.Command && o.ThawCommand != "":
		if err := w.still(ctx); err != nil {
			return err
		}
		if err := w.cfg.Shell(ctx, o.ThawCommand, w.environment(record.Thaw)); err != nil {
			return fmt.Errorf("run the command that lets applications write: %w", err)
		}
	}
	return nil
}

// thawSource lets the old source of a link that has ended take writes again, whatever had stopped them.
func (w *work) thawSource(ctx context.Context, r *record.Record) (outcome string, err error) {
	switch o := &r.Options; {
	case o.Freeze == record.Block:
		return "the old source takes writes again", w.unblock(ctx, r)
	case o.Freeze == record.Command && o.ThawCommand != "":
		return "the command that lets applications write has ended with exit code 0", w.thaw(ctx, r)
	}
	return "there is nothing to lift: the cutover has not blocked the old source", nil
}

// environment is the environment of the operator's commands.
func (w *work) environment(s record.Step) []string {
	return []string{"REPLICATOR_LINK=" + w.rec.Link, "REPLICATOR_CUTOVER=" + w.rec.ID, "REPLICATOR_STEP=" + string(s)}
}

// quiet waits until the source has had no write for a while.
func (w *work) quiet(ctx context.Context) error {
	since, err := mongo.OperationTime(ctx, w.cfg.Drain.Source)
	if err != nil {
		return fmt.Errorf("ask the source for its time: %w", err)
	}
	last, said := time.Now(), ""
	c := counted{deletes: deletesOf(ctx, w.cfg.Drain.Source)}
	for time.Since(last) < quietFor {
		writes, end, err := writesAfter(ctx, w.cfg.Drain.Source, since, c)
		if err != nil {
			return err
		}
		if since = end; writes != "" {
			last = time.Now()
			if said != writes {
				said = writes
				w.cfg.Drain.say("waiting until no client writes to the source; the last writer wrote to " + writes)
			}
		}
		if err := mongo.Pause(ctx, quietLook); err != nil {
			return fmt.Errorf("%w: last to %s", ErrBusy, said)
		}
	}
	return nil
}
