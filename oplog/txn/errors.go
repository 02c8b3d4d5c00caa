package txn

import (
	"errors"
	"fmt"

	"github.com/oplogrep/replicator/oplog"
)

// What stops an Assembler or a Transaction, to be tested with errors.Is.
var (
	// ErrOutOfOrder is an entry that does not come after the one before it: its
	// timestamp does not ascend, or its term goes back.
	ErrOutOfOrder = errors.New("out of order")
	// ErrClosed is the use of an Assembler or a Transaction after Close.
	ErrClosed = errors.New("closed")
	// ErrSpillCorrupt is a spill file that does not hold what was written to it.
	ErrSpillCorrupt = errors.New("the file does not hold what was written to it")
)

// BrokenChainError is an entry that continues one that was not added, or that
// is no longer the end of an open chain. Reading has to begin earlier, at the
// chain's first entry; where the log no longer has it, the data has to be copied
// anew.
type BrokenChainError struct {
	// OpTime is the entry's.
	OpTime oplog.OpTime
	// Prev is the entry that it continues.
	Prev oplog.OpTime
}

func (e *BrokenChainError) Error() string {
	return fmt.Sprintf("assemble the transaction of entry %s: it continues %s, which no open transaction ends with; "+
		"read the log from before that transaction's first entry", e.OpTime, e.Prev)
}

// ResumeError is a log without the entry Config.ApplyAfter: it goes on after it
// without having it, or begins there, or its terms tell that it cannot follow.
// The source's history is not the one that was applied, or the log was cut.
type ResumeError struct {
	// Want is Config.ApplyAfter.
	Want oplog.OpTime
	// Got is the entry that shows it.
	Got oplog.OpTime
}

func (e *ResumeError) Error() string {
	return fmt.Sprintf("resume after entry %s: the log comes to %s without it, so its history diverged from what was applied, or was cut; "+
		"read from a source that has the entry, or copy the data anew", e.Want, e.Got)
}

// SpillError is a fault of a file that keeps a chain's parts.
type SpillError struct {
	// Path is the file's name, which may have been removed already.
	Path string
	// OpTime is the chain's first entry.
	OpTime oplog.OpTime
	// Err is the fault, ErrSpillCorrupt or what the operating system said.
	Err error
	// Writing tells keeping a part from reading it back.
	Writing bool
}

func (e *SpillError) Error() string {
	if e.Writing {
		return fmt.Sprintf("keep the transaction that starts at %s in %s: %v; "+
			"make room there, name another directory for spilled transactions, or allow more memory for them",
			e.OpTime, e.Path, e.Err)
	}
	return fmt.Sprintf("read back the transaction that starts at %s from %s: %v", e.OpTime, e.Path, e.Err)
}

func (e *SpillError) Unwrap() error { return e.Err }

// bad is an entry that a server would not write.
func bad(e *oplog.Entry, field, format string, args ...any) error {
	return e.Fault(field, fmt.Errorf("%w: %s", oplog.ErrBadField, fmt.Sprintf(format, args...)))
}
