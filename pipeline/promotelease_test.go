package pipeline_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/promote"
	"github.com/oplogrep/replicator/scope"
)

var errNoPrimary = errors.New("no primary")

// withoutPrimary is a target that has no primary for a while.
type withoutPrimary struct {
	mongo.Caller
	away atomic.Bool
}

// Call implements mongo.Caller.
func (w *withoutPrimary) Call(ctx context.Context, cmd mongo.Command) (bson.Raw, error) {
	if w.away.Load() {
		return nil, &mongo.LostError{Err: errNoPrimary}
	}
	return w.Caller.Call(ctx, cmd)
}

// TestPromoteLongFailover: a failover of the target that lasts longer than the lease does not end a promotion, whether or
// not another process leads the link by then.
func TestPromoteLongFailover(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]bool{"nobody leads": false, "another process leads": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, last := newBehind(t)
			conn := connect(t, o.target.Set, theProgram)
			target := &withoutPrimary{Caller: conn}
			cfg := &promote.Config{Pipeline: o.cfg, By: "test"}
			cfg.Pipeline.Scope = must.Get(scope.New(scope.Config{}))(t)
			cfg.Pipeline.Lease.TTL = 5 * time.Second
			failovers := 0
			cfg.OnStep = func(s string) {
				t.Log(s)
				if failovers > 0 || !strings.HasPrefix(s, "applying") {
					return
				}
				failovers++
				target.away.Store(true)
				if other {
					o.cfg.Lease.TTL, o.cfg.Lease.Every = time.Minute, 2*time.Second
					must.Succeed(t, o.start("b"))
					must.Succeed(t, o.caughtUp(o.links["b"]))
					target.away.Store(false)
					return
				}
				time.AfterFunc(2*cfg.Pipeline.Lease.TTL, func() { target.away.Store(false) })
			}
			got := must.Get(promote.Run(t.Context(), cfg, mongo.Route(conn, target)))(t)
			if failovers != 1 || !got.Exact() || !got.At.Equal(last) {
				t.Errorf("after %d failovers: exact %v up to %s, want %s", failovers, got.Exact(), got.At, last)
			}
			must.Succeed(t, o.equalNow())
		})
	}
}
