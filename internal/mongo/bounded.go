package mongo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// Bounded is a Caller that does not wait for ever for the reply to a command: after Limit the
// command is Lost, as if its connection had broken. It may have been executed, or may still be, so
// it is for commands that are idempotent, or whose effect is read afterwards.
//
// The server is asked to give up earlier, with maxTimeMS, so that it answers whenever it can, and
// does not continue after the caller has given up.
type Bounded struct {
	Caller
	Limit time.Duration
}

// SilentError reports that a server has not answered a command in time.
type SilentError struct {
	// After is how long that was waited for.
	After time.Duration
}

func (e *SilentError) Error() string {
	return fmt.Sprintf("no answer from the primary within %s; whether it was executed is not known", e.After)
}

// Kind returns Lost.
func (*SilentError) Kind() servererr.Kind { return servererr.Lost }

// Call implements Caller.
func (b Bounded) Call(ctx context.Context, cmd Command) (bson.Raw, error) {
	return b.Send(ctx, cmd, b.Caller.Call)
}

// Send is Call by send, which is called once.
func (b Bounded) Send(ctx context.Context, cmd Command, send func(context.Context, Command) (bson.Raw, error)) (bson.Raw, error) {
	if _, err := cmd.Body.LookupErr(maxTime); err != nil {
		cmd.Body = With(cmd.Body, bsoncore.AppendInt64Element(nil, maxTime, max(1, (b.Limit-b.Limit/4).Milliseconds())))
	}
	silent := &SilentError{After: b.Limit}
	bounded, cancel := context.WithTimeoutCause(ctx, b.Limit, silent)
	defer cancel()
	reply, err := send(bounded, cmd)
	switch {
	case err == nil:
		return reply, nil
	case ctx.Err() == nil && bounded.Err() != nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)):
		return nil, silent
	}
	return nil, err
}

const maxTime = "maxTimeMS"
