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

// WithMajority adds write concern majority to a command that has no write concern.
func WithMajority(body bson.Raw) bson.Raw { return With(body, majority) }

// Write sends a command as a retryable write of a session, under its next number. It
// retries under the same number after transient errors, and once if no reply arrived, so
// that no statement is executed twice. The write is majority-committed when Write
// returns; the reply may have errors of statements that are not transient.
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
