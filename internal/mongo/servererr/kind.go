package servererr

import (
	"errors"
	"slices"
)

// Kind is what an error of a command says, whatever was asked: the one thing that layers
// decide by. What each of them does about a kind is its own; which kind an error is, is
// said by Classify and nowhere else.
type Kind uint8

const (
	// None says that the error is no word of a server, nor of the way to it.
	None Kind = iota
	// Isolate says that what was asked is at fault, or the code is not known here. One
	// statement of a command, or one operation of a transaction, has to be found.
	Isolate
	// Transient says that nothing was done, and what is in the way goes by itself: locks,
	// conflicts, tickets, snapshots, other commands, a server short of something.
	Transient
	// Split says that nothing was done, as it was too much at once, for the server or for
	// what it had room for just then. Less of it may be done, or the same later.
	Split
	// Expired says that it took longer than it was allowed to. Of a transaction nothing was
	// done; of a command something may have been.
	Expired
	// Ended says that somebody has ended it: an operator, a client that went away, a build
	// that was given up. Of a transaction nothing was done; of a command something may
	// have been.
	Ended
	// NotPrimary says that the server does not serve what was asked, not any more or not yet,
	// or could not reach another one.
	NotPrimary
	// Leaving says that the server is shutting down.
	Leaving
	// Session says that the session has ended, or is another's, or that it is not known any
	// more what was done in it.
	Session
	// Unconfirmed says that the outcome is not known: whether a transaction is committed,
	// or a write is where the write concern wants it.
	Unconfirmed
	// Cursor says that the cursor, or its place, is gone. Another one can be opened.
	Cursor
	// Full says that the server has run out of what only an operator can give it.
	Full
	// Auth says that our rights do not allow it, or it is not known who we are.
	Auth
	// Unsupported says that the server does not have that command.
	Unsupported
	// Lost says that no answer came: whether it was done is not known.
	Lost
	// Stuck says that it was tried for as long as it may be, and what was in the way has
	// not gone.
	Stuck
)

// Kinds are all kinds but None.
func Kinds() []Kind {
	all := make([]Kind, 0, Stuck)
	for k := Isolate; k <= Stuck; k++ {
		all = append(all, k)
	}
	return all
}

// Classify returns what an error says: that of the outermost error in it which has a
// kind, a refusal by a server or what became of a command or transaction otherwise.
func Classify(err error) Kind {
	if e, ok := errors.AsType[interface {
		error
		Kind() Kind
	}](err); ok {
		return e.Kind()
	}
	return None
}

// String returns the kind's name.
func (k Kind) String() string {
	return [...]string{
		"none", "isolate", "transient", "split", "expired", "ended", "not primary", "leaving", "session",
		"outcome unknown", "cursor", "full", "auth", "unsupported", "no answer", "stuck",
	}[k]
}

// Passes reports whether an error of the kind is one that passes: it must not end
// a link, however often it is met.
func (k Kind) Passes() bool {
	switch k {
	case None, Isolate, Auth, Unsupported:
		return false
	default:
		return true
	}
}

