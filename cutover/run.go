package cutover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/lease"
	"github.com/oplogrep/replicator/oplog"
)

var (
	// ErrWritten reports that the link has applied something after the drain, that it leaves a
	// collection out, or that the source was written to.
	ErrWritten = errors.New("something has changed since the drain")
	// ErrUncertain reports that the write that ends the link has failed, and that it may have been
	// executed nevertheless.
	ErrUncertain = errors.New("it is not known whether the link has ended")
	// ErrUnderWay reports that a cutover of the link was begun before, and is neither done nor cancelled.
	ErrUnderWay = errors.New("a cutover of the link is under way")
	// ErrNone reports that there is none that could go on, or be cancelled.
	ErrNone = errors.New("no cutover of the link is under way")
	// ErrCommitted reports that it is too late to cancel: the link has ended.
	ErrCommitted = errors.New("the cutover has passed its commit point")
	// ErrMayStray reports that a cutover may not begin yet: a block of the one before it would be taken for one that was there
	// before, and would stay when the new one is cancelled. To cancel the one before once more lifts it, once none can come any more.
	ErrMayStray = errors.New("the cutover before this one was cancelled while a command that blocks writes to the source was on its way: the block may be there, or come yet")
)

// StepError reports the step that has failed. The cutover can be resumed, or cancelled.
type StepError struct {
	Step record.Step
	Err  error
}

func (e *StepError) Error() string { return fmt.Sprintf("%s: %v", e.Step, e.Err) }

// Unwrap returns the reason.
func (e *StepError) Unwrap() error { return e.Err }

// Config configures a cutover.
type Config struct {
	// Drain has the source and the link, and how the link is drained. Its WritesStopped is ignored:
	// the record says how writes were stopped.
	Drain DrainConfig
	// Target runs commands on the target's primary; MetaDB is the metadata database.
	Target mongo.Caller
	MetaDB string
	// BlockWithin limits how long the source may take to execute a command that blocks writes.
	// Default Drain.Within.
	BlockWithin time.Duration
	// Process identifies this process in leases.
	Process string
	// Check checks the preconditions before writes are stopped; nil for none.
	Check func(ctx context.Context) (outcome string, err error)
	// Verify verifies the collections that are not verified yet, with the source frozen and the target at a cut; nil
	// for nothing.
	Verify func(ctx context.Context, cut checkpoint.Cut) (outcome string, err error)
	// Armed, if not nil, is called once it is known where a link back may begin, or why it cannot: a
	// test interferes there.
	Armed func(ctx context.Context)
	// SourceGone means that the source cannot be reached: what follows the commit point is done without it.
	SourceGone bool
	// Shell runs a command of the operator.
	Shell func(ctx context.Context, command string, environment []string) error
	// Said, if not nil, is called with a text for each option that was converted; otherwise Drain.OnWait is.
	Said func(string)
	// Told, if not nil, is called with each step that has begun or ended.
	Told func(record.Taken)

	// id is that of the cutover that this process works on, empty before.
	id string
}

// work is a process that works on a cutover.
type work struct {
	cfg     *Config
	records *record.Store
	rec     *record.Record
	// cut is that of the drain, as far as this process has made it.
	cut checkpoint.Cut
	// verified means that this process has verified the target, with the source frozen since.
	verified bool
	// committed means that this process has ended the link.
	committed bool
	// sent means that this process has sent, or is about to send, a command that blocks writes, and is to lift that.
	sent bool
	// began is when the last step was begun.
	began time.Time
	// late is when this process found that a command of its own that blocks writes may be executed later, zero if not.
	late time.Time
}

