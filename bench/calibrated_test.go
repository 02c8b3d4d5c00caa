package bench

import (
	"math"
	"testing"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/result"
	"github.com/oplogrep/replicator/internal/testkit/must"
)

// A whole link with a calibrated target: its statements cost what they cost a real server,
// and the prediction follows from that and the program's own CPU time.
func TestCatchUpCalibrated(t *testing.T) {
	run := must.Get(CatchUp(t.Context(), Config{Workload: small(), Rounds: 2, Writers: 4, Target: calibratedEnd}))(t)
	r := runFigures{run, "catch-up/small"}
	r.check(t, "catch-up", 500, 2)
	if run.Target != (result.End{Kind: result.EndCalibrated}) {
		t.Errorf("to %q", run.Target)
	}
	p := run.Predicted
	if p == nil {
		t.Fatal("no prediction")
	}
	// 500 operations, of which coalescing leaves out some.
	if p.Target <= 0 || p.Target > ends.MixedCost/1e3*1.02 {
		t.Errorf("an operation takes the target %g µs, want %g or less", p.Target, ends.MixedCost/1e3)
	}
	if p.Program <= 0 || p.Slowness <= 0 {
		t.Errorf("prediction %+v", *p)
	}
	total := p.Program + p.Target + ends.SourceCost/1e3
	if want := ends.CalibrationCores * 1e6 / total; math.Abs(p.OpsPerSecond-want) > 1e-6*want {
		t.Errorf("%g ops/s, want %g", p.OpsPerSecond, want)
	}
	secondary := ends.CalibrationCores * 1e9 / float64(ends.SecondaryCost)
	if want := p.OpsPerSecond / secondary; math.Abs(p.OfSecondary-want) > 1e-6*want {
		t.Errorf("%g of a secondary, want %g", p.OfSecondary, want)
	}
}

func TestCalibratedEnds(t *testing.T) {
	for name, c := range map[string]Config{
		"a source of its own": {Workload: small(), Target: calibratedEnd, Source: "mongodb://a"},
		"real servers":        {Workload: small(), Target: calibratedEnd, Mongod: "/nobody"},
	} {
		if _, err := CatchUp(t.Context(), c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	c := Config{Workload: small(), Target: calibratedEnd}
	if _, _, err := CatchUpWithSecondary(t.Context(), c); err == nil {
		t.Error("with a secondary: no error")
	}
	if _, err := Mirror(t.Context(), c); err == nil {
		t.Error("a mirror: no error")
	}
}
