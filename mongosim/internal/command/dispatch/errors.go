package dispatch

import (
	"context"
	"errors"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

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
	ErrMaxTime     = servererr.New(servererr.MaxTimeMSExpired, "operation exceeded time limit")
)

// ErrDisconnected is the cause of cancelled commands whose client has gone.
var ErrDisconnected = servererr.New(servererr.ClientDisconnect, "operation was interrupted because a client disconnected")

// errWriteConflict is a transaction's error for [storage.ErrWriteConflict].
var errWriteConflict = servererr.New(servererr.WriteConflict,
	"WriteConflict error: this operation conflicted with another operation. Please retry your operation or multi-document transaction.")

// Interrupted returns the server's error for a context that has ended.
func Interrupted(ctx context.Context) error {
	cause := context.Cause(ctx)
	if refusal, ok := errors.AsType[*servererr.Error](cause); ok {
		return refusal
	}
	switch {
	case errors.Is(cause, context.DeadlineExceeded):
		return ErrMaxTime
	case errors.Is(cause, wire.ErrHangup), errors.Is(cause, context.Canceled):
		return ErrDisconnected
	}
	return errShutdown // its owner has ended the connection
}

// Refusal converts any error to one that a reply can have.
func Refusal(err error) *servererr.Error {
	if e, ok := errors.AsType[*servererr.Error](err); ok {
		return e
	}
	switch {
	case errors.Is(err, storage.ErrWriteConflict):
		return errWriteConflict
	case errors.Is(err, context.DeadlineExceeded):
		return ErrMaxTime
	case errors.Is(err, context.Canceled):
		return servererr.New(servererr.Interrupted, "operation was interrupted")
	}
	return servererr.New(servererr.InternalError, "%s", err)
}

// MissingField is the refusal of a command without a required argument.
func MissingField(structName, field string) error {
	return servererr.New(40414, "BSON field '%s.%s' is missing but a required field", structName, field)
}

// WrongType is the refusal of an argument of a type that the command does not
// take; want are the names of those that it does.
func WrongType(structName, field string, got bson.Type, want ...string) error {
	wanted := "expected type '" + strings.Join(want, "") + "'"
	if len(want) > 1 {
		wanted = "expected types '[" + strings.Join(want, ", ") + "]'"
	}
	return servererr.New(servererr.TypeMismatch, "BSON field '%s.%s' is the wrong type '%s', %s",
		structName, field, bsontext.TypeName(got), wanted)
}

// UnknownField is the refusal of an argument that the command does not have.
func UnknownField(structName, field string) error {
	return servererr.New(40415, "BSON field '%s.%s' is an unknown field.", structName, field)
}

// duplicateField is the refusal of an argument that is there twice.
func duplicateField(structName, field string) error {
	return servererr.New(40413, "BSON field '%s.%s' is a duplicate field", structName, field)
}

// NotOnView is the refusal of a command that does not work on views.
func NotOnView(ns oplog.Namespace) error {
	return servererr.New(servererr.CommandNotSupportedOnView, "Namespace %s is a view, not a collection", ns)
}

// UUIDMismatch is the refusal of a command for a collection of another UUID.
func UUIDMismatch(v storage.View, ns oplog.Namespace, want oplog.UUID) error {
	i, info := bsoncore.AppendDocumentStart(nil)
	info = bsoncore.AppendStringElement(info, "db", ns.DB())
	info = bsoncore.AppendBinaryElement(info, "collectionUUID", bson.TypeBinaryUUID, want[:])
	info = bsoncore.AppendStringElement(info, "expectedCollection", ns.Collection())
	if actual, ok := v.ByUUID(want); ok && actual.NS.DB() == ns.DB() {
		info = bsoncore.AppendStringElement(info, "actualCollection", actual.NS.Collection())
	} else {
		info = bsoncore.AppendNullElement(info, "actualCollection")
	}
	info, _ = bsoncore.AppendDocumentEnd(info, i)
	return servererr.New(servererr.CollectionUUIDMismatch, "Collection UUID does not match that specified").WithInfo(info)
}