// kinds lists the codes of each kind; all others are Isolate.
var kinds = map[Kind][]Code{
	Transient: {
		LockTimeout, LockBusy, LockFailed, TooManyLocks, WriteConflict, PreparedTransactionInProgress,
		SnapshotUnavailable, SnapshotTooOld, ReadConcernMajorityNotAvailableYet, QueryPlanKilled,
		ConflictingOperationInProgress, BackgroundOperationInProgressForDatabase, BackgroundOperationInProgressForNamespace,
		IndexBuildAlreadyInProgress, DatabaseDropPending, RetryableTransactionInProgress, ObjectIsBusy,
		TemporarilyUnavailable, TooManyLogicalSessions, UserWritesBlocked,
		ResourceExhausted, AdmissionQueueOverflow, RateLimitExceeded, PooledConnectionAcquisitionRejected, IngressRequestRateLimitExceeded,
		// A server that was started a moment ago has no keys to sign cluster times with.
		KeyNotFound, CannotVerifyAndSignLogicalTime, ClusterTimeFailsRateLimiter,
		ConfigurationInProgress, CurrentConfigNotCommittedYet,
	},
	Split: {
		TransactionTooLarge, TransactionTooLargeForCache, TransactionExceededLifetimeLimitSeconds, ExceededMemoryLimit,
	},
	Expired: {MaxTimeMSExpired, ExceededTimeLimit, NetworkInterfaceExceededTimeLimit},
	Ended: {
		// A transaction that its server does not know any more was ended there.
		NoSuchTransaction,
		Interrupted, InterruptedDueToStorageChange, InterruptedDueToFCVChange, ClientDisconnect, ClientMarkedKilled,
		CallbackCanceled, TransactionCoordinatorSteppingDown, IndexBuildAborted,
	},
	NotPrimary: {
		NotWritablePrimary, NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary, LegacyNotPrimary, PrimarySteppedDown,
		InterruptedDueToReplStateChange, NotYetInitialized, NotSecondary, InitialSyncActive, ElectionInProgress, StaleTerm,
		HostUnreachable, HostNotFound, NetworkTimeout, SocketException, TransportSessionClosed, PooledConnectionsDropped,
		FailedToSatisfyReadPreference, NewReplicaSetConfigurationIncompatible,
		// A server that cannot read its users just now: in a rollback, or a first copy.
		UserNotFound,
	},
	Leaving: {ShutdownInProgress, InterruptedAtShutdown},
	Session: {
		NoSuchSession, TransactionTooOld, TransactionCommitted, IncompleteTransactionHistory,
	},
	Unconfirmed: {WriteConcernTimeout, UnsatisfiableWriteConcern, UnknownReplWriteConcern, UnsatisfiableCommitQuorum},
	Cursor:      {CursorNotFound, CursorKilled, CursorInUse, CappedPositionLost},
	Full:        {OutOfDiskSpace, TooManyFilesOpen},
	Auth:        {Unauthorized, AuthenticationFailed},
	Unsupported: {CommandNotFound, CommandNotSupported, APIVersionError, APIStrictError},
}

// kindOf is kinds, by code.
var kindOf = func() map[Code]Kind {
	all := map[Code]Kind{}
	for k, codes := range kinds {
		for _, c := range codes {
			all[c] = k
		}
	}
	return all
}()

// Kind returns the kind of a code.
func (c Code) Kind() Kind {
	if k, known := kindOf[c]; known {
		return k
	}
	return Isolate
}

// Codes returns all codes that have a name, in order.
func Codes() []Code {
	all := make([]Code, 0, len(names))
	for c := range names {
		all = append(all, c)
	}
	slices.Sort(all)
	return all
}

// labelKinds are what labels say of a code that is not known here, the first that
// is there counts.
var labelKinds = []struct {
	label string
	kind  Kind
}{
	{LabelUnknownCommit, Session},
	{LabelTransient, Transient},
	{LabelOverloaded, Transient},
	{LabelRetryableWrite, NotPrimary},
	{LabelRetryable, Transient},
	{LabelResumable, Cursor},
}

// Labels with which a server says more of a refusal than its code does.
const (
	// LabelTransient: the transaction is aborted, and may be tried again as a whole.
	LabelTransient = "TransientTransactionError"
	// LabelUnknownCommit: whether the transaction was committed is not known.
	LabelUnknownCommit = "UnknownTransactionCommitResult"
	// LabelRetryableWrite: the same write, under the same number, may be sent again.
	LabelRetryableWrite = "RetryableWriteError"
	// LabelRetryable and LabelOverloaded: the server (8.0 and later) had no room for
	// the command, and did nothing.
	LabelRetryable  = "RetryableError"
	LabelOverloaded = "SystemOverloadedError"
	// LabelResumable: the change stream can be opened again where it was.
	LabelResumable = "ResumableChangeStreamError"
)

// labelsOf returns the labels of a refusal, nil of any other error.
func labelsOf(err error) []string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Labels
	}
	return nil
}

// ClassifyCommit is Classify for the commit of a transaction that failed: Unconfirmed
// where the server has not said that the transaction is aborted.
func ClassifyCommit(err error) Kind {
	k, labels := Classify(err), labelsOf(err)
	said := slices.Contains(labels, LabelTransient) && !slices.Contains(labels, LabelUnknownCommit)
	switch k {
	case Isolate:
		return Unconfirmed
	case Transient, Expired, Ended:
		if !said {
			return Unconfirmed
		}
	default:
		if slices.Contains(labels, LabelUnknownCommit) {
			return Unconfirmed
		}
	}
	return k
}

// Kind returns what the refusal says: by its code, and where that says nothing by
// its labels.
func (e *Error) Kind() Kind {
	if k := e.Code.Kind(); k != Isolate || len(e.Labels) == 0 {
		return k
	}
	for _, l := range labelKinds {
		if slices.Contains(e.Labels, l.label) {
			return l.kind
		}
	}
	return Isolate
}
