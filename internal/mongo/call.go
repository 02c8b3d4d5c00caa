package mongo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// Caller runs commands on a server, or on whichever member of a set is primary.
// It may be used by several goroutines at once, and the order between their
// calls is not defined. A Caller never sends anything twice: to retry,
// call again.
type Caller interface {
	// Call runs one command and returns its reply, which is the caller's to
	// keep. The reply is that of a command that was carried out (ok: 1).
	// Errors are *servererr.Error and *LostError, and the cause of ctx.
	Call(ctx context.Context, cmd Command) (bson.Raw, error)
}

// Command is one command.
type Command struct {
	// DB is the database it runs on.
	DB string
	// Body is the command without $db. Its first field is the command's name.
	Body bson.Raw
	// Sequence, if not empty, is the name of an array field of the command that
	// travels next to the body, so that it is not bound by the size of one
	// document: "documents", "updates", "deletes".
	Sequence string
	// Docs are that array's elements.
	Docs []bson.Raw
	// SendBy, if it is not zero, is the time by which Call has to have sent it. What
	// cannot be sent by then, because no server or connection was free, or because
	// the process was stopped, is not sent at all: ErrTooLate.
	SendBy time.Time
}

// ErrTooLate is a command that was not sent, as its time to be sent had passed.
var ErrTooLate = errors.New("not sent: there was no connection for it in time")

// Overdue reports whether it is too late to send the command, by either clock: the
// monotonic one stands still with a machine that is suspended, and the other one may
// be set back.
func (c *Command) Overdue() bool {
	now := time.Now()
	return !c.SendBy.IsZero() && (now.After(c.SendBy) || now.Round(0).After(c.SendBy.Round(0)))
}

// LostError is a command without an answer: it may have been carried out, or may
// still be.
type LostError struct {
	// Host is the server, empty where none could be chosen.
	Host string
	// Err is what the network, or the choice of a server, said.
	Err error
	// Refused is a server that has answered, and did not let us in: the command was
	// not sent. Err says so, and names the server.
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

// Unwrap returns what the network said.
func (e *LostError) Unwrap() error { return e.Err }

// Kind returns Lost, or Auth where the server did not let us in.
func (e *LostError) Kind() servererr.Kind {
	if e.Refused {
		return servererr.Auth
	}
	return servererr.Lost
}
