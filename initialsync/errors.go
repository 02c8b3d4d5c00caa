package initialsync

import (
	"errors"

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
	if !ok || len(e.Labels) > 0 || e.Code == servererr.NamespaceNotFound {
		return false
	}
	// A build that was given up may have been so for the index, and is tried once
	// more before it is left out.
	return e.Kind() == servererr.Isolate || e.Code == servererr.IndexBuildAborted
}

// codeOf returns the code of a refusal, 0 for any other error.
func codeOf(err error) servererr.Code {
	if e, ok := errors.AsType[*servererr.Error](err); ok {
		return e.Code
	}
	return 0
}
