package cutover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
)

const (
	// lateLook is the time between two looks whether a block has come late.
	lateLook = 250 * time.Millisecond
	// blockedAgain is how often a block is lifted that comes when none of ours can.
	blockedAgain = 3
	// sendWithin is how soon after the record was read the command that lifts a block must be sent. Where that is too soon for
	// the target or the source it doubles, up to sendAtMost.
	sendWithin, sendAtMost = time.Second, 16 * time.Second
	// liftWithin is how long it is tried to lift the block of a cutover that was cancelled meanwhile, once none can come
	// late.
	liftWithin = 30 * time.Second
)

// errBlockedAgain reports a source that somebody else blocks.
var errBlockedAgain = errors.New("its writes are blocked again, by another program or an operator")

// setBlock blocks writes of users to a set, or lifts that, with write concern majority. To send it
// again does no harm. The server waits for transactions that are open, at most within. It reports
// whether the command was sent more than once, so that one without a reply may be executed later. By, if not zero, is the
// time by which it must be sent.
func setBlock(ctx context.Context, set mongo.Caller, on bool, within time.Duration, by time.Time) (again bool, err error) {
	sent, begun := 0, time.Now()
	err = mongo.Retry{For: within, Again: passing}.Do(ctx, func() error {
		body, err := bson.Marshal(bson.D{
			{Key: "setUserWriteBlockMode", Value: 1},
			{Key: "global", Value: on},
			{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}},
			{Key: "maxTimeMS", Value: max(time.Second, within-time.Since(begun)).Milliseconds()},
		})
		if err != nil {
			return err
		}
		sent++
		reply, err := set.Call(ctx, mongo.Command{DB: "admin", Body: body, SendBy: by})
		if err != nil {
			return err
		}
		if e := mongo.ConcernError(reply); e != nil {
			return &mongo.UnconfirmedError{Err: e}
		}
		return nil
	})
	return sent > 1, err
}

// lower lifts the block of a set as long as ours returns true: it is asked immediately before the command is sent, and again
// before that is sent another time. A process that was suspended in between sends nothing.
func (w *work) lower(ctx context.Context, set mongo.Caller, ours func(context.Context) (bool, error)) (is bool, err error) {
	soon := sendWithin
	for begun := time.Now(); ; {
		asked := time.Now()
		if is, err := ours(ctx); err != nil || !is {
			return false, err
		}
		_, err := setBlock(ctx, set, false, w.cfg.Drain.Within, asked.Add(soon))
		if !errors.Is(err, mongo.ErrTooLate) || time.Since(begun) > w.cfg.Drain.Within {
			return true, err
		}
		soon = min(2*soon, sendAtMost)
		if err := mongo.Pause(ctx, lateLook); err != nil {
			return false, err
		}
	}
}

// ours reports whether the record is as this process has left it: otherwise another process works on the cutover, or has
// ended it, and the block may be that of the next one.
func (w *work) ours(ctx context.Context) (bool, error) {
	err := w.still(ctx)
	return err == nil, err
}

func (cfg *Config) blockWithin() time.Duration { return cmp.Or(cfg.BlockWithin, cfg.Drain.Within) }

// unblock lifts the block of the source. A command that blocks writes, and was not answered, may be
// executed after that, by a server that was waiting for transactions: unblock returns once that
// cannot happen any more.
func (w *work) unblock(ctx context.Context, r *record.Record) error {
	return w.unblockWhile(ctx, r, w.ours)
}

// unblockWhile is unblock as long as ours returns true: it is asked before each command.
func (w *work) unblockWhile(ctx context.Context, r *record.Record, ours func(context.Context) (bool, error)) error {
	waits := false
	for others := 0; ; {
		switch is, err := w.lower(ctx, w.cfg.Drain.Source, ours); {
		case err != nil:
			return fmt.Errorf("let the source take writes again: %w", err)
		case !is:
			return nil
		}
		settled := !time.Now().Before(r.Settled())
		on, err := Blocked(ctx, w.cfg.Drain.Source)
		switch {
		case err != nil:
			return fmt.Errorf("ask whether the source takes writes again: %w", err)
		case on && settled && others == blockedAgain:
			return fmt.Errorf("let the source take writes again: %w", errBlockedAgain)
		case on && settled:
			others++
		case on:
			w.cfg.Drain.say("a command that blocks writes to the source was executed late; the block is lifted again")
		case settled:
			return nil
		case !waits:
			waits = true
			w.cfg.Drain.say(fmt.Sprintf("the source takes writes; waiting up to %s, as a command that blocks them was sent and not answered", time.Until(r.Settled()).Round(time.Second)))
		}
		if err := mongo.Pause(ctx, lateLook); err != nil {
			return err
		}
	}
}

