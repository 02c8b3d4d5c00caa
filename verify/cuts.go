package verify

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

const (
	// freshFor is for how long a cut is used for another range, so that most of the time for
	// which it can be read is left. A server keeps five minutes by default, and five seconds before 5.0,
	// where that is brief.
	freshFor, briefly = 30 * time.Second, 2 * time.Second
	// mostCuts is how many cuts are asked for to reach a time of the source, with pauses
	// between them that grow by cutPause up to longestPause: eight minutes in all.
	mostCuts     = 60
	cutPause     = 200 * time.Millisecond
	longestPause = 10 * time.Second
)

func (c *Cut) before(other *Cut) bool { return oplog.CompareTimestamps(c.Target, other.Target) < 0 }

// cutter hands out cuts. Many ranges use one.
type cutter struct {
	cuts Cuts

	mu sync.Mutex // guards the rest, and is held while a cut is asked for
	// newest is the one in use, if has; it was taken at taken.
	newest Cut
	has    bool
	taken  time.Time
	// source and target are the times that a cut must have reached at least.
	source, target bson.Timestamp
	// left is the time of a cut that could not be read any more.
	left bson.Timestamp
	// brief means that a server keeps little history.
	brief bool
}

// setBrief has later cuts be used for less time.
func (c *cutter) setBrief() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.brief = true
}

// fresh reports whether a cut that was made at a time can be used for another range.
func (c *cutter) fresh(at time.Time) bool {
	limit := freshFor
	if c.brief {
		limit = briefly
	}
	return time.Since(at) < limit
}

// need has all later cuts reach these times of the two sides: those of a listing, so that the
// listed collections exist at the cut.
func (c *cutter) need(source, target bson.Timestamp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.source, c.target = oplog.LaterTimestamp(c.source, source), oplog.LaterTimestamp(c.target, target)
}

// renew has the next cut be as new as there is one, whatever is in use.
func (c *cutter) renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken = time.Time{}
}

// leave has all later cuts be newer than one that cannot be read any more.
func (c *cutter) leave(cut *Cut) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = oplog.LaterTimestamp(c.left, cut.Target)
}

// fits reports whether a cut can be used.
func (c *cutter) fits(cut *Cut) bool {
	return oplog.CompareTimestamps(cut.Source, c.source) >= 0 && oplog.CompareTimestamps(cut.Target, c.target) >= 0 &&
		oplog.CompareTimestamps(cut.Target, c.left) > 0
}

// get returns a cut for another range: the one in use, the newest one, or another one that it
// asks for.
func (c *cutter) get(ctx context.Context) (Cut, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.has && c.fresh(c.taken) && c.fits(&c.newest) {
		return c.newest, nil
	}
	cut, found, err := c.cuts.Newest(ctx)
	if err != nil {
		return Cut{}, err
	}
	if found && c.fresh(cut.At) && c.fits(&cut) {
		return c.use(cut), nil
	}
	return c.next(ctx)
}

// next asks for a cut until one fits.
func (c *cutter) next(ctx context.Context) (Cut, error) {
	var cut Cut
	for n := range mostCuts {
		if n > 0 {
			if err := mongo.Pause(ctx, min(longestPause, time.Duration(n)*cutPause)); err != nil {
				return Cut{}, err
			}
		}
		var err error
		if cut, err = c.cuts.Next(ctx); err != nil {
			return Cut{}, err
		}
		if c.fits(&cut) {
			return c.use(cut), nil
		}
	}
	return Cut{}, fmt.Errorf("%d cuts were made, the last one as of %d:%d of the source, and none has reached %d:%d: the link does not keep up", mostCuts, cut.Source.T, cut.Source.I, c.source.T, c.source.I)
}

// last returns the cut that was in use last, nil for none: reads that begin after the call are not older.
func (c *cutter) last() *Cut {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.has {
		return nil
	}
	cut := c.newest
	return &cut
}

func (c *cutter) use(cut Cut) Cut {
	c.newest, c.has, c.taken = cut, true, time.Now()
	return cut
}

// reach waits for a cut at which the target has everything of the source up to a time.
func (c *cutter) reach(ctx context.Context, source bson.Timestamp) (Cut, error) {
	c.need(source, bson.Timestamp{})
	return c.get(ctx)
}

// reachTarget waits for a cut that is not older than a time of the target.
func (c *cutter) reachTarget(ctx context.Context, target bson.Timestamp) (Cut, error) {
	c.need(bson.Timestamp{}, target)
	return c.get(ctx)
}
