package ddl

import (
	"errors"
	"fmt"

	"github.com/oplogrep/replicator/oplog"
)

// DivergedError is a target that is not what was left there. Nothing was done.
type DivergedError struct {
	OpTime oplog.OpTime
	// Name is the command's name.
	Name string
	// NS is the target's namespace.
	NS oplog.Namespace
	// What is wrong with it.
	What string
}

func (e *DivergedError) Error() string {
	return fmt.Sprintf("ddl: %s %s of %s: the target has diverged: %s", e.Name, e.NS, e.OpTime, e.What)
}

// ResyncError is a collection whose data is not in the log and not on the
// target: it has to be copied. Nothing was done.
type ResyncError struct {
	OpTime oplog.OpTime
	// Name is the command's name.
	Name string
	// NS is the source's namespace.
	NS oplog.Namespace
	// Why the log is not enough.
	Why string
}

func (e *ResyncError) Error() string {
	return fmt.Sprintf("ddl: %s of %s: %s has to be copied anew: %s", e.Name, e.OpTime, e.NS, e.Why)
}

// UniqueError is a unique index that the target refuses to build. Nothing of the
// command was done, or some of its indexes.
type UniqueError struct {
	OpTime oplog.OpTime
	// NS is the target's collection, Index the index's name.
	NS    oplog.Namespace
	Index string
	// Err is the target's refusal.
	Err error
}

func (e *UniqueError) Error() string {
	return fmt.Sprintf("ddl: build the unique index %s of %s of %s: %v", e.Index, e.NS, e.OpTime, e.Err)
}

// Unwrap returns the target's refusal.
func (e *UniqueError) Unwrap() error { return e.Err }

// IndexError is an index that the target refuses to build, of a command that meets
// a copy: its documents, or its other indexes, may be of a later time. Nothing of
// the command was done, or some of its indexes. [Executor.HoldIndex] goes on
// without the index.
type IndexError struct {
	OpTime oplog.OpTime
	// NS is the target's collection, Index the index's name.
	NS    oplog.Namespace
	Index string
	// Err is the target's refusal.
	Err error
}

func (e *IndexError) Error() string {
	return fmt.Sprintf("ddl: build the index %s of %s of %s: %v", e.Index, e.NS, e.OpTime, e.Err)
}

// Unwrap returns the target's refusal.
func (e *IndexError) Unwrap() error { return e.Err }

func (s *step) diverged(ns oplog.Namespace, format string, args ...any) error {
	return &DivergedError{OpTime: s.op.OpTime, Name: s.name(), NS: ns, What: fmt.Sprintf(format, args...)}
}

func (s *step) resync(ns oplog.Namespace, format string, args ...any) error {
	return &ResyncError{OpTime: s.op.OpTime, Name: s.name(), NS: ns.Clone(), Why: fmt.Sprintf(format, args...)}
}

// isTyped reports whether an error says by itself what was attempted on what.
func isTyped(err error) bool {
	if _, ok := errors.AsType[*DivergedError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*ResyncError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*UniqueError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*LateError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*IndexError](err); ok {
		return true
	}
	_, ok := errors.AsType[*oplog.EntryError](err)
	return ok
}
