package request

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// MostCutWait is for how long a cut can be asked for.
	MostCutWait = 24 * time.Hour
	// cutWait is for how long it is tried if the request does not say it.
	cutWait = time.Minute
	// cutPoll is the mean time between two looks for a cut that was asked for.
	cutPoll = 50 * time.Millisecond
	// cutBeginsWithin is how long the process that leads may take to begin a cut that was asked for before it is said that
	// none has: it reads requests every second.
	cutBeginsWithin = 5 * time.Second
	// cutUnseen is how long the last look for a cut may wait for the target while the request still counts as read.
	cutUnseen = time.Second
)

var (
	// ErrNoCut is wrapped by the error of a cut that was asked for and is not made.
	ErrNoCut = errors.New("no consistent cut")
	// ErrNotBegun is wrapped, too, if no process has begun to make it for a while.
	ErrNotBegun = errors.New("not begun: no process runs the link, or an earlier release does")
)

// CutArgs are the arguments of Cut.
type CutArgs struct {
	// WithinSeconds is for how long the process that leads tries to make the cut, from when it
	// has read the request; 0 for a minute.
	WithinSeconds int64 `json:"withinSeconds,omitempty"`
}

// Within reads the arguments of Cut: for how long to try.
func (r *Record) Within() (time.Duration, error) {
	var a CutArgs
	if err := decode(r.Args, &a); err != nil {
		return 0, err
	}
	if a.WithinSeconds < 0 || a.WithinSeconds > int64(MostCutWait/time.Second) {
		return 0, fmt.Errorf("withinSeconds: want 1 to %d, it is %d", int64(MostCutWait/time.Second), a.WithinSeconds)
	}
	return cmp.Or(time.Duration(a.WithinSeconds)*time.Second, cutWait), nil
}

// NextCut asks for a consistent cut that is made after the call has begun, and waits until it
// is majority-committed on the target. By and why are those of an Ask. within is how long it
// waits, up to MostCutWait. said, if not nil, is called with the reason why there is no cut yet,
// whenever that changes, and once if no process has begun to make one for a while.
//
// An error that wraps ErrNoCut says why there is none: no process runs the link, it is paused, or it
// makes a copy, for example. It wraps a *checkpoint.OverError if the link has ended. The link is not affected.
func (s *Store) NextCut(ctx context.Context, by, why string, within time.Duration, said func(string)) (checkpoint.Cut, error) {
	args, err := json.Marshal(CutArgs{WithinSeconds: max(1, int64((within+time.Second-1)/time.Second))})
	if err != nil {
		return checkpoint.Cut{}, s.wrap(err, "ask for a cut")
	}
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	// An earlier outcome of the same command must not answer this one, so the time is that
	// after the request is majority-committed.
	r, after, err := s.askForCut(limited, Ask{Kind: Cut, By: by, Why: why, Args: args})
	unread := err // of the last look
	// The request can be read since that time; seen is when it was last.
	var since, seen time.Time
	notBegun := false // for a while
	for err == nil {
		var made *checkpoint.Cut
		var failed error
		made, r, failed, err = s.lookForCut(limited, r, after, said)
		switch {
		case made != nil:
			return *made, nil
		case err != nil: // it may be that the time is over
		case failed != nil:
			unread, since = failed, time.Time{}
		default:
			unread, seen = nil, time.Now()
			if since.IsZero() {
				since = seen
			}
			if !notBegun && r.Outcome == "" && seen.Sub(since) > cutBeginsWithin {
				notBegun = true
				if said != nil {
					said("the request is " + ErrNotBegun.Error())
				}
			}
		}
	}
	if unread == nil && time.Since(seen) > cutUnseen {
		unread = err
	}
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case limited.Err() != nil && r.ID == "":
		err = fmt.Errorf("%w: waited %s, and the target has not taken the request: %w", ErrNoCut, within.Round(time.Millisecond), plain(err))
	case limited.Err() != nil && r.Outcome == "" && unread != nil:
		err = fmt.Errorf("%w: waited %s, and the request cannot be read: %w", ErrNoCut, within.Round(time.Millisecond), plain(unread))
	case limited.Err() != nil && r.Outcome == "" && notBegun:
		err = fmt.Errorf("%w: waited %s, and the request is %w", ErrNoCut, within.Round(time.Millisecond), ErrNotBegun)
	case limited.Err() != nil && r.Outcome == "": // one may be about to
		err = fmt.Errorf("%w: waited %s, and no process has begun to make it yet", ErrNoCut, within.Round(time.Millisecond))
	case limited.Err() != nil:
		err = fmt.Errorf("%w: waited %s, and the request is %s", ErrNoCut, within.Round(time.Millisecond), r.Outcome)
	}
	if !errors.Is(err, ErrNoCut) && errors.As(err, new(*storeError)) {
		return checkpoint.Cut{}, err // it names the link already
	}
	return checkpoint.Cut{}, s.wrap(err, "ask for a cut")
}

// askForCut makes the request, and returns a time of the target after that. A target that has a
// failover is asked again.
func (s *Store) askForCut(ctx context.Context, a Ask) (r Record, after bson.Timestamp, err error) {
	if r, err = s.ask(ctx, a, mongo.Forever); err != nil {
		return r, after, err
	}
	r.Outcome = "" // a leader that was quicker has set it: it is said, too
	var last error
	err = mongo.Retry{For: mongo.Forever, Again: passes, Failed: func(err error) { last = err }}.Do(ctx, func() (err error) {
		after, err = mongo.OperationTime(ctx, s.target)
		return err
	})
	if err != nil && ctx.Err() != nil && last != nil {
		err = last
	}
	return r, after, err
}

// lookForCut looks once whether a request has been answered, or a later cut than after is there,
// and pauses if not. Failed is an error that passes, with the record as it was.
func (s *Store) lookForCut(ctx context.Context, was Record, after bson.Timestamp, said func(string)) (made *checkpoint.Cut, now Record, failed, err error) {
	now, err = s.going(ctx, was.ID)
	if err != nil {
		now = was
	}
	var list []checkpoint.Cut
	if err == nil {
		list, err = s.links.Cuts(ctx)
	}
	switch {
	case err != nil && (ctx.Err() != nil || !passes(err)):
		return nil, now, nil, err
	case err != nil: // the target fails over
		failed = err
	case len(list) > 0 && (now.State == Done || oplog.CompareTimestamps(list[0].Target, after) > 0):
		return &list[0], now, nil, nil
	case !now.Open():
		return nil, now, nil, fmt.Errorf("%w: %s", ErrNoCut, now.Outcome)
	case now.Outcome != was.Outcome && said != nil:
		said(now.Outcome)
	}
	return nil, now, failed, mongo.Pause(ctx, cutPoll)
}
