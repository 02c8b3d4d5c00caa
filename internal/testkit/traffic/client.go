package traffic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// client is a client that writes, and waits for each answer.
type client struct {
	w       *Traffic
	no      int // -1 is the keeper
	cfg     *Config
	cluster mongo.Caller
	rnd     *rand.Rand
	// session is for transactions, nil before the first.
	session *mongo.Session
	// serial numbers values that have to be new.
	serial int
	// lsid is the session of retryable writes, empty before the first; last is the number of the last one.
	lsid    bson.Raw
	last    int64
	chained bool
}

// loop takes one step after the other until soft is done.
func (c *client) loop(ctx, soft context.Context, pause time.Duration, step func(context.Context) error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for soft.Err() == nil {
		if err := step(ctx); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		if pause <= 0 {
			continue
		}
		timer.Reset(time.Duration(c.rnd.Int64N(2 * int64(pause))))
		select {
		case <-timer.C:
		case <-soft.Done():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// retryPause is how long a client waits before it repeats a lost write, and
// retries how often it does so if the reason is another client.
const (
	retryPause = 50 * time.Millisecond
	retries    = 5
)

// errRefused is a command that was refused, as can be expected.
var errRefused = errors.New("refused")

// disposition says how to handle an error.
type disposition int

const (
	fatal disposition = iota
	lost
	conflict
	refused
)

func dispositionOf(err error) disposition {
	k := servererr.Classify(err)
	switch {
	case servererr.IsOfOthers(err) && k != servererr.Lost && k != servererr.Unconfirmed:
		return refused
	// What only newer servers can do, as an update with names that start with a dollar, an index that cannot become unique, and an update
	// that would change the size of a document of a collection that has become a capped one.
	case servererr.IsNotUnderstood(err), servererr.IsDollarName(err), servererr.IsNotUnique(err), servererr.IsCappedSize(err), servererr.KeyFaultOf(err) != servererr.AnyKey:
		return refused
	case k == servererr.NotPrimary, k == servererr.Leaving, k == servererr.Lost, k == servererr.Unconfirmed:
		return lost
	case k == servererr.Transient, k == servererr.Expired, k == servererr.Ended, k == servererr.Split:
		return conflict // with another client, or an index build that continues after a failover
	}
	return fatal
}

// do runs a command until it is executed or refused permanently: errRefused if
// that is expected.
func (c *client) do(ctx context.Context, db string, cmd bson.D) (bson.Raw, error) {
	body, err := bson.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("traffic: build %s: %w", cmd[0].Key, err)
	}
	for conflicts := 0; ; {
		reply, err := c.cluster.Call(ctx, mongo.Command{DB: db, Body: body})
		if err == nil {
			err = c.checkWrites(reply)
		}
		if err == nil {
			return reply, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		switch dispositionOf(err) {
		case lost:
			c.w.stats.lost.Add(1)
		case conflict:
			if conflicts++; conflicts > retries {
				c.w.stats.refused.Add(1)
				return reply, errRefused
			}
		case refused:
			c.w.stats.refused.Add(1)
			return reply, errRefused
		default:
			return nil, fmt.Errorf("traffic: %s on %s: %w", cmd[0].Key, db, err)
		}
		if err := c.wait(ctx, retryPause); err != nil {
			return nil, err
		}
	}
}

// checkWrites returns the first write error of a reply. Write concern errors are
// ignored: the aim is load, not durability.
func (c *client) checkWrites(reply bson.Raw) error {
	list, err := mongo.WriteErrors(reply)
	if err != nil || len(list) == 0 {
		return err
	}
	return &list[0].Error
}

// try is do that ignores refusals.
func (c *client) try(ctx context.Context, db string, cmd bson.D) (ok bool, err error) {
	_, err = c.do(ctx, db, cmd)
	if errors.Is(err, errRefused) {
		return false, nil
	}
	return err == nil, err
}

func (c *client) wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
