package oplog

import (
	"errors"
	"fmt"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// Kinds of EntryError, for errors.Is.
var (
	// ErrVersion is an entry of a format other than 2.
	ErrVersion = errors.New("format version is not 2")
	// ErrUnknownOp is an entry with an unknown op.
	ErrUnknownOp = errors.New("unknown operation")
	// ErrUnknownCommand is an unknown command.
	ErrUnknownCommand = errors.New("unknown command")
	// ErrMissingField is an entry without a required field.
	ErrMissingField = errors.New("missing")
	// ErrBadField is a field with an invalid type or value.
	ErrBadField = errors.New("not valid")
	// ErrCorrupt is an entry that is not BSON.
	ErrCorrupt = errors.New("not BSON")
	// ErrUnsupported is an entry that is understood, but cannot be replicated.
	ErrUnsupported = errors.New("not supported")
)

// EntryError reports which entry cannot be used, and why. The entry must not be
// skipped: it is part of the source's history.
type EntryError struct {
	// OpTime is the entry's optime, null if it cannot be read.
	OpTime OpTime
	// Field is the path of the invalid field, "" for the whole entry.
	Field string
	// Err is one of the errors above, with details.
	Err error
}

func (e *EntryError) Error() string {
	at := "without a readable optime"
	if !e.OpTime.IsNull() {
		at = e.OpTime.String()
	}
	if e.Field == "" {
		return fmt.Sprintf("oplog entry %s: %v", at, e.Err)
	}
	return fmt.Sprintf("oplog entry %s: %s: %v", at, e.Field, e.Err)
}

func (e *EntryError) Unwrap() error { return e.Err }

// Within returns the error with path prepended to its field.
func (e *EntryError) Within(path string) *EntryError {
	if e.Field != "" {
		path += "." + e.Field
	}
	return &EntryError{OpTime: e.OpTime, Field: path, Err: e.Err}
}

// Fault returns an [*EntryError] for the operation. Field is "" for all of it.
func (o *Op) Fault(field string, err error) error {
	return &EntryError{OpTime: o.OpTime, Field: field, Err: err}
}

func (o *Op) missing(field string) error { return o.Fault(field, ErrMissingField) }

func (o *Op) bad(field, format string, args ...any) error {
	return o.Fault(field, fmt.Errorf("%w: %s", ErrBadField, fmt.Sprintf(format, args...)))
}

func (o *Op) corrupt(field string, err error) error {
	return o.Fault(field, fmt.Errorf("%w: %w", ErrCorrupt, err))
}

// longest is the maximum number of bytes of a name or value that an error shows.
const longest = 64

// quoted returns a name from an entry for use in an error.
func quoted(name string) string {
	if len(name) > longest {
		return fmt.Sprintf("%q... (%d bytes)", name[:longest], len(name))
	}
	return strconv.Quote(name)
}

// describe returns a field's actual value or type for use in an error.
func describe(f *rawbson.Elem) string {
	switch {
	case f.Type == bson.TypeEmbeddedDocument, f.Type == bson.TypeArray, f.Type == bson.TypeCodeWithScope,
		len(f.Value) > longest:
		return "of type " + f.Type.String()
	default:
		return fmt.Sprintf("%s, of type %s", f.Raw(), f.Type)
	}
}
