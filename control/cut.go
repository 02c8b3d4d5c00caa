package control

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
)

// Cuts makes the consistent cuts of a link: *pipeline.Pipeline. It is safe for concurrent use.
type Cuts interface {
	// Cut asks for a cut as soon as possible. It does not block. A cut that was asked for is
	// forgotten when an attempt ends.
	Cut()
	// NewestCut returns the newest majority-committed cut, the zero Cut if none is known, and
	// the reason why there is no newer one, if known.
	NewestCut() (newest checkpoint.Cut, why string)
}

// cutAgain is the time after which a cut that was not made is asked for again.
const cutAgain = 5 * time.Second

// cutting is a request for a cut that this process acts on. The zero value is one that has
// just been read.
type cutting struct {
	// after is a cluster time of the target: the cut has to be later. Until is when it is given
	// up, next when the applier is asked again.
	after       bson.Timestamp
	until, next time.Time
}

// cut makes a consistent cut, and follows that to its end. A process that takes the link over
// makes another one.
func (c *Controller) cut(ctx context.Context, r *request.Record) error {
	state, outcome, err := c.tryCut(ctx, r)
	if err != nil {
		return err
	}
	if err := c.answer(ctx, r, state, outcome); err != nil {
		return err
	}
	if !r.Open() {
		delete(c.cutting, r.ID)
	}
	return nil
}

func (c *Controller) tryCut(ctx context.Context, r *request.Record) (state, outcome string, err error) {
	within, err := r.Within()
	if err != nil {
		return request.Refused, err.Error(), nil //nolint:nilerr // it is the answer
	}
	newest, why := c.cfg.Cuts.NewestCut()
	one, begun := c.cutting[r.ID]
	if begun && oplog.CompareTimestamps(newest.Target, one.after) > 0 {
		return request.Done, fmt.Sprintf("the target at %d:%d is the source as of %s", newest.Target.T, newest.Target.I, newest.Source), nil
	}
	if now := c.paused(); now != nil {
		return request.Refused, fmt.Sprintf("the link is paused, since %s by %s, and makes no cuts: resume it first", stamp(now.Since), cmp.Or(now.By, "an operator")), nil
	}
	if !begun {
		after, err := mongo.OperationTime(ctx, c.cfg.Target)
		if err != nil {
			return "", "", fmt.Errorf("act on a request for a cut: %w", err)
		}
		one = &cutting{after: after, until: time.Now().Add(within)}
		c.cutting[r.ID] = one
	}
	now := time.Now()
	switch {
	case !now.Before(one.until):
		return request.Failed, fmt.Sprintf("none could be made within %s: %s", within, cmp.Or(why, "the entries read are not applied yet")), nil
	case !now.Before(one.next):
		c.cfg.Cuts.Cut()
		one.next = now.Add(cutAgain)
	}
	return request.Working, cmp.Or(why, "asked for"), nil
}
