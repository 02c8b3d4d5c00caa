package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// passing reports whether a refused command may be sent again.
func passing(err error) bool {
	if _, lost := errors.AsType[*mongo.LostError](err); lost {
		return true
	}
	v := failure.Classify(err)
	return v.Action == failure.Retry
}

// write sends an idempotent command until it succeeds.
func (c *cluster) write(ctx context.Context, db string, cmd bson.D) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	body, err := bson.Marshal(cmd)
	if err != nil {
		return err
	}
	for {
		reply, err := c.conn.Call(ctx, mongo.Command{DB: db, Body: body})
		if err == nil {
			return refusal(reply)
		}
		if !passing(err) {
			return fmt.Errorf("%s: %w", cmd[0].Key, err)
		}
		if _, err := c.AwaitPrimary(ctx); err != nil {
			return err
		}
	}
}

// refusal returns the errors in the reply to a write. A document that exists already
// was inserted by an earlier try.
func refusal(reply bson.Raw) error {
	refused, err := mongo.WriteErrors(reply)
	if err != nil {
		return err
	}
	for i := range refused {
		if refused[i].Code != servererr.DuplicateKey {
			return &refused[i].Error
		}
	}
	return nil
}

// on runs a command on one member, whatever links are cut.
func (c *cluster) on(ctx context.Context, member int, db string, cmd bson.D) (bson.Raw, error) {
	body, err := bson.Marshal(append(slices.Clone(cmd), bson.E{Key: "$db", Value: db}))
	if err != nil {
		return nil, err
	}
	reply, err := c.Member(member).Call(ctx, body)
	if err != nil {
		return nil, err
	}
	if err := mongo.Check(reply); err != nil {
		return nil, fmt.Errorf("%s: %w", cmd[0].Key, err)
	}
	return reply, refusal(reply)
}
