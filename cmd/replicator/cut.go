package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/cli"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

type cutCommand struct {
	linkFlags
	Wait    bool          `help:"Wait for a cut that is made after the command has begun."`
	Timeout time.Duration `settings:"no" default:"1m" help:"How long --wait waits."`
	JSON    bool          `help:"Print one JSON object."`
}

// cutPolls is the time between two looks for a new cut.
const cutPolls = 100 * time.Millisecond

// Run prints the newest consistent cut of a link, or the next one.
func (c *cutCommand) Run(ctx context.Context, out cli.Output) error {
	var fault error
	if c.Timeout <= 0 {
		fault = fmt.Errorf("--timeout: %s is not more than 0", c.Timeout)
	}
	store, _, release, err := c.openLink(ctx, fault)
	if err != nil {
		return err
	}
	defer release()
	var after bson.Timestamp
	if c.Wait {
		if after, err = operationTime(ctx, store.Target()); err != nil {
			return cli.Stopped(ctx, fmt.Errorf("ask the target for its time: %w", err))
		}
	}
	for begun := time.Now(); ; {
		list, err := store.Cuts(ctx)
		switch {
		case err != nil:
			return cli.Stopped(ctx, err)
		case len(list) > 0 && oplog.CompareTimestamps(list[0].Target, after) > 0:
			return c.print(out, &list[0])
		case !c.Wait:
			return fmt.Errorf("link %s has no consistent cut: it makes them while it runs with --cut-interval, and \"noCut\" in its /status says why it makes none", c.Link)
		case time.Since(begun) > c.Timeout:
			return fmt.Errorf("link %s has made no consistent cut for %s: it makes them while it runs with --cut-interval, and \"noCut\" in its /status says why it makes none", c.Link, c.Timeout)
		}
		if err := mongo.Pause(ctx, cutPolls); err != nil {
			return cli.Stopped(ctx, err)
		}
	}
}

// operationTime returns the target's operationTime.
func operationTime(ctx context.Context, target mongo.Caller) (bson.Timestamp, error) {
	body, err := bson.Marshal(bson.D{{Key: "ping", Value: 1}})
	if err != nil {
		return bson.Timestamp{}, fmt.Errorf("make a ping: %w", err)
	}
	reply, err := mongo.Twice(target).Call(ctx, mongo.Command{DB: "admin", Body: body})
	if err != nil {
		return bson.Timestamp{}, err
	}
	t, i, ok := reply.Lookup("operationTime").TimestampOK()
	if !ok {
		return bson.Timestamp{}, errors.New("its reply to a ping has no operationTime")
	}
	return bson.Timestamp{T: t, I: i}, nil
}

func (c *cutCommand) print(out cli.Output, cut *checkpoint.Cut) error {
	wall := time.UnixMilli(cut.SourceWall).UTC()
	var err error
	if c.JSON {
		err = json.NewEncoder(out.Results).Encode(map[string]any{
			"link":   c.Link,
			"source": map[string]any{"t": cut.Source.TS.T, "i": cut.Source.TS.I, "term": cut.Source.Term, "wall": wall},
			"target": map[string]any{"t": cut.Target.T, "i": cut.Target.I, "wall": cut.At},
		})
	} else {
		_, err = fmt.Fprintf(out.Results, "source %s, written at %s\ntarget %d:%d, committed at %s\n",
			cut.Source, wall.Format(time.RFC3339Nano), cut.Target.T, cut.Target.I, cut.At.Format(time.RFC3339Nano))
	}
	if err != nil {
		return fmt.Errorf("print the cut: %w", err)
	}
	return nil
}
