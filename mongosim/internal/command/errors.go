package command

import (
	"context"
	"errors"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/bsontext"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/wire"
	"github.com/oplogrep/replicator/mongosim/internal/storage"
	"github.com/oplogrep/replicator/oplog"
)

// The causes with which contexts end here.
var (
	errShutdown    = servererr.New(servererr.InterruptedAtShutdown, "interrupted at shutdown")
	errSteppedDown = servererr.New(servererr.InterruptedDueToReplStateChange, "operation was interrupted")
	errKilled      = servererr.New(servererr.Interrupted, "operation was interrupted")
	errMaxTime     = servererr.New(servererr.MaxTimeMSExpired, "operation exceeded time limit")
)

// errDisconnected is what a command is told whose client has gone.
var errDisconnected = servererr.New(servererr.ClientDisconnect, "operation was interrupted because a client disconnected")

// errWriteConflict is what a transaction is told of [storage.ErrWriteConflict].
var errWriteConflict = servererr.New(servererr.WriteConflict,
	"WriteConflict error: this operation conflicted with another operation. Please retry your operation or multi-document transaction.")

// interrupted returns the server's error for a context that has ended.
func interrupted(ctx context.Context) error {
	cause := context.Cause(ctx)
	if refusal, ok := errors.AsType[*servererr.Error](cause); ok {
		return refusal
	}
	switch {
	case errors.Is(cause, context.DeadlineExceeded):
		return errMaxTime
	case errors.Is(cause, wire.ErrHangup), errors.Is(cause, context.Canceled):
		return errDisconnected
	}
	return errShutdown // its owner has ended the connection
}

// refusal brings any error into the form that a reply can give.
func refusal(err error) *servererr.Error {
	if e, ok := errors.AsType[*servererr.Error](err); ok {
		return e
	}
	switch {
	case errors.Is(err, storage.ErrWriteConflict):
		return errWriteConflict
	case errors.Is(err, context.DeadlineExceeded):
		return errMaxTime
	case errors.Is(err, context.Canceled):
		return servererr.New(servererr.Interrupted, "operation was interrupted")
	}
	return servererr.New(servererr.InternalError, "%s", err)
}

// missingField is the refusal of a command without a required argument.
func missingField(structName, field string) error {
	return servererr.New(40414, "BSON field '%s.%s' is missing but a required field", structName, field)
}

// wrongType is the refusal of an argument of a type that the command does not
// take; want are the names of those that it does.
func wrongType(structName, field string, got bson.Type, want ...string) error {
	wanted := "expected type '" + strings.Join(want, "") + "'"
	if len(want) > 1 {
		wanted = "expected types '[" + strings.Join(want, ", ") + "]'"
	}
	return servererr.New(servererr.TypeMismatch, "BSON field '%s.%s' is the wrong type '%s', %s",
		structName, field, bsontext.TypeName(got), wanted)
}

// unknownField is the refusal of an argument that the command does not have.
func unknownField(structName, field string) error {
	return servererr.New(40415, "BSON field '%s.%s' is an unknown field.", structName, field)
}

// duplicateField is the refusal of an argument that is there twice.
func duplicateField(structName, field string) error {
	return servererr.New(40413, "BSON field '%s.%s' is a duplicate field", structName, field)
}

// notOnView is the refusal of a command that does not work on views.
func notOnView(ns oplog.Namespace) error {
	return servererr.New(servererr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", ns)
}
