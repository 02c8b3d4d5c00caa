package mongo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/rawbson"
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
	// Read is set for a command that only reads: it had no effect, executed or not.
	Read bool
}

func (e *SilentError) Error() string {
	text := fmt.Sprintf("no reply within %s", e.After)
	if e.Read {
		return text
	}
	return text + "; whether the command was executed is not known"
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
	silent := &SilentError{After: b.Limit, Read: onlyReads(cmd)}
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

// readers are the commands that change nothing on a server.
var readers = []string{
	"aggregate", "buildInfo", "collStats", "connectionStatus", "count", "currentOp", "dbStats", "distinct", "find", "getMore",
	"getParameter", "hello", "isMaster", "listCollections", "listDatabases", "listIndexes", "ping", "replSetGetConfig",
	"replSetGetRBID", "replSetGetStatus", "serverStatus",
}

// onlyReads reports whether none of some commands changes anything. No aggregate of this program writes.
func onlyReads(cmds ...Command) bool {
	for i := range cmds {
		it := rawbson.NewIter(cmds[i].Body)
		if !it.Next() || !slices.Contains(readers, it.Name()) {
			return false
		}
	}
	return true
}
