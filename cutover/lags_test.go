package cutover

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
)

// lagging is a target of which a majority lags.
type lagging struct{}

// Call implements mongo.Caller.
func (lagging) Call(_ context.Context, cmd mongo.Command) (bson.Raw, error) {
	second := uint32(100)
	if level, _ := cmd.Body.Lookup("readConcern", "level").StringValueOK(); level == "majority" {
		second = 99
	}
	entry := bson.D{{Key: "ts", Value: bson.Timestamp{T: second, I: 1}}, {Key: "t", Value: int64(1)}, {Key: "wall", Value: time.Now()}}
	return bson.Marshal(bson.D{{Key: "ok", Value: 1}, {Key: "cursor", Value: bson.D{
		{Key: "id", Value: int64(0)}, {Key: "ns", Value: "local.oplog.rs"}, {Key: "firstBatch", Value: bson.A{entry}},
	}}})
}

// TestPassingWithin: an error passes that was tried for as long as a call is, and that call for as long as a step.
func TestPassingWithin(t *testing.T) {
	t.Parallel()
	stuck := func(err error) error { return fmt.Errorf("read: %w", &mongo.StuckError{Tries: 9, Err: err}) }
	for name, c := range map[string]struct {
		err    error
		passes bool
	}{
		"passes": {&mongo.SilentError{}, true},
		"lasts":  {errors.New("damaged"), false},
	} {
		for range 3 {
			if got := passing(c.err); got != c.passes {
				t.Errorf("%s: %t: %v", name, got, c.err)
			}
			c.err = stuck(c.err)
		}
	}
}

// TestTargetLags: that a majority of the target lags for longer than it is waited for once does not end a cutover whose writes are stopped,
// and says so.
func TestTargetLags(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, err := startOf(t.Context(), &armConfig{Target: lagging{}})
		if !errors.Is(err, errLags) || !passing(fmt.Errorf("arm: %w", err)) {
			t.Errorf("got %v", err)
		}
	})
}
