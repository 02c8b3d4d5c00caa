package corpus

import (
	"errors"
	"fmt"
	"strings"

	"github.com/oplogrep/replicator/internal/printable"
	"github.com/oplogrep/replicator/oplog"
)

// Faults of a recording, to be tested with errors.Is. A file that is not there
// is fs.ErrNotExist.
var (
	// ErrCorrupt is a file with invalid content: not BSON, not
	// JSON, or cut off.
	ErrCorrupt = errors.New("corrupt")
	// ErrOutOfOrder is an entry that does not come after the one before it.
	ErrOutOfOrder = errors.New("out of order")
	// ErrMismatch is a file that contradicts another one of the recording.
	ErrMismatch = errors.New("does not match the rest of the recording")
)

// FileError is a file of a recording that cannot be used.
type FileError struct {
	// File is its path.
	File string
	// Offset is where the fault is, in bytes from the start of the file, -1 for
	// the file as a whole.
	Offset int64
	// OpTime is the entry in question, null if there is none or it has none
	// that can be read.
	OpTime oplog.OpTime
	// After is the last entry before the fault, null if there is none.
	After oplog.OpTime
	// Err is the reason.
	Err error
}

func (e *FileError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "read %s", e.File)
	if e.Offset >= 0 {
		fmt.Fprintf(&b, " at byte %d", e.Offset)
	}
	if !e.OpTime.IsNull() {
		fmt.Fprintf(&b, ", entry %s", e.OpTime)
	}
	if !e.After.IsNull() {
		fmt.Fprintf(&b, ", after entry %s", e.After)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	return printable.Text(b.String())
}

func (e *FileError) Unwrap() error { return e.Err }

func fileError(file string, err error) error {
	return &FileError{File: file, Offset: -1, Err: err}
}
