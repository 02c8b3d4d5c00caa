package pipeline_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/oplogrep/replicator/internal/testkit/must"
	"github.com/oplogrep/replicator/mongosim"
	"github.com/oplogrep/replicator/pipeline"
	"github.com/oplogrep/replicator/scope"
)

// newRelayed starts a link with a relay log, which has read everything.
func newRelayed(t *testing.T) *overflowing {
	t.Helper()
	alone := mongosim.NoMoods("what is read, and when it is durable, decides")
	w := newWorld(t, mongosim.Options{Moods: alone}, mongosim.Options{Moods: alone})
	o := &overflowing{world: w, spool: t.TempDir()}
	o.cfg = pipeline.Config{Link: "mirror", MetaDB: "replicator", Writers: 3, Memory: pipeline.MinMemory, RelayBytes: 64 << 20}
	o.cfg.Copy.SpoolDir, o.cfg.Copy.SpoolFree = o.spool, 1
	must.Succeed(t, o.start("a"))
	must.Succeed(t, w.caughtUp(w.links["a"]))
	must.Succeed(t, w.source.write(t.Context(), "db", bson.D{{Key: "create", Value: "c"}}))
	must.Succeed(t, w.caughtUp(w.links["a"]))
	return o
}

// promote promotes the link.
func (o *overflowing) promote(change func(*pipeline.PromoteConfig)) (pipeline.Recovery, error) {
	s := must.Get(scope.New(scope.Config{}))(o.t)
	cfg := &pipeline.PromoteConfig{Pipeline: o.cfg, By: "test", Said: func(s string) { o.t.Log(s) }}
	cfg.Pipeline.Scope = s
	if change != nil {
		change(cfg)
	}
	return pipeline.Promote(o.t.Context(), cfg, connect(o.t, o.target.Set, theProgram))
}

// TestPromote: what the relay log has and the target does not is applied without the source.
func TestPromote(t *testing.T) {
	t.Parallel()
	o := newRelayed(t)
	o.hang()
	o.write(3)
	o.stored("a")
	last := o.newest()
	o.links["a"].stop(pipeline.ErrStopped)
	o.awaitEnd(o.links["a"])
	o.goOn()
	would := must.Get(o.promote(func(c *pipeline.PromoteConfig) { c.DryRun = true }))(t)
	got := must.Get(o.promote(nil))(t)
	again := must.Get(o.promote(nil))(t)
	for name, r := range map[string]pipeline.Recovery{"dry run": would, "promoted": got, "again": again} {
		if !r.At.Equal(last) || !r.Exact() || r.Wall != got.Wall {
			t.Errorf("%s: exact %v up to %s, %d, want %s", name, r.Exact(), r.At, r.Wall, last)
		}
	}
	if n, ok := got.MissingAtMost(); n != 0 || !ok {
		t.Errorf("%d entries are missing, known %v", n, ok)
	}
	must.Succeed(t, o.equalNow())
}

// equalNow compares the sets.
func (o *overflowing) equalNow() error {
	report, err := o.compared(o.links["a"])
	if err == nil && !report.Equal() {
		o.t.Error(report.String())
	}
	return err
}
