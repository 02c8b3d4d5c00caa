package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/oplogrep/replicator/oplog"
)

var (
	// ErrInUse reports a folder that another spool uses, of this process or of another
	// one.
	ErrInUse = errors.New("another process, or another link of this one, uses the directory")
	// ErrMissing reports an entry that the spool does not have, or no longer has.
	ErrMissing = errors.New("not in the spool")
	// ErrOrder reports an entry that does not continue the stored ones.
	ErrOrder = errors.New("the entries are not in the order of the oplog")
	// errClosed reports a call after Close or Remove.
	errClosed = errors.New("the spool is closed")
	// errRunning reports a call that is not allowed while Store or Read runs.
	errRunning = errors.New("the spool is in use")
)

// FullError reports that an entry that is waited for has no room.
type FullError struct {
	Dir string
	// Why there is no room.
	Why string
}

func (e *FullError) Error() string {
	return fmt.Sprintf("spool: %s has no room for the entries that must be read first: %s", e.Dir, e.Why)
}

// DamagedError reports a file whose content differs from that written to it. The spool
// has to be removed, and the oplog fetched again.
type DamagedError struct {
	File string
	// Offset is the position in the file, in bytes.
	Offset int64
	Err    error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("spool: file %s is damaged at byte %d: %v", e.File, e.Offset, e.Err)
}

func (e *DamagedError) Unwrap() error { return e.Err }

// ReadError reports a file that could not be read. Its content may be intact.
type ReadError struct {
	File string
	Err  error
}

func (e *ReadError) Error() string { return fmt.Sprintf("spool: read back %s: %v", e.File, e.Err) }

func (e *ReadError) Unwrap() error { return e.Err }

// lost turns the error of a missing file or folder into a *DamagedError: its content is
// at the source too.
func lost(err error) error {
	gone, ok := errors.AsType[*fs.PathError](err)
	if _, known := errors.AsType[*DamagedError](err); known || !ok || !errors.Is(gone, fs.ErrNotExist) {
		return err
	}
	return &DamagedError{File: gone.Path, Err: err}
}

// remove removes a file, which may be missing.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// notAfter returns the error of an entry that is not after the previous one.
func notAfter(last, got oplog.OpTime) error {
	return fmt.Errorf("spool: entry %s came after entry %s: %w", got, last, ErrOrder)
}
