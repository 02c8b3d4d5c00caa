package bench

import (
	"testing"

	"github.com/oplogrep/replicator/bench/result"
)

// oneEmbedded is an embedded set as it is started by default.
var oneEmbedded = result.End{Kind: result.EndEmbedded, Version: "5.0", Members: 1}

// runFigures is a run to be checked.
type runFigures struct {
	*result.Run
	name string
}

// check looks whether what every run has is there, and can be.
func (r *runFigures) check(t *testing.T, kind string, ops, rounds int) {
	t.Helper()
	if r.Kind != kind || r.Name != r.name {
		t.Errorf("it is %s %q, want %s %q", r.Kind, r.Name, kind, r.name)
	}
	if r.Ops != int64(ops) {
		t.Errorf("%s: %d operations, want %d", r.name, r.Ops, ops)
	}
	if r.Bytes < r.Ops*20 || r.Bytes > r.Ops*2000 {
		t.Errorf("%s: %d operations have %d bytes", r.name, r.Ops, r.Bytes)
	}
	if len(r.Rounds) != rounds {
		t.Errorf("%s: %d rounds, want %d", r.name, len(r.Rounds), rounds)
	}
	for _, s := range r.Rounds {
		if s <= 0 || s > 60 {
			t.Errorf("%s: a round took %g s", r.name, s)
		}
	}
	if r.AllocsPerOp <= 0 || r.BytesPerOp <= 0 {
		t.Errorf("%s: %g allocations and %g bytes per operation", r.name, r.AllocsPerOp, r.BytesPerOp)
	}
	if r.OpsPerSecond() <= 0 {
		t.Errorf("%s: %g operations a second", r.name, r.OpsPerSecond())
	}
	if r.Workload == nil || len(r.Settings) == 0 {
		t.Errorf("%s: its workload or its settings are missing", r.name)
	}
}
