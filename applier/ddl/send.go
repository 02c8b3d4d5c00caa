package ddl

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/servererr"
)

// How long to wait before a command is tried again that other work stands in the
// way of: doubling from shortest to longest, and half of it at random.
const (
	shortestWait = 100 * time.Millisecond
	longestWait  = 5 * time.Second
)

// send runs a command that is built without its write concern, and waits for a
// majority. Where the target says that other work is in the way it did nothing,
// and is asked again until ctx ends.
func (s *step) send(ctx context.Context, db string, cmd *bsoncore.DocumentBuilder) (bson.Raw, error) {
	majority := bsoncore.NewDocumentBuilder().AppendString("w", "majority").Build()
	body := bson.Raw(cmd.AppendDocument("writeConcern", majority).Build())
	for wait := shortestWait; ; wait = min(wait*2, longestWait) {
		reply, err := s.cfg.Target.Call(ctx, call.Command{DB: db, Body: body})
		if err == nil {
			if concern := call.ConcernError(reply); concern != nil {
				return nil, fmt.Errorf("wait for a majority: %w", concern)
			}
			return reply, nil
		}
		if !busy(err) {
			return nil, err
		}
		if wait == shortestWait {
			s.cfg.Observer.Tell(Waiting{OpTime: s.op.OpTime, Name: s.name(), Err: err})
		}
		timer := time.NewTimer(wait/2 + rand.N(wait/2)) //nolint:gosec // spreads load, keeps no secret
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// busy tells whether a refusal is because of work that ends by itself, or because
// the target has no room for the command just then.
func busy(err error) bool {
	e, ok := errors.AsType[*servererr.Error](err)
	return ok && (e.Kind() == servererr.Transient || e.Kind() == servererr.Split)
}

// codeOf returns the code of a target's refusal, 0 for any other error.
func codeOf(err error) servererr.Code {
	if e, ok := errors.AsType[*servererr.Error](err); ok {
		return e.Code
	}
	return 0
}

// command begins a command on a collection.
func command(name, collection string) *bsoncore.DocumentBuilder {
	return bsoncore.NewDocumentBuilder().AppendString(name, collection)
}

// write runs an insert, update or delete and fails where a statement does.
func (s *step) write(ctx context.Context, db string, cmd *bsoncore.DocumentBuilder) error {
	reply, err := s.send(ctx, db, cmd)
	if err != nil {
		return err
	}
	refused, err := call.WriteErrors(reply)
	if err != nil {
		return err
	}
	if len(refused) > 0 {
		return &refused[0].Error
	}
	return nil
}