func (cfg *Config) work(ctx context.Context) (*work, error) {
	w := &work{cfg: cfg, records: &record.Store{Target: cfg.Target, DB: cfg.MetaDB}}
	read := func() (err error) {
		if w.rec, err = w.records.Get(ctx, cfg.Drain.Link); err == nil {
			err = w.rec.Known()
		}
		return err
	}
	if cfg.id == "" {
		return w, read()
	}
	// Writes to the source may be stopped.
	retry := mongo.Retry{For: cfg.Drain.Within, Again: passing, Failed: func(err error) { cfg.Drain.say("trying again: " + err.Error()) }}
	return w, retry.Last(ctx, read)
}

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// Run begins a cutover, and carries it out: see the package. The caller has the link's lock (Locked).
// After an error the record says how far it is: Resume continues it, Cancel reverts it. Called again with the same Config,
// Run continues the cutover that it has begun.
func Run(ctx context.Context, cfg *Config, o *record.Options) (*record.Record, error) {
	w, err := cfg.work(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case w.rec != nil && w.rec.ID == cfg.id:
		return cfg.again(ctx, w.rec)
	case w.rec.Open():
		return w.rec, fmt.Errorf("%w: %s", ErrUnderWay, w.rec)
	}
	if ended, err := cfg.over(ctx); err != nil || ended != nil {
		if err == nil {
			err = &checkpoint.OverError{Link: cfg.Drain.Link, Over: *ended}
		}
		return w.rec, err
	}
	if err := w.noStray(ctx); err != nil {
		return w.rec, &StepError{record.Check, err}
	}
	if err := cfg.ready(ctx); err != nil { // nothing is recorded of a link that is not ready
		return nil, &StepError{record.Check, err}
	}
	cfg.id = bson.NewObjectID().Hex()
	r := &record.Record{
		Link: cfg.Drain.Link, ID: cfg.id, State: record.Running, By: cfg.Drain.By, Started: now(), Options: *o, Steps: []record.Taken{},
	}
	r.Begin(record.Check, cfg.Drain.By, r.Started)
	r.End(record.Check, "all preconditions are met or waived", r.Started)
	if err := w.records.Put(ctx, w.rec, r); err != nil {
		return w.rec, err
	}
	w.rec = r
	err = w.persist(ctx, w.carryOut)
	return w.rec, w.failed(ctx, err)
}

// Resume continues a cutover from its last step, on any machine; also one that was being cancelled when it was too late for that. Called again
// with the same Config, it continues no other one.
func Resume(ctx context.Context, cfg *Config) (*record.Record, error) {
	w, err := cfg.work(ctx)
	if err == nil {
		err = cfg.same(w.rec)
	}
	switch {
	case err != nil:
		return nil, err
	case !w.rec.Open():
		return w.rec, ErrNone
	case w.rec.State == record.Cancelling:
		if err = w.persist(ctx, w.undo); errors.Is(err, ErrCommitted) && w.rec.State == record.Running {
			err = w.persist(ctx, w.carryOut)
		}
	default:
		err = w.persist(ctx, func(ctx context.Context) error {
			if err := w.readyStill(ctx); err != nil {
				return err
			}
			return w.carryOut(ctx)
		})
	}
	return w.rec, w.failed(ctx, err)
}

// readyStill returns an error if writes are not stopped yet, and the link continues and is not ready any more.
func (w *work) readyStill(ctx context.Context) error {
	if w.rec.Began(record.Freeze) {
		return nil
	}
	if ended, err := w.cfg.over(ctx); err != nil || ended != nil {
		return err
	}
	if err := w.cfg.ready(ctx); err != nil {
		return &StepError{record.Check, err}
	}
	return nil
}

// persistPause is the pause before a step is tried again.
const persistPause = 250 * time.Millisecond

// persist retries transient errors, such as those of a failover, each step from its first failure on; a drain, which waits
// by itself, from its begin on. do must be idempotent.
func (w *work) persist(ctx context.Context, do func(ctx context.Context) error) error {
	since := map[record.Step]time.Time{}
	for {
		err := do(ctx)
		if err == nil || ctx.Err() != nil || !passing(err) || w.failing(since, err) > w.cfg.Drain.Within {
			return err
		}
		if ended := w.await(ctx, since, err); ended != nil {
			return ended
		}
	}
}

// await waits after an error that passes, until the record could be read again and the step may be tried again. It returns the error with
// which the cutover ends if it may not.
func (w *work) await(ctx context.Context, since map[record.Step]time.Time, err error) error {
	for last := err; ; {
		w.cfg.Drain.say("trying again: " + last.Error())
		if paused := mongo.Pause(ctx, persistPause); paused != nil {
			return err
		}
		unread := w.refresh(ctx)
		switch {
		case unread == nil:
			return nil
		case ctx.Err() != nil, !passing(unread), w.failing(since, err) > w.cfg.Drain.Within:
			return errors.Join(err, unread, w.lift(ctx))
		}
		last = unread
	}
}

// failing returns for how long the step that has failed has done so: since has the first failures.
func (w *work) failing(since map[record.Step]time.Time, err error) time.Duration {
	step := w.rec.Last().Step
	if e, is := errors.AsType[*StepError](err); is {
		step = e.Step
	}
	if since[step].IsZero() {
		since[step] = time.Now()
		if step == record.Drain {
			since[step] = w.began
		}
	}
	return time.Since(since[step])
}

