package request

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/mongo/servererr"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// timeless is a target that has no primary when it is first asked for its time.
type timeless struct {
	mongo.Caller
	left atomic.Int64
}

// Call implements mongo.Caller.
func (c *timeless) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if _, err := cmd.Body.LookupErr("ping"); err == nil && c.left.Add(-1) >= 0 {
		return nil, servererr.New(servererr.NotWritablePrimary, "not primary")
	}
	return c.Caller.Call(ctx, cmd)
}

// TestNextCutFailoverOnceAsked: a failover of the target between the request of a cut and the
// question for the time after it does not end the wait.
func TestNextCutFailoverOnceAsked(t *testing.T) {
	t.Parallel()
	g := newTarget(t)
	l, h := create(t, g)
	s, cut := New(l), cutter(t, l, h)
	through := &timeless{Caller: g}
	through.left.Store(3)
	n := nextCut(t.Context(), New(links(t, through, "a")), time.Minute)
	r := asked(t, s, 1)
	made := cut()
	must.Succeed(t, s.Answered(t.Context(), h, r.ID, Done, "there it is"))
	n.ends(t)
	if n.err != nil || n.cut.Target != made.Target || through.left.Load() >= 0 {
		t.Errorf("%+v, %v; %d failures are left", n.cut, n.err, through.left.Load())
	}
}
