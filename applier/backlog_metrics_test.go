package applier

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

// keptBack returns the metrics of the operations that are kept back.
func keptBack(t *testing.T, reg *prometheus.Registry) (ops, bytes float64) {
	t.Helper()
	for _, m := range must.Get(reg.Gather())(t) {
		switch m.GetName() {
		case "replicator_applier_kept_back_ops":
			ops = m.GetMetric()[0].GetGauge().GetValue()
		case "replicator_applier_kept_back_bytes":
			bytes = m.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return ops, bytes
}

// Nothing is kept back any more, and the metrics say so.
func TestBacklogMetrics(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	r.target.hang(t, false)
	reg := prometheus.NewRegistry()
	a := r.live(t, func(c *Config) { c.Registry, c.BuildWait = reg, time.Minute })
	l.alone(buildOp("commitIndexBuild", 1, "x+y"))
	l.inserts(10)
	a.send(l, start)
	a.reaches(l.optime())
	a.drain()
	if ops, bytes := keptBack(t, reg); ops != 0 || bytes != 0 {
		t.Errorf("after a short build: %v operations, %v bytes", ops, bytes)
	}
}

// The attempt ends while something is kept back; the next one keeps nothing back.
func TestBacklogMetricsAfterCrash(t *testing.T) {
	t.Parallel()
	r, l := hanging(t)
	reg := prometheus.NewRegistry()
	a := r.live(t, func(c *Config) { c.Registry = reg })
	l.alone(buildOp("commitIndexBuild", 1, "x+y"))
	l.inserts(10)
	a.send(l, start)
	a.awaitDocuments("db.b", 10)
	a.metrics.window.Set(1) // as of lanes that stop where they are
	a.crash()
	if window := testutil.ToFloat64(a.metrics.window); window != 0 {
		t.Errorf("after the attempt: %v bytes in the lanes", window)
	}
	if ops, bytes := keptBack(t, reg); ops != 0 || bytes != 0 {
		t.Errorf("after the attempt: %v operations, %v bytes", ops, bytes)
	}
	r.target.hang(t, false)
}
