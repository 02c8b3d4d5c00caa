package replset

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// Start is where a link begins: it reads the oplog from FetchFrom, and applies the
// entries after Begin. Invariant: FetchFrom <= Begin.
type Start struct {
	// FetchFrom is the server's beginFetchingTimestamp, Begin its
	// beginApplyingTimestamp.
	FetchFrom, Begin oplog.OpTime
	// Wall is the wall time of Begin, in milliseconds since the epoch.
	Wall int64
}

// WentBackError reports that the newest entry of the source is older than before: the
// source rolled back, or another member answered.
type WentBackError struct{ Was, Is oplog.OpTime }

func (e *WentBackError) Error() string {
	return fmt.Sprintf("its newest entry was %s, then %s", e.Was, e.Is)
}

// FindStart returns the start of a link that begins now. The steps are those of the
// server's own initial sync:
//
//	1   newest entry                       (a)
//	2   oldest transaction that is open    (b)
//	3   newest entry                       Begin
//
// and FetchFrom = min(a, b). A transaction that commits after Begin either began after
// (a), or was open at step 1. In the second case it is still open at step 2, because
// otherwise it ended before Begin; so it did not begin before (b). Either way all of its
// entries are at or after FetchFrom.
//
// If Begin is older than (a), the entries between them would be lost: FindStart returns a
// *WentBackError. With Local, there may still be oplog holes before Begin, and Begin may
// roll back: the caller has to wait until neither is possible.
func FindStart(ctx context.Context, member mongo.Caller, level Level) (Start, error) {
	first, err := NewestEntry(ctx, member, level)
	if err != nil {
		return Start{}, err
	}
	open, found, err := oldestTransaction(ctx, member)
	if err != nil {
		return Start{}, fmt.Errorf("read the oldest open transaction: %w", err)
	}
	last, err := NewestEntry(ctx, member, level)
	if err != nil {
		return Start{}, err
	}
	if last.OpTime.Before(first.OpTime) {
		return Start{}, &WentBackError{Was: first.OpTime, Is: last.OpTime}
	}
	s := Start{FetchFrom: first.OpTime, Begin: last.OpTime, Wall: last.Wall}
	if found && open.Before(s.FetchFrom) {
		s.FetchFrom = open
	}
	return s, nil
}

// StartAt returns the start of a link that begins at a given time: after the newest
// majority-committed entry that is not later. The error is ErrTooOld if there is none.
func StartAt(ctx context.Context, member mongo.Caller, ts bson.Timestamp) (Start, error) {
	f := newest(Majority)
	f.Filter = document().AppendDocument("ts", document().AppendTimestamp("$lte", ts.T, ts.I).Build()).Build()
	e, err := entry(ctx, member, f, "newest")
	if errors.Is(err, ErrEmptyOplog) {
		err = ErrTooOld
	}
	if err != nil {
		return Start{}, fmt.Errorf("find the entry to start after: %w", err)
	}
	return Start{FetchFrom: e.OpTime, Begin: e.OpTime, Wall: e.Wall}, nil
}
