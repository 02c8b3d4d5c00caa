package continuous

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/verify/standing"
)

// hanging is a target that answers the first command after a failover only, with an error. It sends the times of commands.
type hanging struct {
	failover time.Duration
	asked    chan time.Time
}

func (h *hanging) Call(ctx context.Context, _ mongo.Command) (bson.Raw, error) {
	h.asked <- time.Now()
	select {
	case <-time.After(h.failover):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	h.failover = 0
	return nil, servererr.New(servererr.Unauthorized, "not retried")
}

// TestReadAfterFailover: a read that a failover of the target delays does not leave the results of verifications unread for long.
func TestReadAfterFailover(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const failover = 20 * time.Second
		h := &hanging{failover: failover, asked: make(chan time.Time, 10)}
		w := NewWatcher(WatcherConfig{
			Store: standing.Store{Target: h, DB: "replicator", Link: "l"}, State: func() State { return State{Leads: true, Steady: true} },
		})
		ctx, end := context.WithCancelCause(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			w.Run(ctx)
		}()
		first := <-h.asked
		if again := (<-h.asked).Sub(first) - failover; again > readRest+2*tick {
			t.Errorf("it reads again after %s", again)
		}
		end(nil)
		<-ended
	})
}
