package continuous

import (
	"context"
	"fmt"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/request"
	"github.com/oplogrep/replicator/verify"
)

const (
	// cutPoll is the time between two looks for a new cut, cutWait for how long Next waits.
	cutPoll = 100 * time.Millisecond
	cutWait = 2 * time.Minute
)

// CutMaker makes the cuts of the link that this process leads: a *pipeline.Pipeline.
type CutMaker interface {
	// Cut asks for one, and does not block.
	Cut()
	// NewestCut returns the newest majority-committed cut, the zero Cut if none is known, and the
	// reason why there is no newer one.
	NewestCut() (newest checkpoint.Cut, why string)
}

// cuts are those of the link in this process. No request in the metadata is needed.
type cuts struct {
	maker  CutMaker
	target mongo.Caller
}

var _ verify.Cuts = (*cuts)(nil)

// Newest implements verify.Cuts.
func (c *cuts) Newest(context.Context) (verify.Cut, bool, error) {
	newest, _ := c.maker.NewestCut()
	return of(&newest), newest.Target.T != 0, nil
}

func of(c *checkpoint.Cut) verify.Cut {
	return verify.Cut{Source: c.Source.TS, Target: c.Target, At: c.At}
}

// Next implements verify.Cuts.
func (c *cuts) Next(ctx context.Context) (verify.Cut, error) {
	limited, cancel := context.WithTimeout(ctx, cutWait)
	defer cancel()
	after, err := mongo.OperationTime(limited, mongo.Twice(c.target))
	if err != nil {
		return verify.Cut{}, err
	}
	for {
		newest, why := c.maker.NewestCut()
		if oplog.CompareTimestamps(newest.Target, after) > 0 {
			return of(&newest), nil
		}
		c.maker.Cut() // An attempt that ends forgets the request.
		switch err := mongo.Pause(limited, cutPoll); {
		case ctx.Err() != nil:
			return verify.Cut{}, context.Cause(ctx)
		case err != nil && why != "":
			return verify.Cut{}, fmt.Errorf("%w for %s: %s", request.ErrNoCut, cutWait, why)
		case err != nil:
			return verify.Cut{}, fmt.Errorf("%w for %s", request.ErrNoCut, cutWait)
		}
	}
}
