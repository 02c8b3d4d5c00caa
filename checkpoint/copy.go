package checkpoint

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/call"
	"github.com/oplogrep/replicator/oplog"
)

// CopyPhase is how far the copy of a link is.
type CopyPhase string

const (
	// Copying: documents are being copied; nothing of the log is applied.
	Copying CopyPhase = "copying"
	// Replaying: the copy is complete, the log is applied to it up to Stop.
	Replaying CopyPhase = "replaying"
	// Copied: the log was applied up to Stop, and the source was found not to
	// have rolled back meanwhile. The target is consistent.
	Copied CopyPhase = "done"
)

// Copy is the copy that a link begins with.
type Copy struct {
	// Number counts the copies of the link, from 1. One that had to be begun
	// anew has the next number; the documents of the old one are void.
	Number int64
	Phase  CopyPhase
	// Host is the member that is copied, RBID its rollback id and SyncID the
	// _id of its local.replset.initialSyncId (zero where it has none), as of the
	// beginning. If they change, the copy is void.
	Host   string
	RBID   int64
	SyncID bson.RawValue
	// FetchFrom is where reading of the log began, Begin the entry behind which
	// it is applied (beginFetching and beginApplying).
	FetchFrom, Begin oplog.OpTime
	// Stop is the newest entry of the source when everything had been copied;
	// null before that.
	Stop oplog.OpTime
	// Cleared tells that what an earlier copy, or somebody else, had left in the
	// target is gone. Listed tells that all collections to copy are in the
	// metadata.
	Cleared, Listed bool
	// Started is when this copy was begun, by our clock.
	Started time.Time
	// Why says why the copy before this one was void; empty for the first.
	Why string
}

// CollectionState is how far a collection is copied.
type CollectionState string

const (
	// CollectionPlanned: nothing is in the target.
	CollectionPlanned CollectionState = "planned"
	// CollectionCreated: it is there, without documents, and its ranges are in
	// the metadata.
	CollectionCreated CollectionState = "created"
	// CollectionFilled: all of its documents are copied.
	CollectionFilled CollectionState = "filled"
	// CollectionDone: its indexes are built as well, as far as they can be.
	CollectionDone CollectionState = "done"
)

// CopyCollection is a collection of a copy. A view, or the view side of a time
// series, is none; the buckets of a time series are.
type CopyCollection struct {
	UUID oplog.UUID
	// NS is the source's namespace of it at Copy.Begin, under which it is put
	// into the target, by way of the link's names.
	NS oplog.Namespace
	// Options are the collection's, IDIndex the spec of its index on _id (nil
	// for none), Indexes those of its other finished indexes, as the source
	// listed them.
	Options bson.Raw
	IDIndex bson.Raw
	Indexes []bson.Raw
	// Docs and Bytes are the source's estimate when it was listed.
	Docs, Bytes int64
	State       CollectionState
	// Gone tells that the source has dropped it while it was copied. The log
	// does the same to what the target has of it.
	Gone bool
	// Complete, for a capped collection that is filled: everything that was
	// inserted until then is in the copy, or was pushed out already.
	Complete bson.Timestamp
	// Failed are the indexes that could not be built.
	Failed []FailedIndex
}

// FailedIndex is an index that could not be built on the target.
type FailedIndex struct{ Name, Why string }

// CopyRange is a part of a collection that is copied in one order. It is
// identified by UUID and Index.
type CopyRange struct {
	UUID  oplog.UUID
	Index int
	// Spec is what is to be copied and At how far it is, nil for nothing yet:
	// both belong to package initialsync/clone and mean nothing here.
	Spec, At bson.Raw
	// Docs and Bytes are what is copied.
	Docs, Bytes int64
	// Steps counts the moves of At.
	Steps int64
	Done  bool
}

// BeginCopy makes c the link's copy, in place of one that is void, and moves the
// checkpoint to it: Applied is c.Begin, of wall, in milliseconds since the epoch.
// It is committed by a majority when it returns. The Hold is spent then
// (ErrSpent): Begin anew.
func (h *Hold) BeginCopy(ctx context.Context, c Copy, wall int64) error { panic("not written yet") }

// UpdateCopy writes the fields Phase, Stop, Cleared and Listed of the link's
// copy, which has to have the same Number and must not go back. A change to
// Replaying needs all ranges done and all collections CollectionDone, which is
// looked for in the same transaction (ErrRewound if the target lost some); it
// sets State.CopiedUntil to Stop. It is committed by a majority when it returns.
func (h *Hold) UpdateCopy(ctx context.Context, c Copy) error { panic("not written yet") }

// Copies returns the collections and ranges of the link's copy, in no order. What
// an older number had is left out. It reads as a majority has it.
func (h *Hold) Copies(ctx context.Context) ([]CopyCollection, []CopyRange, error) {
	panic("not written yet")
}

// DropCopies removes the documents of collections and ranges of all copies of
// the link with a number below the given one.
func (h *Hold) DropCopies(ctx context.Context, below int64) error { panic("not written yet") }

// AddCollections adds collections to the link's copy; one that is there already
// is left as it is. It is committed by a majority when it returns. Thousands at a
// time are fine.
func (h *Hold) AddCollections(ctx context.Context, list []CopyCollection) error {
	panic("not written yet")
}

// SaveCollection replaces the document of a collection of the link's copy, and
// adds ranges to it, in one transaction of the lane that is committed by a
// majority when it returns.
func (l *Lane) SaveCollection(ctx context.Context, c *CopyCollection, ranges []CopyRange) error {
	panic("not written yet")
}

// MoveRange is to be the first thing in a transaction of the lane's session: it
// finds the lane's document with our term, at its position, and the range's with
// the Steps that r has, and moves the range's to next (At, Docs, Bytes, Done;
// Steps is one more than r's). If nothing matches it finds out why: ErrFenced,
// ErrRewound, ErrUnheard. The caller takes next for r once the transaction has
// committed.
func (l *Lane) MoveRange(ctx context.Context, txn *call.Txn, r, next *CopyRange) error {
	panic("not written yet")
}
