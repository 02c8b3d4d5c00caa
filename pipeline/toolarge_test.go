package pipeline

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/applier"
	"github.com/oplogrep/replicator/initialsync/clone"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/oplog"
	"github.com/oplogrep/replicator/pipeline/failure"
)

// copied is the end of an attempt by a document of a copy that the target has refused for half a minute.
func copied(id int32) error {
	_, value, _ := bson.MarshalValue(id)
	doc := &clone.TooLargeError{
		NS: "db.a", ID: bson.RawValue{Type: bson.TypeInt32, Value: value}, Tried: 30 * time.Second, Err: servererr.New(servererr.TransactionTooLargeForCache, "no"),
	}
	return fmt.Errorf("initialsync: %w", doc)
}

// TestTooLargeLasts: only an operation, or a document of a copy, that is refused again and again for the size of the target's storage cache is
// given up, whatever else ends attempts meanwhile.
func TestTooLargeLasts(t *testing.T) {
	t.Parallel()
	refused := func(at uint32, code servererr.Code) error {
		op := &applier.OpError{NS: "db.a", OpTime: oplog.NewOpTime(at, 1, 1), Kind: oplog.KindInsert, Err: servererr.New(code, "no")}
		return fmt.Errorf("applier: %w", &applier.StuckError{Ops: 1, Tried: 30 * time.Second, Err: op})
	}
	synctest.Test(t, func(t *testing.T) {
		const limit = 5 * time.Minute
		var now tooLarge
		cache := servererr.TransactionTooLargeForCache
		for i, step := range []struct {
			err error
			// away is how long the target was away before.
			away time.Duration
			want bool
		}{
			{err: refused(1, cache)},
			{err: refused(2, cache)}, // another operation
			{err: errors.New("an election")},
			{err: refused(2, servererr.ExceededMemoryLimit)},
			{err: refused(2, cache)}, // for 2 minutes
			{err: refused(2, cache), away: 24 * time.Hour},
			{err: refused(2, cache)},
			{err: refused(2, cache)},
			{err: refused(2, cache), want: true},
			{err: refused(3, cache)},
			{err: refused(3, cache), away: 24 * time.Hour},
			{err: copied(7)},
			{err: copied(8)}, // another document, for 30 seconds
			{err: errors.New("an election")},
			{err: copied(8)}, // for 90 seconds
			{err: copied(8), away: 24 * time.Hour},
			{err: copied(8)},
			{err: copied(8)},
			{err: copied(8)},
			{err: copied(8), want: true},
		} {
			time.Sleep(step.away + 30*time.Second)
			e, is := errors.AsType[*failure.TooLargeError](now.lasts(step.err, limit))
			if is != step.want || is && e.Tried != limit {
				t.Errorf("step %d: %t, %+v", i, is, e)
			}
		}
	})
}

// TestTooLargeInTurn: of several documents that are refused at once, each attempt names another one. They end the run all the same.
func TestTooLargeInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var now tooLarge
		began := time.Now()
		for n := int32(0); ; n++ {
			time.Sleep(30 * time.Second)
			if _, is := errors.AsType[*failure.TooLargeError](now.lasts(copied(n%3), 5*time.Minute)); is {
				break
			}
			if time.Since(began) > time.Hour {
				t.Fatal("they are refused for ever")
			}
		}
	})
}
