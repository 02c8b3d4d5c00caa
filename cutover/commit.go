package cutover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/metadata"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/lease"
)

const (
	// releaseWithin is how long the lease is tried to be given back, which ends by itself.
	releaseWithin = 2 * time.Second
	// settleWithin is how long the outcome of the last write is asked for.
	settleWithin = 30 * time.Second
)

// leading runs do with the link's lease, taken over from the process that leads: that one stands by,
// and its late writes are refused.
func (w *work) leading(ctx context.Context, do func(ctx context.Context, link *checkpoint.Link) error) error {
	keeper := lease.NewKeeper(lease.KeeperConfig{
		Target: w.cfg.Target, DB: w.cfg.MetaDB, Collection: metadata.Links, ID: w.rec.Link, Holder: w.cfg.Process,
	})
	store, err := checkpoint.New(checkpoint.Config{
		Target: w.cfg.Target, DB: w.cfg.MetaDB, Link: w.rec.Link, Process: w.cfg.Process, Keeper: keeper, Converts: w.rec.ID,
	})
	if err != nil {
		return err
	}
	renewing, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	var renewal sync.WaitGroup
	renewal.Go(func() { keeper.Run(renewing) })
	defer func() {
		stop(nil)
		renewal.Wait()
	}()
	leading, over := keeper.Lead(ctx)
	link, err := store.AcquireBy(leading, 0, lease.Claim{TTL: lease.DefaultTTL, Why: lease.ForCutover, TakeOver: true})
	switch {
	case err == nil:
		err = do(leading, link)
	case errors.Is(err, mongo.ErrTooLate):
		err = &lateError{err}
	}
	over()
	giving, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	_ = keeper.Release(giving) // otherwise the lease ends by itself
	return err
}

// lateError reports that the write that acquires the link's lease was not sent, as this process stood still since it had
// read the lease: it may acquire it once it has looked again whether the cutover is still its own.
type lateError struct{ error }

// Unwrap returns the reason.
func (e *lateError) Unwrap() error { return e.error }

// commit converts the deferred options and ends the link, under its lease:
//
//	take the lease over ──▶ nothing after the drain? ──▶ convert ──▶ arm ──▶ source still stopped? ──▶ end
//	                          │ no                       │ crash: nothing is applied until the       │
//	                          ▼                          │ cutover goes on, or is cancelled          ▼ outcome unknown
//	                the link goes on                     ▼                                read whether it has ended
//
// A process that cancels records that first, and then takes the lease over. So a process that has recorded
// the beginning of the conversion, has the lease, and finds its record unchanged, can be cancelled only by
// losing the lease, and can no longer end the link then.
func (w *work) commit(ctx context.Context) (*checkpoint.Over, error) {
	if !w.rec.Began(record.Convert) {
		if err := w.begin(ctx, record.Convert); err != nil {
			return nil, err
		}
	}
	err := w.leading(ctx, func(ctx context.Context, link *checkpoint.Link) error {
		if err := w.still(ctx); err != nil {
			return &StepError{record.Convert, err}
		}
		if err := w.unchanged(link); err != nil {
			if link.State().Converting == nil {
				err = &aheadError{err, mirrorsUsers(link)} // nothing was converted
			}
			return &StepError{record.Convert, err}
		}
		if !w.rec.Has(record.Convert) {
			if err := w.convert(ctx, link); err != nil {
				return &StepError{record.Convert, err}
			}
		}
		return w.end(ctx, link)
	})
	if gone, is := errors.AsType[*checkpoint.OverError](err); is {
		return &gone.Over, nil
	}
	if err != nil && !errors.Is(err, ErrUncertain) {
		return nil, err
	}
	// The reply to the last write may be lost.
	after, enough := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer enough()
	switch over, unread := w.cfg.over(after); {
	case unread != nil && err == nil:
		return nil, &StepError{record.Commit, fmt.Errorf("%w: %w", ErrUncertain, unread)}
	case unread != nil:
		return nil, &StepError{record.Commit, err}
	case over == nil && errors.Is(err, lease.ErrFenced):
		return nil, &StepError{record.Commit, fmt.Errorf("it was not executed: %w", errors.Unwrap(err))}
	case over == nil && err == nil:
		return nil, &StepError{record.Commit, record.ErrOlder}
	case over == nil: // it may be executed later, or a majority does not have it yet
		return nil, &StepError{record.Commit, err}
	default:
		w.committed = err == nil
		return over, nil
	}
}

