package servererr

import "slices"

// Kind is what a refusal says, whatever was asked: the one thing that layers decide
// by. What each of them does about a kind is its own; which kind a code is, is said
// here and nowhere else.
type Kind uint8

const (
	// Isolate says that what was asked is at fault, or the code is not known here. One
	// statement of a command, or one operation of a transaction, has to be found.
	Isolate Kind = iota
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
	// that was given up. Of a command something may have been done.
	Ended
	// NotPrimary says that the server does not serve what was asked, not any more or not yet,
	// or could not reach another one.
	NotPrimary
	// Leaving says that the server is shutting down.
	Leaving
	// Session says that the transaction or session is over, or is another's, or what became
	// of it is not known any more.
	Session
	// Unconfirmed says that it is not known to be where the write concern wants it.
	Unconfirmed
	// Cursor says that the cursor, or its place, is gone. Another one can be opened.
	Cursor
	// Full says that the server has run out of what only an operator can give it.
	Full
	// Auth says that our rights do not allow it, or it is not known who we are.
	Auth
	// Unsupported says that the server does not have that command.
	Unsupported
)

// String returns the kind's name.
func (k Kind) String() string {
	return [...]string{
		"isolate", "transient", "split", "expired", "ended", "not primary", "leaving", "session", "unconfirmed", "cursor", "full", "auth", "unsupported",
	}[k]
}

// Passes reports whether a refusal of the kind is one that passes: it must not end
// a link, however often it is met.
func (k Kind) Passes() bool {
	switch k {
	case Isolate, Auth, Unsupported:
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
		NoSuchTransaction, NoSuchSession, TransactionTooOld, TransactionCommitted, IncompleteTransactionHistory,
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
func (c Code) Kind() Kind { return kindOf[c] }

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
