package clone

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/rawbson"
	"github.com/oplogrep/replicator/internal/servererr"
	"github.com/oplogrep/replicator/oplog"
)

const (
	labelTransient = "TransientTransactionError"
	labelUnknown   = "UnknownTransactionCommitResult"

	// Codes that have no name elsewhere.
	temporarilyUnavailable      servererr.Code = 365
	transactionTooLargeForCache servererr.Code = 388
	unknownField                servererr.Code = 40415

	// longTxn is how long a transaction has lasted of which the server says that
	// it does not know it, if that is for its age.
	longTxn = 20 * time.Second
)

// verdict is what an error of a flush means.
type verdict uint8

const (
	end     verdict = iota // of the attempt
	again                  // the same flush, later
	smaller                // less at once
	upserts                // the same flush, as upserts: something is there already
)

// errThere is a document that the target has already.
var errThere = errors.New("the target has a document of that _id already")

// commitError is a failed commit. What would be worth another try before it is
// so only if the server says that the transaction is aborted.
type commitError struct{ error }

func (e *commitError) Unwrap() error { return e.error }

// agedError is a transaction that the server gave up because it took too long.
type agedError struct{ error }

func (e *agedError) Unwrap() error { return e.error }

// aged tells a transaction that was given up for its age from one that a new
// primary does not know: the server says the same of both.
func aged(err error, took time.Duration) error {
	if e, ok := errors.AsType[*servererr.Error](err); ok && e.Code == servererr.NoSuchTransaction && took >= longTxn {
		return &agedError{err}
	}
	return err
}

// judge says what to do about an error of a flush, a commit included.
func judge(err error) verdict {
	if _, lost := errors.AsType[*call.LostError](err); lost {
		return end
	}
	if _, unconfirmed := errors.AsType[*call.UnconfirmedError](err); unconfirmed {
		return end
	}
	if _, stuck := errors.AsType[*StuckError](err); stuck {
		return end
	}
	if errors.Is(err, checkpoint.ErrFenced) || errors.Is(err, checkpoint.ErrRewound) {
		return end
	}
	if errors.Is(err, errThere) {
		return upserts
	}
	if _, old := errors.AsType[*agedError](err); old {
		return smaller
	}
	refusal, ok := errors.AsType[*servererr.Error](err)
	if !ok {
		return end
	}
	v := judgeCode(refusal)
	if _, committing := errors.AsType[*commitError](err); committing {
		if slices.Contains(refusal.Labels, labelUnknown) || v == again && !slices.Contains(refusal.Labels, labelTransient) {
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
		servererr.NoSuchTransaction, servererr.NoSuchSession, servererr.TransactionTooOld, servererr.TransactionCommitted:
		// Another primary, or another holder of the lane.
		return end
	default:
		if slices.Contains(e.Labels, labelTransient) {
			return again
		}
		return end
	}
}

// refusal is what a refused statement means: errThere, a *UniqueError, or an error
// that judge knows.
func refusal(ns oplog.Namespace, e *call.WriteError, doc *document) error {
	if e.Code != servererr.DuplicateKey {
		if judgeCode(&e.Error) != end {
			return &e.Error
		}
		r := &RefusedError{NS: ns, Err: &e.Error}
		if doc != nil {
			r.ID = doc.id()
			r.ID.Value = slices.Clone(r.ID.Value)
		}
		return r
	}
	index := indexOf(e.Message)
	if index == "_id_" {
		return errThere
	}
	pattern, _ := rawbson.Lookup(e.Info, "keyPattern")
	if fields, ok := pattern.Document(); ok {
		it := rawbson.NewIter(fields)
		if it.Next() && it.Is(idField) && !it.Next() {
			return errThere
		}
	}
	key, _ := rawbson.Lookup(e.Info, "keyValue")
	value, _ := key.Document()
	return &UniqueError{NS: ns, Index: index, Key: slices.Clone(value), Err: &e.Error}
}

// indexOf finds the name of the index in the message of a duplicate key.
func indexOf(message string) string {
	_, rest, ok := strings.Cut(message, " index: ")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, " dup key")
	return name
}

// pause waits for about d.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d/2 + rand.N(d))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
