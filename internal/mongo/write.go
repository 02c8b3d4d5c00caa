package mongo

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

var majority = bsoncore.AppendDocumentElement(nil, "writeConcern",
	bsoncore.NewDocumentBuilder().AppendString("w", "majority").Build())

// WithMajority returns a command, built without a write concern, that waits for a
// majority.
func WithMajority(body bson.Raw) bson.Raw { return With(body, majority) }

// Write sends a command as a retryable write of a session, under its next number, and
// again under the same one where it was refused in passing, or once where no answer
// came: what was done of it is not done twice. It is committed by a majority when it
// returns; the reply may have statements that were refused for good.
func (r Retry) Write(ctx context.Context, s *Session, cmd Command) (bson.Raw, error) {
	cmd.Body = WithMajority(cmd.Body)
	send, asked := s.Write, false
	r.Again = func(err error) bool {
		if _, lost := errors.AsType[*LostError](err); lost {
			once := !asked && ctx.Err() == nil
			asked = true
			return once
		}
		return DispositionOf(err) == Again
	}
	var reply bson.Raw
	err := r.Do(ctx, func() (err error) {
		reply, err = send(ctx, cmd)
		send = s.Again
		if err != nil {
			return err
		}
		if e := ConcernError(reply); e != nil {
			return fmt.Errorf("a write is not confirmed by a majority: %w", &UnconfirmedError{Err: e})
		}
		return passingStatement(reply)
	})
	if err != nil {
		return nil, err
	}
	return reply, nil
}
