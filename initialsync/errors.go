package initialsync

import (
	"errors"

	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

// isRefusal reports whether the target refused an index or a view because of its
// definition.
func isRefusal(err error) bool {
	if _, ok := errors.AsType[*oplog.EntryError](err); ok {
		return true
	}
	// The index itself may be why a build was aborted; the build is tried once more
	// before the index is left out.
	return servererr.IsDefinitionRefused(err) || servererr.IsBuildAborted(err)
}

// isUnbuilt reports whether the target refused an index because of its definition or the copied documents, or of how many
// they are.
func isUnbuilt(err error) bool { return isRefusal(err) || servererr.IsBuildTooLarge(err) }
