package txn

import (
	"errors"
	"fmt"

	"github.com/oplogrep/replicator/oplog"
)

// Errors of an Assembler or a Transaction, for errors.Is.
var (
	// ErrOutOfOrder is an entry that does not follow the previous one: its timestamp
	// does not ascend, or its term is lower.
	ErrOutOfOrder = errors.New("out of order")
	// ErrClosed is the use of an Assembler or a Transaction after Close.
	ErrClosed = errors.New("closed")
	// ErrSpillCorrupt is a spill file with other contents than were written to it.
	ErrSpillCorrupt = errors.New("the file does not contain the data written to it")
)

// BrokenChainError is an entry that continues one that was not added, or that is no
// longer the end of an open chain. Reading has to start earlier, at the chain's
// first entry; if the log no longer has it, the data has to be copied again.
type BrokenChainError struct {
	// OpTime is the entry's optime.
	OpTime oplog.OpTime
	// Prev is the entry that it continues.
	Prev oplog.OpTime
}

func (e *BrokenChainError) Error() string {
	return fmt.Sprintf("assemble the transaction of entry %s: it continues %s, which no open transaction ends with; "+
		"read the log from before that transaction's first entry", e.OpTime, e.Prev)
}

// ResumeError is an oplog without the entry Config.ApplyAfter: it skips it, starts
// after it, or has an entry whose term rules it out. The source has another history
// than the one that was applied, or the oplog was truncated.
type ResumeError struct {
	// Want is Config.ApplyAfter.
	Want oplog.OpTime
	// Got is the entry that shows it.
	Got oplog.OpTime
}

func (e *ResumeError) Error() string {
	return fmt.Sprintf("resume after entry %s: the oplog continues with %s without it, so its history diverged from the applied one, or was truncated; "+
		"read from a source that has the entry, or copy the data again", e.Want, e.Got)
}

// SpillError is a fault of a file that holds a chain's parts.
type SpillError struct {
	// Path is the file's name, which may have been removed already.
	Path string
	// OpTime is the chain's first entry.
	OpTime oplog.OpTime
	// Err is the fault: ErrSpillCorrupt or an error of the operating system.
	Err error
	// Writing distinguishes writing a part from reading it back.
	Writing bool
}

func (e *SpillError) Error() string {
	if e.Writing {
		return fmt.Sprintf("keep the transaction that starts at %s in %s: %v; "+
			"make room there, or give --spill-dir a disk with more room",
			e.OpTime, e.Path, e.Err)
	}
	return fmt.Sprintf("read back the transaction that starts at %s from %s: %v", e.OpTime, e.Path, e.Err)
}

func (e *SpillError) Unwrap() error { return e.Err }

// bad returns the error for an entry that a server would not write.
func bad(e *oplog.Entry, field, format string, args ...any) error {
	return e.Fault(field, fmt.Errorf("%w: %s", oplog.ErrBadField, fmt.Sprintf(format, args...)))
}
