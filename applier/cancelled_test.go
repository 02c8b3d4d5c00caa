package applier

import (
	"context"
	"errors"
	"testing"

	"github.com/oplogrep/replicator/checkpoint"
	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/oplog/batch"
)

// TestCancelledIsNotDrained: a sender that is cancelled closes its channel, like one that
// has sent everything. A run that has not received everything must not return nil.
func TestCancelledIsNotDrained(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, mongosim.Options{Members: 1})
	for range 100 { // each step may see the closed input first, or the cancelled context
		a := must.Get(r.begin(t.Context(), nil))(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		in, out := make(chan batch.Batch), make(chan checkpoint.Applied, 1)
		r.target.intercept(func(mongo.Command) (error, bool) {
			if ctx.Err() == nil {
				cancel(errCrash)
				close(in)
			}
			return nil, false
		})
		err := a.Run(ctx, in, out)
		r.target.intercept(nil)
		if !errors.Is(err, errCrash) {
			t.Fatalf("got %v, want %v", err, errCrash)
		}
	}
}