// passing reports whether an error passes by itself. For how long something was tried before says nothing about that: while writes are
// stopped, what lasts longer than a single call is waited for as well.
func passing(err error) bool {
	for stuck, is := errors.AsType[*mongo.StuckError](err); is; stuck, is = errors.AsType[*mongo.StuckError](err) {
		err = stuck.Err
	}
	kind := servererr.Classify(err)
	return errors.Is(err, errLags) || errors.Is(err, record.ErrOlder) || mongo.Passes(err) || kind == servererr.Lost || kind == servererr.Unconfirmed || kind == servererr.NotPrimary || kind == servererr.Leaving ||
		errors.Is(err, lease.ErrExpired) || errors.Is(err, lease.ErrRewound) || errors.Is(err, lease.ErrBehind) || errors.Is(err, checkpoint.ErrAhead) ||
		errors.As(err, new(*lateError))
}

// change stores a change of the record.
func (w *work) change(ctx context.Context, how func(r *record.Record)) error {
	r := w.rec.Clone()
	how(r)
	if err := w.records.Put(ctx, w.rec, r); err != nil {
		return err
	}
	w.rec = r
	return nil
}

// step records that a step begins, does it, and records how it has ended. What do changes of the
// record is stored with the end.
func (w *work) step(ctx context.Context, s record.Step, do func(ctx context.Context, r *record.Record) (string, error)) error {
	if err := w.begin(ctx, s); err != nil {
		return err
	}
	r := w.rec.Clone()
	outcome, err := do(ctx, r)
	if err != nil {
		return &StepError{s, err}
	}
	err = w.change(ctx, func(to *record.Record) {
		*to = *r
		to.End(s, outcome, now())
	})
	if err != nil {
		return &StepError{s, err}
	}
	w.tell()
	return nil
}

// begin records that a step begins.
func (w *work) begin(ctx context.Context, s record.Step) error {
	w.began = time.Now()
	if err := w.change(ctx, func(r *record.Record) { r.Begin(s, w.cfg.Drain.By, now()) }); err != nil {
		return &StepError{s, err}
	}
	w.tell()
	return nil
}

func (w *work) tell() {
	if w.cfg.Told != nil {
		w.cfg.Told(w.rec.Last())
	}
}

// attempts is how often the link is drained again if it applies something after a drain.
const attempts = 5

// carryOut takes the remaining steps. Until the conversion begins the link continues, so a process that takes a
// cutover up stops writes again, which they are already, and drains again.
func (w *work) carryOut(ctx context.Context) error {
	ended, err := w.cfg.over(ctx)
	if err != nil {
		return err
	}
	if ended == nil && w.rec.State != record.Running { // it was cancelled before this process has tried again
		return errors.Join(record.ErrChanged, w.lift(ctx))
	}
	for n := 1; ended == nil; n++ {
		if !w.rec.Began(record.Convert) {
			if err := w.approach(ctx); err != nil {
				return err
			}
		}
		ended, err = w.commit(ctx)
		if err == nil || n == attempts || !errors.As(err, new(*aheadError)) || ctx.Err() != nil {
			break
		}
		w.cfg.Drain.say(err.Error() + "; drain again")
		if err := w.change(ctx, func(r *record.Record) { r.Forget(record.Convert) }); err != nil {
			return &StepError{record.Drain, err}
		}
	}
	switch {
	case err != nil:
		return w.written(ctx, err)
	case ended.Promoted != nil:
		return w.promoted(ctx, ended)
	}
	return w.finish(ctx, ended)
}

// StaysBlocked says what the cutover of a link that was promoted leaves behind.
const StaysBlocked = "the cutover that was under way has ended with the link; the old source may still block writes of users, " +
	"which db.adminCommand({setUserWriteBlockMode: 1, global: false}) lifts there"

var errStaysBlocked = errors.New(StaysBlocked)

// promoted ends a cutover of a link that was promoted meanwhile: nothing of it remains to be done.
func (w *work) promoted(ctx context.Context, ended *checkpoint.Over) error {
	if w.rec.Blocks() {
		w.cfg.Drain.say(StaysBlocked)
	}
	err := w.change(ctx, func(r *record.Record) { r.State, r.Ended = record.Cancelled, now() })
	return errors.Join(&checkpoint.OverError{Link: w.cfg.Drain.Link, Over: *ended}, err)
}

