package oplog

import (
	"errors"
	"fmt"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/rawbson"
)

// What can be wrong with an entry, to be tested with errors.Is.
var (
	// ErrVersion is an entry of a format other than 2.
	ErrVersion = errors.New("format version is not 2")
	// ErrUnknownOp is an entry whose op this program does not know.
	ErrUnknownOp = errors.New("unknown operation")
	// ErrUnknownCommand is a command that this program does not know.
	ErrUnknownCommand = errors.New("unknown command")
	// ErrMissingField is an entry without a field that it needs.
	ErrMissingField = errors.New("missing")
	// ErrBadField is a field with a type or value that it cannot have.
	ErrBadField = errors.New("not valid")
	// ErrCorrupt is an entry that is not BSON.
	ErrCorrupt = errors.New("not BSON")
	// ErrUnsupported is an entry that is understood, and that nothing here can
	// follow.
	ErrUnsupported = errors.New("not supported")
)

// EntryError says which entry cannot be taken, and why. The entry must not be
// skipped: it is part of the source's history.
type EntryError struct {
	// OpTime is the entry's, null where it cannot be read.
	OpTime OpTime
	// Field is the path of the field in question, "" for the entry as a whole.
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

// Within returns the error of a field inside of another one: path comes before
// its own.
func (e *EntryError) Within(path string) *EntryError {
	if e.Field != "" {
		path += "." + e.Field
	}
	return &EntryError{OpTime: e.OpTime, Field: path, Err: e.Err}
}

// Fault returns an [*EntryError] of the operation. Field is "" for all of it.
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

// longest is how many bytes of a name or value from an entry an error shows.
const longest = 64

// quoted returns a name from an entry for an error.
func quoted(name string) string {
	if len(name) > longest {
		return fmt.Sprintf("%q... (%d bytes)", name[:longest], len(name))
	}
	return strconv.Quote(name)
}

// describe says what a field holds instead of what it should.
func describe(f *rawbson.Elem) string {
	switch {
	case f.Type == bson.TypeEmbeddedDocument, f.Type == bson.TypeArray, f.Type == bson.TypeCodeWithScope,
		len(f.Value) > longest:
		return "of type " + f.Type.String()
	default:
		return fmt.Sprintf("%s, of type %s", f.Raw(), f.Type)
	}
}
