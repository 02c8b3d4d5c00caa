package cutover

import (
	"context"
	"errors"
	"fmt"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/cutover/record"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/lease"
)

// open lets the target take writes and, if that is asked for, the old source.
func (w *work) open(ctx context.Context) error {
	if err := w.unblockTarget(ctx); err != nil || !w.rec.Options.ThawSource {
		return err
	}
	return w.step(ctx, record.Thaw, w.thawSource)
}

// goneBack returns the link that is the way back of this cutover if it was itself cut over, empty otherwise: the
// target is then what the old source was, and stays frozen. Without the old source nothing can have gone back to it
// that is in use; and to what this process has ended, nothing has yet.
func (w *work) goneBack(ctx context.Context) (string, error) {
	if w.committed || w.cfg.SourceGone {
		return "", nil
	}
	store, err := checkpoint.New(checkpoint.Config{Target: w.cfg.Target, DB: w.cfg.MetaDB, Link: w.rec.Link})
	if err != nil {
		return "", err
	}
	is, found, err := store.Look(ctx, lease.NewWatch(""))
	if err != nil || !found {
		return "", err
	}
	source := w.cfg.Drain.Source
	links, err := checkpoint.List(ctx, source, w.cfg.MetaDB)
	switch {
	case err != nil && servererr.Classify(err) == servererr.Auth:
		w.cfg.Drain.say("whether the way back was cut over is not known: " + err.Error())
		return "", nil
	case err != nil:
		return "", fmt.Errorf("ask the old source for its links: %w", err)
	}
	for i := range links {
		st, name := &links[i].State, links[i].Link
		if err := links[i].Err; err != nil {
			if isLater(err) {
				// That release may have cut over the way back.
				return "", fmt.Errorf("whether the way back was cut over is not known: %w", err)
			}
			w.cfg.Drain.say("whether link " + name + " of the old source is the way back, and was cut over, is not known: " + err.Error())
			continue
		}
		if st.Back == nil || st.Back.Link != w.rec.Link || st.Back.Instance != is.Instance {
			continue
		}
		if st.Over != nil {
			return name, nil
		}
		r, err := (&record.Store{Target: source, DB: w.cfg.MetaDB}).Get(ctx, name)
		if err != nil {
			return "", fmt.Errorf("ask the old source for the cutover of link %s: %w", name, err)
		}
		if r.Open() {
			return "", fmt.Errorf("%w: that of link %s, the way back: end or cancel it first", ErrUnderWay, name)
		}
	}
	return "", nil
}

// isLater reports whether a link cannot be read because a later release has written it.
func isLater(err error) bool {
	v, ok := errors.AsType[*checkpoint.VersionError](err)
	return ok && v.Found > checkpoint.Version
}

// leave ends a cutover whose way back was cut over: the rest of it must not be done any more.
func (w *work) leave(ctx context.Context, back string) error {
	err := w.change(ctx, func(r *record.Record) {
		r.Begin(record.Expire, w.cfg.Drain.By, now())
		r.End(record.Expire, "nothing is restored: link "+back+", the way back, was cut over", now())
		r.State, r.Ended, r.GoneBack = record.Done, now(), back
	})
	if err != nil {
		return &StepError{record.Expire, err}
	}
	w.tell()
	return nil
}
