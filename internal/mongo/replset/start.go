package replset

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/oplog"
)

// Start is where a link begins: it reads the log from FetchFrom on and applies what
// comes after Begin. Invariant: FetchFrom <= Begin.
type Start struct {
	// FetchFrom is the server's beginFetchingTimestamp, Begin its
	// beginApplyingTimestamp.
	FetchFrom, Begin oplog.OpTime
	// Wall is the clock of Begin's primary, in milliseconds since the epoch.
	Wall int64
}

// WentBackError is a source whose newest entry is older than it was: it was rolled
// back, or another member has answered.
type WentBackError struct{ Was, Is oplog.OpTime }

func (e *WentBackError) Error() string {
	return fmt.Sprintf("its newest entry was %s, then %s", e.Was, e.Is)
}

// FindStart finds where a link begins that begins now, in the order of the server's
// own initial sync:
//
//	1   newest entry                       (a)
//	2   oldest transaction that is open    (b)
//	3   newest entry                       Begin
//
// and FetchFrom = min(a, b). A transaction that commits after Begin began after (a),
// or was open before. In the second case it is still open at step 2, and does not
// begin before (b); or it ended between the steps 1 and 2, and so before Begin. Either
// way all of its entries are at or after FetchFrom.
//
// What is between Begin and (a) would be lost if Begin were older: that is a
// *WentBackError. With Local, entries before Begin may still be missing, and Begin may
// be rolled back: the caller has to wait for both.
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
// majority-committed entry that is not later. It is ErrTooOld if there is none.
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
