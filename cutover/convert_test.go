package cutover_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/cutover"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// failing is an empty target of which each command takes some time, and fails, as long as there are
// failures.
type failing struct {
	failures []time.Duration
	err      error // of each failure
	tried    int
}

// Call implements mongo.Caller.
func (f *failing) Call(ctx context.Context, _ mongo.Command) (bson.Raw, error) {
	f.tried++
	if len(f.failures) > 0 {
		timer := time.NewTimer(f.failures[0])
		defer timer.Stop()
		f.failures = f.failures[1:]
		select {
		case <-timer.C:
			return nil, f.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return reply(bson.D{
		{Key: "ok", Value: 1},
		{Key: "databases", Value: bson.A{}},
		{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "x.y"}, {Key: "firstBatch", Value: bson.A{}}}},
	}), nil
}

// Check implements ddl.Fence.
func (f *failing) Check(context.Context) error { return nil }

// Within implements ddl.Fence.
func (f *failing) Within(_ context.Context, work func(txn mongo.Caller) error) error { return work(f) }

// TestConvertTriesAgain: a failover of the target that interrupts the build of an index, however long
// it has taken, does not end a conversion. Without any progress it ends after a minute.
func TestConvertTriesAgain(t *testing.T) {
	t.Parallel()
	always := make([]time.Duration, 1000)
	for i := range always {
		always[i] = 5 * time.Second
	}
	interrupted := servererr.New(servererr.InterruptedDueToReplStateChange, "operation was interrupted")
	slow := make([]time.Duration, 1000)
	for i := range slow {
		slow[i] = 90 * time.Second // serverSelectionTimeoutMS of the connection string
	}
	for name, c := range map[string]struct {
		failures []time.Duration
		err      error
		ends     bool
	}{
		"after hours":             {[]time.Duration{3 * time.Hour, time.Second, 2 * time.Hour, time.Second}, interrupted, false},
		"lost, after hours":       {[]time.Duration{3 * time.Hour, time.Second}, &mongo.LostError{Host: "a:1", Err: io.EOF}, false},
		"for a minute":            {always, interrupted, true},
		"without a server to ask": {slow, &mongo.LostError{Err: errors.New("no primary")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				target := &failing{failures: c.failures, err: c.err}
				began := time.Now()
				_, err := cutover.Convert(t.Context(), &cutover.ConvertConfig{Target: target, Fence: target, MetaDB: "replicator", Link: "mirror"})
				if took := time.Since(began); (err != nil) != c.ends || c.ends && took > 3*time.Minute {
					t.Errorf("after %s and %d commands: %v", took, target.tried, err)
				}
			})
		})
	}
}