// lift lifts the block that this process has set, or may have set, if another one has cancelled the cutover
// meanwhile: nobody else would. It returns once none can come late. A cutover that has begun since, and blocks the source,
// too, owns the block: the error says so.
func (w *work) lift(ctx context.Context) error {
	if !w.sent {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.blockWithin()+liftWithin)
	defer cancel()
	late := w.rec.Clone()
	late.Late = w.late
	late.BlockSeconds = w.cfg.blockWithin().Seconds() // that is how long its own command may take
	cancelled := false
	err := w.unblockWhile(ctx, late, func(ctx context.Context) (is bool, err error) {
		for {
			var r *record.Record
			if r, is, err = w.mayLift(ctx, &cancelled); err != nil || !is {
				return false, err
			}
			// Another cutover may have begun since, and blocked the source: the record is the last thing that is read. A primary that
			// was just elected may not know yet that a majority has that one's.
			now, err := w.records.Newest(ctx, w.rec.Link)
			if err != nil || r == nil && now == nil || r != nil && now.Same(r) == nil {
				return err == nil, err
			}
			if err := mongo.Pause(ctx, lateLook); err != nil {
				return false, err
			}
		}
	})
	if err != nil && cancelled {
		return fmt.Errorf("the cutover was cancelled: %w", err)
	}
	return err
}

// mayLift reports whether a block of this process is to be lifted, as the record says that it returns, which is nil if there is
// none. It sets whether the cutover was cancelled.
func (w *work) mayLift(ctx context.Context, cancelled *bool) (r *record.Record, is bool, err error) {
	r, err = w.records.Get(ctx, w.rec.Link)
	switch {
	case err != nil:
		return nil, false, err
	case r == nil:
		*cancelled = true
	case r.ID == w.rec.ID:
		if *cancelled = r.State == record.Cancelling || r.State == record.Cancelled; !*cancelled {
			return r, false, nil
		}
		if r, err = w.keepLate(ctx, r); err != nil {
			return nil, false, err
		}
	default: // the one before it was ended
		*cancelled = true
		if r.Options.Freeze == record.Block && r.State != record.Cancelling && r.State != record.Cancelled {
			return r, false, &strayError{r}
		}
	}
	// The old source of a link that has ended is not to be written to.
	if ended, err := w.cfg.mayBeOver(ctx); err != nil || ended != nil {
		return r, false, errors.Join(err, errStaysBlocked)
	}
	return r, true, nil
}

// keepLate keeps in the record of a cancelled cutover that a block of this process may come late, should
// this process end before that. It returns the record as it is then, unless another process was first.
func (w *work) keepLate(ctx context.Context, r *record.Record) (*record.Record, error) {
	if r.State != record.Cancelled || !w.late.After(r.Late) {
		return r, nil
	}
	to := r.Clone()
	to.Late, to.BlockSeconds = w.late, w.cfg.blockWithin().Seconds()
	switch err := w.records.Put(ctx, r, to); {
	case err == nil:
		return to, nil
	case !errors.Is(err, record.ErrChanged):
		return nil, err
	}
	return r, nil
}

// strayError reports a source that the process of a cancelled cutover may have blocked after another one had begun.
type strayError struct{ by *record.Record }

// Error implements error.
func (e *strayError) Error() string {
	return fmt.Sprintf("a block of it may have reached the source since %s: if that does not lift it, %s does", e.by,
		"db.adminCommand({setUserWriteBlockMode: 1, global: false}) on its primary")
}

// strayBlock lifts a block of a cancelled cutover that came after it was cancelled: its process was ended before it lifted
// that itself. It reports false if there is none, or if the link has ended since.
func (w *work) strayBlock(ctx context.Context) (bool, error) {
	if !w.rec.MayStray() {
		return false, nil
	}
	if ended, err := w.cfg.mayBeOver(ctx); err != nil || ended != nil {
		return false, err
	}
	on, err := Blocked(ctx, w.cfg.Drain.Source)
	if err != nil {
		return false, fmt.Errorf("ask whether writes to the source are blocked: %w", err)
	}
	if !on && !time.Now().Before(w.rec.Settled()) {
		return false, nil
	}
	if on && time.Since(w.rec.Settled()) > strayFor {
		return false, errAnybodys
	}
	others, err := w.records.Open(ctx, "")
	if err != nil {
		return false, err
	}
	for _, r := range others {
		if r.Options.Freeze == record.Block {
			return false, &strayError{r}
		}
	}
	if err := w.persist(ctx, func(ctx context.Context) error { return w.unblock(ctx, w.rec) }); err != nil {
		return true, err
	}
	return true, w.change(ctx, func(r *record.Record) { r.Late = time.Time{} }) // none can come any more
}

// noStray returns ErrMayStray if a block of a cancelled cutover may be on the source, or may come.
func (w *work) noStray(ctx context.Context) error {
	if !w.rec.MayStray() || time.Since(w.rec.Settled()) > strayFor {
		return nil
	}
	on, err := Blocked(ctx, w.cfg.Drain.Source)
	if err != nil {
		return fmt.Errorf("ask whether writes to the source are blocked: %w", err)
	}
	if !on && !time.Now().Before(w.rec.Settled()) {
		return nil
	}
	others, err := w.records.Open(ctx, "")
	if err != nil || slices.ContainsFunc(others, func(r *record.Record) bool { return r.Options.Freeze == record.Block }) {
		return err
	}
	return ErrMayStray
}

// strayFor is for how long a block is taken for one of a cancelled cutover that came late.
const strayFor = time.Hour

// errAnybodys reports a block of which it is not known whose it is.
var errAnybodys = errors.New("writes to the source are blocked; whether by this cutover, which was cancelled long ago, is not known: " +
	"db.adminCommand({setUserWriteBlockMode: 1, global: false}) on its primary lifts it")
