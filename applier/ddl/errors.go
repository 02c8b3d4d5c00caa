package ddl

import (
	"errors"
	"fmt"

	"github.com/oplogrep/replicator/oplog"
)

// DivergedError reports a target that differs from the log. Nothing was done.
type DivergedError struct {
	OpTime oplog.OpTime
	// Name is the command's name.
	Name string
	// NS is the target's namespace.
	NS oplog.Namespace
	// What describes the difference.
	What string
}

func (e *DivergedError) Error() string {
	return fmt.Sprintf("ddl: %s %s of %s: the target has diverged: %s", e.Name, e.NS, e.OpTime, e.What)
}

// ResyncError reports a collection whose data is neither in the log nor on the target: it
// has to be copied. Nothing was done.
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
	return fmt.Sprintf("ddl: %s of %s: %s must be copied again: %s", e.Name, e.OpTime, e.NS, e.Why)
}

// UniqueError reports a unique index that the target refuses to build. None of the
// command was executed, or only some of its indexes were built.
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

// IndexError reports an index that the target refuses to build, of a command that meets a
// copy: its documents, or its other indexes, may be newer. None of the command was
// executed, or only some of its indexes were built. [Executor.DeferBuild] continues
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

// OptionError reports a create or collMod with an option, or a value of one, that the target does not accept, as one of an older version or
// feature compatibility version. None of the command was executed.
type OptionError struct {
	OpTime oplog.OpTime
	// Name is the command's name.
	Name string
	// NS is the target's collection.
	NS oplog.Namespace
	// Err is the target's refusal.
	Err error
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("ddl: %s %s of %s: the target does not accept its options: %v", e.Name, e.NS, e.OpTime, e.Err)
}

// Unwrap returns the target's refusal.
func (e *OptionError) Unwrap() error { return e.Err }

// NameError reports an operation on a name that the target does not accept, as it has a database whose name differs in case only, or as the name is
// too long. Nothing of it was executed.
type NameError struct {
	OpTime oplog.OpTime
	// Name is the operation's name.
	Name string
	// NS is the target's collection.
	NS oplog.Namespace
	// Err is the target's refusal.
	Err error
}

func (e *NameError) Error() string {
	return fmt.Sprintf("ddl: %s %s of %s: the target does not accept such a name: %v", e.Name, e.NS, e.OpTime, e.Err)
}

// Unwrap returns the target's refusal.
func (e *NameError) Unwrap() error { return e.Err }

// hasOptions reports whether the operation is a command with options of a collection.
func (s *step) hasOptions() bool {
	return s.op.Kind == oplog.KindCommand && (s.op.Command == oplog.CommandCreate || s.op.Command == oplog.CommandCollMod)
}

func (s *step) diverged(ns oplog.Namespace, format string, args ...any) error {
	return &DivergedError{OpTime: s.op.OpTime, Name: s.name(), NS: ns, What: fmt.Sprintf(format, args...)}
}

func (s *step) resync(ns oplog.Namespace, format string, args ...any) error {
	return &ResyncError{OpTime: s.op.OpTime, Name: s.name(), NS: ns.Clone(), Why: fmt.Sprintf(format, args...)}
}

// isTyped reports whether an error itself names the operation and its namespace.
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
	if _, ok := errors.AsType[*NameError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*OptionError](err); ok {
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
