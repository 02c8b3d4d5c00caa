package applier

import (
	"errors"
	"slices"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/servererr"
)

const (
	labelTransient = "TransientTransactionError"
	labelUnknown   = "UnknownTransactionCommitResult"

	// Codes of newer servers.
	temporarilyUnavailable      servererr.Code = 365
	transactionTooLargeForCache servererr.Code = 388
	socketException             servererr.Code = 9001
)

// verdict is what an error of a flush means.
type verdict uint8

const (
	end     verdict = iota // of the attempt
	again                  // the same flush, later
	smaller                // less at once
	single                 // one operation is at fault
)

// commitError is a failed commit. What would be worth another try before it is
// so only if the server says that the transaction is aborted.
type commitError struct{ error }

func (e *commitError) Unwrap() error { return e.error }

// agedError is a transaction that the server gave up because it took too long.
type agedError struct{ error }

func (e *agedError) Unwrap() error { return e.error }

// aged tells a transaction that was given up for its age from one that a new
// primary does not know: the server says the same of both. If it was the other
// the next transaction finds out.
func aged(err error, took time.Duration) error {
	if e, ok := asServerError(err); ok && e.Code == servererr.NoSuchTransaction && took >= longTxn {
		return &agedError{err}
	}
	return err
}

func asServerError(err error) (*servererr.Error, bool) {
	return errors.AsType[*servererr.Error](err)
}

// isStop tells whether an error is about one operation, and final.
func isStop(err error) bool {
	_, diverged := errors.AsType[*DivergenceError](err)
	_, unique := errors.AsType[*UniqueError](err)
	_, refused := errors.AsType[*OpError](err)
	_, stuck := errors.AsType[*StuckError](err)
	return diverged || unique || refused || stuck
}

// judge says what to do about an error of a flush, a commit included.
func judge(err error) verdict {
	if _, lost := errors.AsType[*call.LostError](err); lost {
		return end
	}
	if _, unconfirmed := errors.AsType[*call.UnconfirmedError](err); unconfirmed {
		return end
	}
	if errors.Is(err, checkpoint.ErrFenced) || errors.Is(err, checkpoint.ErrRewound) || isStop(err) {
		return end
	}
	if _, short := errors.AsType[*shortError](err); short {
		return single
	}
	if _, old := errors.AsType[*agedError](err); old {
		return smaller
	}
	refusal, ok := asServerError(err)
	if !ok {
		return end
	}
	v := judgeCode(refusal)
	if _, committing := errors.AsType[*commitError](err); committing {
		switch {
		case slices.Contains(refusal.Labels, labelUnknown):
			return end
		case v == single, v == again && !slices.Contains(refusal.Labels, labelTransient):
			// Whether it is aborted has not been said.
			return end
		}
	}
	return v
}

func judgeCode(e *servererr.Error) verdict {
	switch e.Code {
	case servererr.WriteConflict, servererr.LockTimeout, servererr.SnapshotUnavailable, servererr.SnapshotTooOld,
		servererr.ExceededTimeLimit, servererr.MaxTimeMSExpired, servererr.PreparedTransactionInProgress,
		servererr.ConflictingOperationInProgress, servererr.BackgroundOperationInProgressForDatabase,
		servererr.BackgroundOperationInProgressForNamespace, temporarilyUnavailable:
		return again
	case servererr.TransactionTooLarge, servererr.TransactionExceededLifetimeLimitSeconds, transactionTooLargeForCache,
		servererr.ExceededMemoryLimit:
		return smaller
	case servererr.NotWritablePrimary, servererr.NotPrimaryNoSecondaryOk, servererr.NotPrimaryOrSecondary,
		servererr.PrimarySteppedDown, servererr.InterruptedDueToReplStateChange, servererr.InterruptedAtShutdown,
		servererr.Interrupted, servererr.ShutdownInProgress, servererr.HostUnreachable, servererr.NetworkTimeout,
		servererr.NotYetInitialized, servererr.NotSecondary, socketException,
		servererr.NoSuchTransaction, servererr.NoSuchSession, servererr.TransactionTooOld, servererr.TransactionCommitted,
		servererr.Unauthorized, servererr.AuthenticationFailed, servererr.UserNotFound,
		servererr.OutOfDiskSpace, servererr.CommandNotFound, servererr.ClientDisconnect,
		servererr.UnsatisfiableWriteConcern, servererr.UnknownReplWriteConcern, servererr.WriteConcernTimeout:
		return end
	default:
		if slices.Contains(e.Labels, labelTransient) {
			return again
		}
		return single
	}
}
