package servererr

import (
	"errors"
	"slices"
	"strings"
)

// Kind is the kind of an error, whatever the command: the only thing by which layers
// decide. Each layer reacts to a kind in its own way, but only Classify determines the
// kind.
type Kind uint8

const (
	// None means: the error comes neither from a server nor from the connection to it.
	None Kind = iota
	// Isolate means: the command itself is at fault, or the code is unknown. The statement of
	// the command, or the operation of the transaction, that fails has to be found.
	Isolate
	// Transient means: no effect, and the cause passes: locks, conflicts, tickets, snapshots,
	// other commands, a server short of resources.
	Transient
	// Split means: no effect, because the command or transaction was too large, for the server
	// or for its present resources. Smaller parts may succeed, or the same later.
	Split
	// Expired means: it exceeded a time limit. A transaction had no effect; a command may have
	// had some.
	Expired
	// Ended means: something else ended it: an operator, a client that disconnected, an aborted
	// index build. A transaction had no effect; a command may have had some.
	Ended
	// NotPrimary means: the server cannot serve the command in its present state, or could not
	// reach another server.
	NotPrimary
	// Leaving means: the server is shutting down.
	Leaving
	// Session means: the session has ended, or another process uses it, or the server no longer
	// has its state.
	Session
	// Unconfirmed means: the outcome is unknown: whether a transaction is committed, or whether
	// the write concern of a write is satisfied.
	Unconfirmed
	// Cursor means: the cursor, or its position, is lost. Another one can be opened.
	Cursor
	// Full means: the server lacks resources that only an operator can add.
	Full
	// Auth means: the user lacks privileges, or is not authenticated.
	Auth
	// Unsupported means: the server does not have the command.
	Unsupported
	// Lost means: no reply arrived; whether the command was executed is unknown.
	Lost
	// Stuck means: the cause did not pass within the time limit of the retries.
	Stuck
)

// Classify returns the kind of an error: that of the outermost error in its chain that
// has a kind, such as an Error, or the outcome of a command or transaction.
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

// Passes reports whether the cause of an error of this kind can pass: such errors must
// not end a link, however often they occur.
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
		// A server that has just started has no keys to sign cluster times with.
		KeyNotFound, CannotVerifyAndSignLogicalTime, ClusterTimeFailsRateLimiter,
		// One with other keys refuses those of earlier ones, until its own time is later (LogicalTimeValidator::validate).
		TimeProofMismatch,
		ConfigurationInProgress, CurrentConfigNotCommittedYet,
	},
	Split: {
		TransactionTooLarge, TransactionTooLargeForCache, TransactionExceededLifetimeLimitSeconds, ExceededMemoryLimit,
	},
	Expired: {MaxTimeMSExpired, ExceededTimeLimit, NetworkInterfaceExceededTimeLimit},
	Ended: {
		// The server no longer knows the transaction, so it has aborted it.
		NoSuchTransaction,
		Interrupted, InterruptedDueToStorageChange, InterruptedDueToFCVChange, ClientDisconnect, ClientMarkedKilled,
		InterruptedDueToAddShard, InterruptedByTimeseriesConversion,
		CallbackCanceled, TransactionCoordinatorSteppingDown, IndexBuildAborted,
	},
	NotPrimary: {
		NotWritablePrimary, NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary, LegacyNotPrimary, PrimarySteppedDown,
		InterruptedDueToReplStateChange, NotYetInitialized, NotSecondary, InitialSyncActive, ElectionInProgress, StaleTerm,
		HostUnreachable, HostNotFound, NetworkTimeout, SocketException, TransportSessionClosed, PooledConnectionsDropped,
		FailedToSatisfyReadPreference, NewReplicaSetConfigurationIncompatible,
		// The server cannot read its users at present: in a rollback or an initial sync.
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

// kindOf is the inverse of kinds.
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

// labelKinds are the kinds of labels, for errors with an unknown code. The first label
// that an error has counts.
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

// Labels of errors.
const (
	// LabelTransient: the transaction was aborted, and may be retried as a whole.
	LabelTransient = "TransientTransactionError"
	// LabelUnknownCommit: whether the transaction was committed is unknown.
	LabelUnknownCommit = "UnknownTransactionCommitResult"
	// LabelRetryableWrite: the write may be retried under the same number.
	LabelRetryableWrite = "RetryableWriteError"
	// LabelRetryable and LabelOverloaded: the server (8.0 and later) was overloaded, and
	// did not execute the command.
	LabelRetryable  = "RetryableError"
	LabelOverloaded = "SystemOverloadedError"
	// LabelResumable: the change stream can be resumed.
	LabelResumable = "ResumableChangeStreamError"
)

// labelsOf returns the labels of an Error, nil for other errors.
func labelsOf(err error) []string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Labels
	}
	return nil
}

// ClassifyCommit is Classify for a failed commit: Unconfirmed unless the server reported
// that the transaction is aborted.
func ClassifyCommit(err error) Kind {
	k, labels := Classify(err), labelsOf(err)
	said := slices.Contains(labels, LabelTransient) && !slices.Contains(labels, LabelUnknownCommit)
	switch k {
	case Isolate:
		return Unconfirmed
	case Transient, Expired, Ended, Full:
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

// diskFaults are the messages of the system's errors that the storage engine has no code for: it reports them
// as UnknownError, "28: No space left on device" (wtRCToStatus in wiredtiger_util.cpp), as when a file is created.
var diskFaults = []string{"28: No space left on device", "30: Read-only file system", "5: Input/output error"}

// sorterFaults are the codes with which an index build, or a sort, ends that cannot open, write or flush its temporary file. Before
// 6.1 a full disk is one of their reasons, and later OutOfDiskSpace (Sorter::File in sorter.cpp).
var sorterFaults = []Code{16818, 16821, 5479100, 5642403}

// isDiskFault reports whether the server's disk is at fault, not the command.
func (e *Error) isDiskFault() bool {
	if slices.Contains(sorterFaults, e.Code) {
		return strings.Contains(e.Message, "No space left on device") || strings.Contains(e.Message, "Read-only file system")
	}
	return e.Code == UnknownError && slices.ContainsFunc(diskFaults, func(text string) bool { return strings.Contains(e.Message, text) })
}

// Kind returns the kind of the error: by its code or, if that is unknown, by its labels.
func (e *Error) Kind() Kind {
	if e.isDiskFault() {
		return Full
	}
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
