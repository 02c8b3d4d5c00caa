package inventory

import (
	"errors"
	"fmt"

	"github.com/oplogrep/replicator/oplog"
)

var (
	errNoUUID = errors.New("it is listed without a UUID")
	errNested = errors.New("groups of operations in each other, deeper than a server writes them")
)

// DuplicateError reports two collections with the same name at Begin. Then the oplog
// and the lists are not of one source.
type DuplicateError struct {
	NS oplog.Namespace
	// UUIDs are theirs, Listed the names that they are listed with.
	UUIDs  [2]oplog.UUID
	Listed [2]oplog.Namespace
}

func (e *DuplicateError) Error() string {
	return fmt.Sprintf("two collections were called %s when the copy began: %s, now %s, and %s, now %s",
		e.NS, e.UUIDs[0], e.Listed[0], e.UUIDs[1], e.Listed[1])
}
