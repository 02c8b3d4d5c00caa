package memstore

import (
	"fmt"

	"github.com/oplogrep/replicator/oplog"
)

// Code is the server's name of the fault of an operation, to be tested with
// errors.Is.
type Code string

// The codes that applying an operation can end with.
const (
	NamespaceNotFound         Code = "NamespaceNotFound"
	NamespaceExists           Code = "NamespaceExists"
	IndexNotFound             Code = "IndexNotFound"
	IndexAlreadyExists        Code = "IndexAlreadyExists"
	IndexOptionsConflict      Code = "IndexOptionsConflict"
	InvalidOptions            Code = "InvalidOptions"
	InvalidNamespace          Code = "InvalidNamespace"
	CommandNotSupportedOnView Code = "CommandNotSupportedOnView"
	UpdateFailed              Code = "UpdateFailed"
	DuplicateKey              Code = "DuplicateKey"
	// OplogOperationUnsupported is a change of the feature compatibility version
	// in InitialSync mode: the copy has to be started again.
	OplogOperationUnsupported Code = "OplogOperationUnsupported"
	// NeedsApplier is a part of a transaction, which Store.Apply cannot take.
	NeedsApplier Code = "NeedsApplier"
)

func (c Code) Error() string { return string(c) }

func (c Code) because(format string, args ...any) error {
	return fmt.Errorf("%w: %s", c, fmt.Sprintf(format, args...))
}

// OpError is an operation that could not be applied. The store is as it was
// before the operation.
type OpError struct {
	// OpTime is the entry's.
	OpTime oplog.OpTime
	// What names the kind of operation, or the command.
	What string
	// NS is where the entry says that it belongs.
	NS oplog.Namespace
	// Err is the fault: a Code with details, or the error of reading the
	// operation or its update.
	Err error
}

func (e *OpError) Error() string {
	return fmt.Sprintf("apply %s of %s to %s: %v", e.What, e.OpTime, e.NS, e.Err)
}

func (e *OpError) Unwrap() error { return e.Err }