// refresh reads the record again, where the outcome of a change was not known.
func (w *work) refresh(ctx context.Context) error {
	r, err := w.records.Get(ctx, w.rec.Link)
	switch {
	case err != nil:
		return err
	case r == nil || r.Rev < w.rec.Rev:
		return record.ErrOlder
	case r.ID != w.rec.ID:
		return record.ErrChanged
	}
	w.rec = r
	return nil
}

// still returns an error if another process has changed the record: record.ErrOlder as long as the target's primary does not know that a majority
// has the change.
func (w *work) still(ctx context.Context) error {
	r, err := w.records.Get(ctx, w.rec.Link)
	if err == nil {
		err = r.Same(w.rec)
	}
	if err != nil {
		return err
	}
	if r, err = w.records.Newest(ctx, w.rec.Link); err == nil && r.Same(w.rec) != nil {
		err = record.ErrOlder
	}
	return err
}

// aheadError reports a link that has to be drained again, and whether it mirrors users and roles.
type aheadError struct {
	error
	users bool
}

// Unwrap returns the reason.
func (e *aheadError) Unwrap() error { return e.error }

// written returns the write to the source because of which the link has to be drained again and again, and err if it is not known.
func (w *work) written(ctx context.Context, err error) error {
	ahead, is := errors.AsType[*aheadError](err)
	if !is {
		return err
	}
	if source, is := errors.AsType[*SourceWrittenError](w.unwritten(ctx, ahead.users)); is {
		return &StepError{record.Convert, &aheadError{source, ahead.users}}
	}
	return err
}

// unchanged returns an error if the link is not as it was drained.
func (w *work) unchanged(link *checkpoint.Link) error {
	s, drained := link.State(), w.drained()
	if n := len(s.LeftOut) + len(s.KeptBack); n > 0 {
		return fmt.Errorf("%w: %d collections are being copied again, or wait for an index build", ErrWritten, n)
	}
	for _, at := range slices.Concat([]checkpoint.Position{s.Barrier, s.Announced}, s.Lanes, s.LanesAnnounced) {
		if at.OpTime.After(drained) {
			return fmt.Errorf("%w: the target has %s, and was drained at %s", ErrWritten, at.OpTime, drained)
		}
	}
	return nil
}

// convert records in the link's document that the options are being converted, then converts them.
func (w *work) convert(ctx context.Context, link *checkpoint.Link) error {
	c := checkpoint.Converting{ID: w.rec.ID, By: w.cfg.Drain.By, Since: now()}
	if err := link.Convert(ctx, c); err != nil {
		return err
	}
	n, err := Convert(ctx, w.converting(link))
	if err != nil {
		return err
	}
	if err := w.change(ctx, func(r *record.Record) { r.End(record.Convert, fmt.Sprintf("%d indexes were converted", n), now()) }); err != nil {
		return err
	}
	w.tell()
	return nil
}

func (w *work) converting(link *checkpoint.Link) *ConvertConfig {
	c := &ConvertConfig{Target: w.cfg.Target, MetaDB: w.cfg.MetaDB, Link: w.rec.Link, Said: w.cfg.Drain.OnWait}
	if w.cfg.Said != nil {
		c.Said = w.cfg.Said
	}
	if link != nil {
		c.Fence = link
	}
	return c
}

