// Package origin is what the copy of a source has to know of the member that it
// is made from: where the log has to be read and applied from, and whether the
// member is still what it was.
package origin

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/oplog"
)

// Identity is what a member must keep while it is copied.
type Identity struct {
	Host string
	// RBID is the member's rollback id.
	RBID int64
	// SyncID is the _id of its local.replset.initialSyncId, zero for none.
	SyncID bson.RawValue
}

// Positions are where the log meets the copy.
type Positions struct {
	// FetchFrom is where reading begins: the oldest transaction that was open, or
	// the newest entry before that was asked. Begin is the newest entry after,
	// behind which the log is applied; Wall is its primary's clock, in
	// milliseconds since the epoch. FetchFrom <= Begin.
	FetchFrom, Begin oplog.OpTime
	Wall             int64
}

// Identify asks a member, which has to be primary or secondary, for its identity.
func Identify(ctx context.Context, member call.Caller, host string) (Identity, error) {
	panic("not written yet")
}

// Begin finds where the log is to be read and applied from, in the order of the
// server's own initial sync (newest entry, oldest open transaction, newest entry,
// a read that waits for all entries before it, which is of the document with the
// feature compatibility version). A version that is being changed is a
// *FCVError, as is none at all. A member that does not know the entry as committed
// by a majority yet is waited for.
func Begin(ctx context.Context, member call.Caller) (Positions, error) { panic("not written yet") }

// Stop returns the member's newest entry: everything that was read from it
// before is not later than that. One before begin is a *ChangedError.
func Stop(ctx context.Context, member call.Caller, begin oplog.OpTime) (oplog.OpTime, error) {
	panic("not written yet")
}

// Check asks the member again and returns a *ChangedError if it is not what it
// was.
func Check(ctx context.Context, member call.Caller, was Identity) error { panic("not written yet") }

// ChangedError is a member that is not what it was: it rolled back, was copied
// anew, or is another one.
type ChangedError struct {
	Host string
	What string
}

func (e *ChangedError) Error() string {
	return "the member " + e.Host + " is not what it was when the copy began: " + e.What
}

// FCVError is a source whose feature compatibility version cannot be relied on.
type FCVError struct{ What string }

func (e *FCVError) Error() string {
	return "the source's feature compatibility version: " + e.What
}
