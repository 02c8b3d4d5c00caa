package servererr_test

import (
	"testing"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// TestIsViewRefused: only what a view is itself the reason of is left out.
func TestIsViewRefused(t *testing.T) {
	t.Parallel()
	for code, want := range map[servererr.Code]bool{
		40324: true, servererr.BadValue: true, servererr.FailedToParse: true, // a stage, or an operator, that the server does not have
		servererr.InternalError: false, servererr.UnknownError: false, servererr.OperationFailed: false, 13297: false,
		servererr.GraphContainsCycle: false, servererr.OptionNotSupportedOnView: false, servererr.ViewDepthLimitExceeded: false,
		servererr.InvalidViewDefinition: false, servererr.NamespaceExists: false, servererr.NamespaceNotFound: false,
		servererr.UserWritesBlocked: false, servererr.Unauthorized: false, servererr.OutOfDiskSpace: false, servererr.NotWritablePrimary: false,
	} {
		if got := servererr.IsViewRefused(servererr.New(code, "no")); got != want {
			t.Errorf("%d: %v", code, got)
		}
	}
}

// TestIsIndexUnbuildable: a cutover passes over an index only if the index itself is the reason.
func TestIsIndexUnbuildable(t *testing.T) {
	t.Parallel()
	for code, want := range map[servererr.Code]bool{
		servererr.CannotCreateIndex: true, servererr.InvalidOptions: true,
		servererr.InternalError: false, servererr.UnknownError: false, servererr.OperationFailed: false,
		servererr.IndexOptionsConflict: false, servererr.NamespaceNotFound: false, servererr.Unauthorized: false, servererr.NotWritablePrimary: false,
	} {
		if got := servererr.IsIndexUnbuildable(servererr.New(code, "no")); got != want {
			t.Errorf("%d: %v", code, got)
		}
	}
}

// TestIsIndexRefused: a server that refuses every index, as it has no commit quorums, does not refuse any for what it is.
func TestIsIndexRefused(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]bool{
		"The field 'bits' must be a number":                                              true,
		"commitQuorum is supported only for two phase index builds with majority commit": false,
	} {
		if got := servererr.IsIndexRefused(servererr.New(servererr.BadValue, "%s", message)); got != want {
			t.Errorf("%s: %v", message, got)
		}
	}
}
