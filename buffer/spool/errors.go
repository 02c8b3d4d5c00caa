package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/oplogrep/replicator/oplog"
)

var (
	// ErrInUse is a folder that another spool has, of this process or of another
	// one.
	ErrInUse = errors.New("another process, or another link of this one, uses the folder")
	// ErrMissing is an entry that the spool does not have, or has no more.
	ErrMissing = errors.New("not in the spool")
	// errClosed is a call after Close or Remove.
	errClosed = errors.New("the spool is closed")
	// errRunning is a call that cannot be made while Store or Read runs.
	errRunning = errors.New("the spool is in use")
)

// FullError is a wait for an entry that has no room.
type FullError struct {
	Dir string
	// Why there is none.
	Why string
}

func (e *FullError) Error() string {
	return fmt.Sprintf("spool: %s has no room for what is to be read first: %s", e.Dir, e.Why)
}

// DamagedError is a file that does not hold what was written to it. The spool is
// of no use any more: it has to be removed, and the log fetched again.
type DamagedError struct {
	File string
	// Offset is where in the file, in bytes.
	Offset int64
	Err    error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("spool: file %s is damaged at byte %d: %v", e.File, e.Offset, e.Err)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// lost makes the error of a file or folder that is not there any more, because
// somebody has cleaned up, a *DamagedError: what was in it is at the source too.
func lost(err error) error {
	gone, ok := errors.AsType[*fs.PathError](err)
	if _, known := errors.AsType[*DamagedError](err); known || !ok || !errors.Is(gone, fs.ErrNotExist) {
		return err
	}
	return &DamagedError{File: gone.Path, Err: err}
}

// remove removes a file, which may be gone already.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// orderError is an entry that came in and does not go on from what is there.
type orderError struct {
	// Last is the last entry before, or the one that had to come first.
	Last, Got oplog.OpTime
	// First tells that Got came first and is not Last, which it had to be.
	First bool
}

func (e *orderError) Error() string {
	if e.First {
		return fmt.Sprintf("spool: the first entry is %s, want %s", e.Got, e.Last)
	}
	return fmt.Sprintf("spool: entry %s came after entry %s", e.Got, e.Last)
}
