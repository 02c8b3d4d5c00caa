package fetcher

import (
	"errors"
	"fmt"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
)

var (
	// ErrSourceBehind is a member that does not show the entry to start from yet.
	// Another one can be read, or this one later.
	ErrSourceBehind = errors.New("the member is behind")
	// ErrTooStale is a member that no longer has the entry to start from.
	ErrTooStale = errors.New("too stale to read from the member")
	// ErrStartMissing is a member with a history that the entry to start from is
	// not part of: one of the two was rolled back.
	ErrStartMissing = errors.New("the entry to start from is not in the member's oplog")
	// ErrOutOfOrder is an oplog whose entries do not ascend.
	ErrOutOfOrder = errors.New("the oplog is out of order")
	// ErrRolledBack is a member that was rolled back while it was read.
	ErrRolledBack = errors.New("the member was rolled back")
	// ErrMetadata is a reply that does not tell of the member.
	ErrMetadata = errors.New("malformed metadata in the reply")
	// ErrForeignSet is a member of another replica set than the one followed.
	ErrForeignSet = errors.New("the member is of another replica set")
)

// TooStaleError is an [ErrTooStale].
type TooStaleError struct {
	// Want is the entry to start from, Oldest the oldest one that there is.
	Want, Oldest oplog.OpTime
}

func (e *TooStaleError) Error() string {
	return fmt.Sprintf("%v: its oldest entry is %s, the link needs %s", ErrTooStale, e.Oldest, e.Want)
}

// Is reports whether target is ErrTooStale.
func (e *TooStaleError) Is(target error) bool { return target == ErrTooStale }

// StartMissingError is an [ErrStartMissing].
type StartMissingError struct {
	// Want is the entry to start from, Got the entry in its place or after it, null
	// if there is none.
	Want, Got oplog.OpTime
}

func (e *StartMissingError) Error() string {
	if e.Got.IsNull() {
		return fmt.Sprintf("%v: %s is missing, and no later entry exists", ErrStartMissing, e.Want)
	}
	return fmt.Sprintf("%v: %s is missing, found %s", ErrStartMissing, e.Want, e.Got)
}

// Is reports whether target is ErrStartMissing.
func (e *StartMissingError) Is(target error) bool { return target == ErrStartMissing }

// restartable reports whether opening the cursor again may help: after an error of the
// server or the network, but not after a check that failed here.
func restartable(err error) bool {
	switch servererr.Classify(err) {
	case servererr.None:
		return errors.Is(err, ErrRolledBack)
	case servererr.Leaving, servererr.Auth:
		// It is going away, or asking again does not help.
		return isLost(err)
	default:
		return true
	}
}

// isLost reports whether no reply came.
func isLost(err error) bool {
	_, lost := errors.AsType[*mongo.LostError](err)
	return lost
}
