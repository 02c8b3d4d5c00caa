package cutover

import (
	"context"
	"errors"
	"fmt"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo"
)

// Cancel takes a cutover back that has not passed its commit point: the source takes writes again, the
// options are deferred again, and the link continues. The caller has the link's lock (Locked). It may be
// called again after whatever interrupts it, also once it is done: it lifts a block that came only after that. The error wraps ErrCommitted if it is too late.
// Called again with the same Config, it cancels no other one.
func Cancel(ctx context.Context, cfg *Config) (*record.Record, error) {
	w, err := cfg.work(ctx)
	if err == nil {
		err = cfg.same(w.rec)
	}
	if err != nil {
		return nil, err
	}
	if !w.rec.Open() {
		if w.rec != nil && w.rec.State == record.Done {
			return w.rec, ErrCommitted
		}
		if lifted, err := w.strayBlock(ctx); lifted || err != nil {
			return w.rec, err
		}
		return w.rec, ErrNone
	}
	err = w.persist(ctx, w.undo)
	return w.rec, w.failed(ctx, err)
}

// undo takes everything back:
//
//	running ──▶ cancelling ──▶ has the link ended? ──▶ take the lease over ──▶ thaw ──▶ put options back ──▶ cancelled
//	                              │ yes                (if options are converted)
//	                              ▼
//	                           running: too late
//
// No process can end the link once the record says that it is being cancelled and the lease was
// taken over then: see commit.
func (w *work) undo(ctx context.Context) error {
	err := w.change(ctx, func(r *record.Record) {
		r.Doubt(now())
		r.State = record.Cancelling
		r.Begin(record.Undo, w.cfg.Drain.By, now())
	})
	if err != nil {
		return &StepError{record.Undo, err}
	}
	w.tell()
	ended, err := w.cfg.mayBeOver(ctx)
	switch {
	case err != nil:
		return &StepError{record.Undo, err}
	case ended != nil && ended.Promoted != nil:
		return w.promoted(ctx, ended)
	case ended != nil:
		return w.tooLate(ctx)
	}
	if w.rec.Began(record.Convert) {
		err = w.leading(ctx, w.putBack)
		if _, is := errors.AsType[*checkpoint.OverError](err); is {
			return w.tooLate(ctx)
		}
	} else {
		err = w.thaw(ctx, w.rec)
	}
	if err != nil {
		return &StepError{record.Undo, err}
	}
	err = w.change(ctx, func(r *record.Record) {
		r.State, r.Ended = record.Cancelled, now()
		r.End(record.Undo, r.Thawed()+"; the link goes on", now())
	})
	if err != nil {
		return &StepError{record.Undo, err}
	}
	w.tell()
	return nil
}

// putBack lets the source take writes again, as no other process can end the link, and defers the options
// again before the link continues.
func (w *work) putBack(ctx context.Context, link *checkpoint.Link) error {
	if err := w.thaw(ctx, w.rec); err != nil {
		return err
	}
	if _, err := Revert(ctx, w.converting(link)); err != nil {
		return err
	}
	return link.Reverted(ctx)
}

// EndPromoted ends the cutover of a link that was promoted, if one is under way: nothing of it remains to be done.
// It returns that record, nil if there is none, and whether the old source may be blocked by it. The caller has
// the link's lock (Locked).
func EndPromoted(ctx context.Context, target mongo.Caller, metaDB, link string) (r *record.Record, blocks bool, err error) {
	records := &record.Store{Target: target, DB: metaDB}
	was, err := records.Get(ctx, link)
	if err != nil || !was.Open() {
		return nil, false, err
	}
	r = was.Clone()
	r.State, r.Ended = record.Cancelled, now()
	return r, was.Blocks(), records.Put(ctx, was, r)
}

// tooLate goes back to a cutover that is committed.
func (w *work) tooLate(ctx context.Context) error {
	err := w.change(ctx, func(r *record.Record) {
		r.State = record.Running
		r.Forget(record.Undo)
	})
	return errors.Join(fmt.Errorf("%w: the link has ended; go on with it", ErrCommitted), err)
}
