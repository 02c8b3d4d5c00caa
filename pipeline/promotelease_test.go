package pipeline_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/oplogrep/replicator/buffer/spool"
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

// TestPromoteInUse: a promotion ends when another process has not released the relay log in time, as one that is suspended
// does not, and says who has it. Once that has ended the same promotion has everything.
func TestPromoteInUse(t *testing.T) {
	t.Parallel()
	o, last := newBehind(t)
	would := must.Get(o.promote(func(c *promote.Config) { c.DryRun = true }))(t)
	other, _, err := spool.Salvage(spool.Config{Dir: would.Dir, ID: "another"}, true)
	must.Succeed(t, err)
	ctx, stop := context.WithTimeoutCause(t.Context(), 20*time.Second, errors.New("it goes on"))
	defer stop()
	cfg := &promote.Config{Pipeline: o.cfg, By: "test", SpoolWait: time.Second, OnStep: func(s string) { t.Log(s) }}
	cfg.Pipeline.Scope = must.Get(scope.New(scope.Config{}))(t)
	if r, err := promote.Run(ctx, cfg, connect(t, o.target.Set, theProgram)); !errors.Is(err, spool.ErrInUse) || !strings.Contains(err.Error(), "kill -9") || r.Over != nil {
		t.Errorf("%v, %v", err, r.Over)
	}
	must.Succeed(t, other.Close())
	if got := must.Get(o.promote(nil))(t); !got.Exact() || !got.At.Equal(last) {
		t.Errorf("exact %v up to %s, want %s", got.Exact(), got.At, last)
	}
}
