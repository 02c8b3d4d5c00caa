package pipeline_test

import (
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/internal/mongo"
	"github.com/oplogrep/replicator/internal/testkit/client"
	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/promote"
	"github.com/oplogrep/replicator/scope"
)

// TestPromoteLongFailover: a failover of the target that lasts longer than the lease does not end a promotion, whether or
// not another process leads the link by then.
func TestPromoteLongFailover(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]bool{"nobody leads": false, "another process leads": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, last := newBehind(t)
			conn := connect(t, o.target.Set, theProgram)
			target := &client.Failing{Caller: conn}
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
				target.Away.Store(true)
				if other {
					o.cfg.Lease.TTL, o.cfg.Lease.Every = time.Minute, 2*time.Second
					must.Succeed(t, o.start("b"))
					must.Succeed(t, o.caughtUp(o.links["b"]))
					target.Away.Store(false)
					return
				}
				time.AfterFunc(2*cfg.Pipeline.Lease.TTL, func() { target.Away.Store(false) })
			}
			got := must.Get(promote.Run(t.Context(), cfg, mongo.Route(conn, target)))(t)
			if failovers != 1 || !got.Exact() || !got.At.Equal(last) {
				t.Errorf("after %d failovers: exact %v up to %s, want %s", failovers, got.Exact(), got.At, last)
			}
			must.Succeed(t, o.equalNow())
		})
	}
}
