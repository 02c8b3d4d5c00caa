package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

const (
	// cutPoll is the time between two looks for a new cut, cutWait for how long Next waits.
	cutPoll = 100 * time.Millisecond
	cutWait = 2 * time.Minute
)

// LinkCuts are the cuts of a link: those that it makes at its interval, and others that are
// asked for.
type LinkCuts struct {
	// Links is the store of the link.
	Links *checkpoint.Store
	// By is the operator that asks for cuts.
	By string
	// Patience is for how long a target that does not answer is asked again. Zero means a minute.
	Patience time.Duration
	// Wait is for how long Next waits. Zero means 2 minutes.
	Wait time.Duration
}

var _ Cuts = (*LinkCuts)(nil)

// Newest implements Cuts.
func (l *LinkCuts) Newest(ctx context.Context) (Cut, bool, error) {
	var list []checkpoint.Cut
	err := l.retry().Do(ctx, func() (err error) {
		list, err = l.Links.Cuts(ctx)
		return err
	})
	if err != nil || len(list) == 0 {
		return Cut{}, false, err
	}
	return ofLink(&list[0]), true, nil
}

func (l *LinkCuts) retry() mongo.Retry {
	return mongo.Retry{For: cmp.Or(l.Patience, defaultPatience), Again: mongo.RepeatsRead}
}

func ofLink(c *checkpoint.Cut) Cut {
	return Cut{Source: c.Source.TS, Target: c.Target, At: c.At}
}

// Next implements Cuts. It asks for a cut or, if the user may not write to the metadata, waits
// for the next one that the link makes at its interval. The error wraps request.ErrNoCut if there
// is none.
func (l *LinkCuts) Next(ctx context.Context) (Cut, error) {
	wait := l.Wait
	if wait == 0 {
		wait = cutWait
	}
	cut, err := request.New(l.Links).NextCut(ctx, l.By, "to compare the target with the source", wait, nil)
	switch {
	case servererr.IsDenied(err):
		return l.await(ctx, wait)
	case err != nil:
		return Cut{}, err
	}
	return ofLink(&cut), nil
}

// await waits for a cut that is newer than the present time of the target.
func (l *LinkCuts) await(ctx context.Context, wait time.Duration) (Cut, error) {
	limited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var after bson.Timestamp
	err := l.retry().Do(ctx, func() (err error) {
		after, err = mongo.OperationTime(ctx, l.Links.Target())
		return err
	})
	for err == nil {
		cut, found, newest := l.Newest(limited)
		if newest == nil && found && oplog.CompareTimestamps(cut.Target, after) > 0 {
			return cut, nil
		}
		over, ended := l.Links.Over(limited)
		if ended == nil && over != nil {
			return Cut{}, &checkpoint.OverError{Link: l.Links.Link(), Over: *over}
		}
		err = errors.Join(newest, ended, mongo.Pause(limited, cutPoll))
	}
	if ctx.Err() == nil && limited.Err() != nil {
		err = fmt.Errorf("%w for %s: the user may not ask for one, which needs readWrite on the metadata database; without it the link has to make them with --cut-interval", request.ErrNoCut, wait)
	}
	return Cut{}, err
}
