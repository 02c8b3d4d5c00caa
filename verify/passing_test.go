package verify

import (
	"sync/atomic"
	"testing"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
)

// TestPassing: what a server answers while its set changes, or while it is busy, does not end a comparison, whether it is
// read at cuts or not.
func TestPassing(t *testing.T) {
	t.Parallel()
	for _, code := range []servererr.Code{
		servererr.InterruptedAtShutdown, servererr.ShutdownInProgress, servererr.PrimarySteppedDown, servererr.InterruptedDueToReplStateChange,
		servererr.CursorNotFound, servererr.CursorKilled, servererr.QueryPlanKilled, servererr.ExceededTimeLimit, servererr.MaxTimeMSExpired,
		servererr.Interrupted, servererr.ExceededMemoryLimit,
	} {
		source, target := cluster(t), cluster(t)
		insertRaw(t, source, "d.c", neighbours(t, 0, 10)...)
		insertRaw(t, target, "d.c", neighbours(t, 0, 9)...)
		for _, cuts := range []Cuts{nil, &rest{source: source, target: target}} {
			var n atomic.Int64
			once := func(mongo.Command) error {
				if n.Add(1) == 1 {
					return servererr.New(code, "planted")
				}
				return nil
			}
			summary, found := check(t, Config{Source: &hook{Caller: source, ns: "d.c", before: once}, Target: target, Cuts: cuts})
			if len(found) != 1 || summary.Unchecked() > 0 || n.Load() < 2 {
				t.Errorf("code %d, at cuts %t: %+v, %+v", code, cuts != nil, found, summary.Collections)
			}
		}
	}
}
