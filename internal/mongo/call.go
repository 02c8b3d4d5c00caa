package mongo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// Caller runs commands on a server, or on the primary of a replica set. It is safe for
// concurrent use; the order of concurrent calls is undefined. A Caller never retries: it
// sends each command once.
type Caller interface {
	// Call runs one command and returns its reply, which has ok: 1 and belongs to the
	// caller. Errors are *servererr.Error, *LostError, and the cause of ctx.
	Call(ctx context.Context, cmd Command) (bson.Raw, error)
}

// Command is one command.
type Command struct {
	// DB is the database on which it runs.
	DB string
	// Body is the command without $db. Its first field is the command's name.
	Body bson.Raw
	// Sequence, if not empty, is the name of an array field of the command that is sent
	// as a document sequence, so that the size limit of one document does not apply to
	// it: "documents", "updates", "deletes".
	Sequence string
	// Docs are that array's elements.
	Docs []bson.Raw
	// SendBy, if not zero, is the time by which Call must have sent the command. If it
	// cannot, because no server or connection was available or the process was
	// suspended, it does not send the command and returns ErrTooLate.
	SendBy time.Time
}

// ErrTooLate reports that a command was not sent, because its SendBy had passed.
var ErrTooLate = errors.New("not sent in time")

// Overdue reports whether it is too late to send the command, by either clock: the
// monotonic clock stops while the machine is suspended, and the wall clock may be set
// back.
func (c *Command) Overdue() bool {
	now := time.Now()
	return !c.SendBy.IsZero() && (now.After(c.SendBy) || now.Round(0).After(c.SendBy.Round(0)))
}

// LostError reports a command without a reply: it may have been executed, or may still
// be.
type LostError struct {
	// Host is the server, empty if none could be selected.
	Host string
	// Err is the error of the network, or of server selection.
	Err error
	// Refused reports that the server answered and rejected the connection: the command
	// was not sent. Err has the reason, and names the server.
	Refused bool
}

func (e *LostError) Error() string {
	if e.Refused {
		return e.Err.Error()
	}
	if e.Host == "" {
		return fmt.Sprintf("no server to ask: %v", e.Err)
	}
	return fmt.Sprintf("no answer from %s: %v", e.Host, e.Err)
}

// Unwrap returns Err.
func (e *LostError) Unwrap() error { return e.Err }

// Kind returns Lost, or Auth if the server rejected the connection.
func (e *LostError) Kind() servererr.Kind {
	if e.Refused {
		return servererr.Auth
	}
	return servererr.Lost
}