// approach brings the link to where it can be ended: writes stopped, and everything applied.
func (w *work) approach(ctx context.Context) error {
	if err := w.beforeFreeze(ctx); err != nil {
		return &StepError{record.Freeze, err}
	}
	if err := w.step(ctx, record.Freeze, w.freeze); err != nil {
		// This process may have been suspended, and the source be blocked only now: without a reply, too.
		return errors.Join(err, w.lift(ctx))
	}
	if err := w.drain(ctx); err != nil || w.cfg.Verify == nil || w.verified {
		return err
	}
	err := w.step(ctx, record.Verify, func(ctx context.Context, _ *record.Record) (string, error) { return w.cfg.Verify(ctx, w.cut) })
	if err != nil {
		return err
	}
	w.verified = true
	// The source continues to write entries of its own, which the link has applied since: a last cut.
	return w.drain(ctx)
}

// drain waits until the target has everything.
func (w *work) drain(ctx context.Context) error {
	return w.step(ctx, record.Drain, func(ctx context.Context, r *record.Record) (string, error) {
		drain := w.draining()
		d, err := Drain(ctx, &drain)
		if err != nil {
			return "", err
		}
		w.cut = d.Cut
		r.Drained = record.Drained{T: d.Cut.Source.TS.T, I: d.Cut.Source.TS.I, Term: d.Cut.Source.Term, Cut: d.Cut.Target}
		return fmt.Sprintf("at its cluster time %d:%d the target is the source as of %s", d.Cut.Target.T, d.Cut.Target.I, d.Cut.Source), nil
	})
}

// beforeFreeze records the write blocks that the source has before this process sets one.
func (w *work) beforeFreeze(ctx context.Context) error {
	if w.rec.Options.Freeze != record.Block {
		return nil
	}
	found := false
	if !w.rec.Began(record.Freeze) {
		// Whose block it is must be known before there is one of ours.
		var err error
		if found, err = Blocked(ctx, w.cfg.Drain.Source); err != nil {
			return fmt.Errorf("ask whether writes to the source are blocked: %w", err)
		}
	}
	return w.change(ctx, func(r *record.Record) {
		r.Found = r.Found || found
		r.Doubt(now())
		r.BlockSeconds = max(r.BlockSeconds, w.cfg.blockWithin().Seconds())
	})
}

// draining is how this cutover drains: the write block is asked for where it is what stops writes.
func (w *work) draining() DrainConfig {
	d := w.cfg.Drain
	d.WritesStopped = w.rec.Options.Freeze != record.Block
	return d
}

// drained is the optime up to which the target has everything.
func (w *work) drained() oplog.OpTime {
	d := w.rec.Drained
	return oplog.OpTime{TS: bson.Timestamp{T: d.T, I: d.I}, Term: d.Term}
}

// finish does what follows the commit point. There is no way back: it may be done at any time later.
func (w *work) finish(ctx context.Context, ended *checkpoint.Over) error {
	at := ended.At
	if w.committed {
		at = now() // the write that ended the link was acknowledged just now
	}
	recorded := w.rec.Has(record.Commit) // by a process that was interrupted later
	err := w.change(ctx, func(r *record.Record) {
		if !recorded {
			r.End(record.Commit, "the link has ended", now())
		}
		if r.DowntimeSeconds == 0 && !r.Frozen.IsZero() {
			r.DowntimeSeconds = max(0, at.Sub(r.Frozen)).Seconds()
		}
	})
	if err != nil {
		return &StepError{record.Commit, err}
	}
	if !recorded {
		w.tell()
	}
	gone, err := w.goneBack(ctx)
	if err != nil {
		return &StepError{record.Expire, err}
	}
	if gone != "" {
		return w.leave(ctx, gone)
	}
	if !w.rec.Began(record.Expire) { // otherwise they are unblocked already, and a block that is there now was set since
		if err := w.open(ctx); err != nil {
			return err
		}
	}
	err = w.step(ctx, record.Expire, func(ctx context.Context, _ *record.Record) (string, error) {
		n, err := Expire(ctx, w.converting(nil))
		return fmt.Sprintf("%d options that expire documents were restored", n), err
	})
	if err != nil {
		return err
	}
	return w.change(ctx, func(r *record.Record) { r.State, r.Ended = record.Done, now() })
}