// end ends the link: that write is the commit point.
func (w *work) end(ctx context.Context, link *checkpoint.Link) error {
	o := checkpoint.Over{At: now(), By: w.cfg.Drain.By, Source: w.drained()}
	if w.rec.Options.Reverse != record.NoReverse {
		err := w.step(ctx, record.Arm, func(ctx context.Context, _ *record.Record) (outcome string, err error) {
			if w.cfg.Armed != nil {
				defer w.cfg.Armed(ctx)
			}
			o.Reverse, err = arm(ctx, &armConfig{
				Target: w.cfg.Target, Link: link, Cut: checkpoint.Cut{Source: w.drained(), Target: w.rec.Drained.Cut},
			})
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("a link back may begin after %s of the target", o.Reverse.Start), nil
		})
		if err != nil {
			return err
		}
	}
	if err := w.stopped(ctx, mirrorsUsers(link)); err != nil {
		return &StepError{record.Commit, err}
	}
	if err := w.begin(ctx, record.Commit); err != nil {
		return err
	}
	if err := link.End(ctx, o); err != nil {
		return &endError{err}
	}
	return nil
}

// mirrorsUsers reports whether a link mirrors users and roles. The filters of one that an earlier release has created are not known.
func mirrorsUsers(link *checkpoint.Link) bool {
	return link.State().Filters == nil || link.State().Filters.UsersAndRoles
}

// endError is an ErrUncertain with its reason.
type endError struct{ err error }

// Error implements error.
func (e *endError) Error() string { return ErrUncertain.Error() + ": " + e.err.Error() }

// Unwrap returns the reason.
func (e *endError) Unwrap() error { return e.err }

// Is reports whether target is ErrUncertain.
func (*endError) Is(target error) bool { return target == ErrUncertain }

// stopped returns an error if writes to the source are not stopped any more, or were not meanwhile.
// With users, changes of users and roles count.
func (w *work) stopped(ctx context.Context, users bool) error {
	d := w.draining()
	if err := d.frozen(ctx, ErrThawed); err != nil {
		return err
	}
	return w.unwritten(ctx, users)
}

// unwritten returns a *SourceWrittenError if the source's oplog has a write after the drain. With users, changes of users and roles count.
func (w *work) unwritten(ctx context.Context, users bool) error {
	c := counted{users: users}
	if w.rec.Options.Freeze != record.Block { // a server that blocks no writes continues to delete expired documents
		c.deletes = deletesOf(ctx, w.cfg.Drain.Source)
	}
	ns, _, err := writesAfter(ctx, w.cfg.Drain.Source, bson.Timestamp{T: w.rec.Drained.T, I: w.rec.Drained.I}, c)
	if err == nil && ns != "" {
		err = &SourceWrittenError{ns}
	}
	return err
}

// SourceWrittenError reports that the source's oplog has a write to NS after the drain: writes to the source are not stopped.
// It is an ErrWritten.
type SourceWrittenError struct{ NS string }

// Error implements error.
func (e *SourceWrittenError) Error() string {
	return fmt.Sprintf("%v: the source's oplog has a write to %s after the drain", ErrWritten, e.NS)
}

// Unwrap returns the reason.
func (*SourceWrittenError) Unwrap() error { return ErrWritten }

// over returns the end of the link, nil if it continues.
func (cfg *Config) over(ctx context.Context) (*checkpoint.Over, error) {
	return cfg.readOver(ctx, (*checkpoint.Store).Over)
}

// mayBeOver returns how the link has ended, also if a majority of the target may not have that, or the primary does not know
// that it has: one that was just elected may know of an older state only.
func (cfg *Config) mayBeOver(ctx context.Context) (*checkpoint.Over, error) {
	ended, err := cfg.over(ctx)
	if err != nil || ended != nil {
		return ended, err
	}
	return cfg.readOver(ctx, func(store *checkpoint.Store, ctx context.Context) (*checkpoint.Over, error) {
		st, _, err := store.Newest(ctx)
		return st.Over, err
	})
}

// readOver reads how the link has ended, again and again while the target fails over.
func (cfg *Config) readOver(ctx context.Context, read func(*checkpoint.Store, context.Context) (*checkpoint.Over, error)) (o *checkpoint.Over, err error) {
	store, err := checkpoint.New(checkpoint.Config{Target: cfg.Target, DB: cfg.MetaDB, Link: cfg.Drain.Link})
	if err != nil {
		return nil, err
	}
	err = mongo.Retry{For: settleWithin, Again: passing}.Do(ctx, func() (err error) {
		o, err = read(store, ctx)
		return err
	})
	return o, err
}
