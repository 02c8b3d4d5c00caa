package initialsync

import (
	"errors"
	"slices"

	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/internal/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// isRefusal tells whether an error is about the index or view that was to be
// made, and not about the target as such, or our place in it.
func isRefusal(err error) bool {
	if _, ok := errors.AsType[*oplog.EntryError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*call.LostError](err); ok {
		return false
	}
	if _, ok := errors.AsType[*call.UnconfirmedError](err); ok {
		return false
	}
	e, ok := errors.AsType[*servererr.Error](err)
	return ok && len(e.Labels) == 0 && !slices.Contains(aboutTarget, e.Code)
}

// aboutTarget are the refusals of a server that is busy, leaving, or not
// willing to serve us; and of an operation that somebody else has ended.
var aboutTarget = []servererr.Code{
	servererr.HostUnreachable, servererr.Unauthorized, servererr.AuthenticationFailed, servererr.LockTimeout,
	servererr.NamespaceNotFound, servererr.CursorNotFound, servererr.MaxTimeMSExpired, servererr.CommandNotFound,
	servererr.WriteConcernTimeout, servererr.UnknownReplWriteConcern, servererr.NetworkTimeout, servererr.ShutdownInProgress,
	servererr.NotYetInitialized, servererr.NotSecondary, servererr.UnsatisfiableWriteConcern,
	servererr.NewReplicaSetConfigurationIncompatible, servererr.ConfigurationInProgress, servererr.WriteConflict,
	servererr.ConflictingOperationInProgress, servererr.ReadConcernMajorityNotAvailableYet, servererr.StaleTerm,
	servererr.InitialSyncActive, servererr.QueryPlanKilled, servererr.PrimarySteppedDown, servererr.NoSuchSession,
	servererr.DatabaseDropPending, servererr.SnapshotTooOld, servererr.SnapshotUnavailable, servererr.ExceededTimeLimit,
	servererr.UnsatisfiableCommitQuorum, servererr.ClientDisconnect, servererr.CurrentConfigNotCommittedYet,
	servererr.APIVersionError, servererr.APIStrictError, servererr.NotWritablePrimary, servererr.InterruptedAtShutdown,
	servererr.Interrupted, servererr.InterruptedDueToReplStateChange, servererr.BackgroundOperationInProgressForDatabase,
	servererr.BackgroundOperationInProgressForNamespace, servererr.NotPrimaryNoSecondaryOk,
	servererr.NotPrimaryOrSecondary, servererr.OutOfDiskSpace,
}

// codeOf returns the code of a refusal, 0 for any other error.
func codeOf(err error) servererr.Code {
	if e, ok := errors.AsType[*servererr.Error](err); ok {
		return e.Code
	}
	return 0
}
