package cli

import (
	"context"
	"errors"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// The exit codes that commands name themselves, as in docs/exit-codes.md. They are
// fixed. The rest, from 5 on, is determined by package pipeline.
const (
	ExitOK         = 0
	ExitUnexpected = failure.ExitUnexpected
	ExitUsage      = 2
	ExitBadInput   = 3
	ExitFailed     = 4
	ExitConnect    = failure.ExitConnect
	ExitCheck      = failure.ExitCheck
)

// Error is an error of a command with its exit code.
type Error struct {
	Err  error
	Code int
	// Hint tells the operator what to do. With ExitUsage it may be empty: the
	// message then refers to the command's help.
	Hint string
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped error.
func (e *Error) Unwrap() error { return e.Err }

// Usage marks the error of a command line that parses but is invalid.
func Usage(err error) error {
	return &Error{Err: err, Code: ExitUsage, Hint: "Run it with --help for how to use it."}
}

// Stopped marks err, if ctx is done, as the error of interrupted work. It leaves
// nil and an *Error as they are.
func Stopped(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && !is[*Error](err) {
		return &Error{Err: err, Code: ExitUnexpected, Hint: "It was stopped before it was done; nothing of it remains."}
	}
	return err
}

// connectError is the error of a deployment that cannot be resolved.
type connectError struct{ error }

// Connect marks the error of a deployment that cannot be connected to. A more
// specific error, as of a failed login, takes precedence.
func Connect(err error) error { return connectError{err} }

// loggedError is an error that has been logged.
type loggedError struct{ error }

// Logged marks an error that has been logged: the program exits with its code,
// without a message.
func Logged(err error) error { return loggedError{err} }

func (e connectError) Unwrap() error { return e.error }
func (e loggedError) Unwrap() error  { return e.error }

// Explain returns the exit code of an error and a hint for the operator: those of
// the error itself, those of package pipeline for errors of servers and links, or
// that a server cannot be reached.
func Explain(err error) (code int, hint string) {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code, e.Hint
	}
	v := failure.Classify(err)
	if v.Code != ExitUnexpected && v.Code != ExitOK {
		return v.Code, v.Hint
	}
	if e, ok := errors.AsType[*driver.NoServerError](err); ok && (e.Misnamed() || e.Other != "") {
		return ExitConnect, misnamed(e)
	}
	// A running link retries these; elsewhere they end the work.
	if is[connectError](err) || is[*driver.NoServerError](err) || is[*mongo.LostError](err) || is[*mongo.SilentError](err) || errors.Is(err, context.DeadlineExceeded) {
		return ExitConnect, "Check the addresses, that the servers run and can be reached from here, and TLS. --selection-timeout, or serverSelectionTimeoutMS in the connection string, sets how long to wait."
	}
	return ExitUnexpected, "If the message makes no sense, report it."
}

// misnamed is the hint if no host belongs to the set that the connection string names, or one of them says so while others may belong to it.
func misnamed(e *driver.NoServerError) string {
	hint := "The connection string asks for the replica set " + e.Set + " (replicaSet=" + e.Set + ")"
	if !e.Misnamed() {
		return hint + ", and a host says that its own is " + e.Other + ": correct the name, or the hosts. If the name is right, check the other hosts: that they run and can be reached from here, and TLS."
	}
	if e.Other != "" {
		return hint + ", and the hosts say that theirs is " + e.Other + ": correct the name, or the hosts."
	}
	return hint + ": correct the name, which rs.status().set shows, or the hosts. A mongos, or a standalone server, has none: leave replicaSet out."
}

func is[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}
