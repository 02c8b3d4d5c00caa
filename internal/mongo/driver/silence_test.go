package driver_test

import (
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/driver"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/mongosim/fault"
)

// TestSilence: a call waits for a slow reply as long as parts of it arrive, but not for one
// that does not start, or stalls.
func TestSilence(t *testing.T) {
	t.Parallel()
	silent := errors.New("it is silent")
	ask := func(t *testing.T, m mongo.Caller, first, patience time.Duration) (took time.Duration, err error) {
		t.Helper()
		ctx, cancel := mongo.WithSilence(t.Context(), first, patience, silent)
		defer cancel()
		began := time.Now()
		_, err = m.Call(ctx, command(t, "find", "c", "filter", bson.D{{Key: "_id", Value: 1}}))
		return time.Since(began), err
	}
	for name, hurt := range map[string]struct {
		fault fault.Fault
		wants error
	}{
		"slow":   {fault.Fault{Kind: fault.Rate, Bytes: 2 << 20}, nil},
		"frozen": {fault.Fault{Kind: fault.Freeze}, silent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set := start(t, mongosim.Options{})
			s := open(t, driver.Config{URI: set.URI()})
			must(t, s, "insert", "c", "documents", bson.A{bson.D{{Key: "_id", Value: 1}, {Key: "x", Value: make([]byte, 6<<20)}}})
			m := s.Member(set.Member(0).Host())
			if _, err := ask(t, m, time.Minute, time.Minute); err != nil {
				t.Fatal(err)
			}
			if err := set.Fault(mongosim.Client, 0, hurt.fault); err != nil {
				t.Fatal(err)
			}
			took, err := ask(t, m, 1500*time.Millisecond, time.Second)
			if !errors.Is(err, hurt.wants) {
				t.Errorf("after %s: %v", took, err)
			}
			if hurt.wants == nil && took < 2*time.Second {
				t.Errorf("the line is not slow: %s", took)
			}
			if hurt.wants != nil && took > 30*time.Second {
				t.Errorf("given up after %s", took)
			}
			set.HealAll()
		})
	}
}
