package main

import (
	"runtime/debug"
	"testing"

	"github.com/oplogrep/replicator/internal/cli"
)

// The operator's limit, and that of the runtime, of which the smaller one counts.
func TestProcessMemory(t *testing.T) {
	const mib = 1 << 20
	for _, tc := range []struct {
		environ string
		flag    int64 // MiB
		want    int64 // MiB
	}{
		{"GOMEMLIMIT=", 512, 512},
		{"GOMEMLIMIT=off", 512, 512},
		{"XGOMEMLIMIT=1", 512, 512},
		{"GOMEMLIMIT=1GiB", 512, 512},
		{"GOMEMLIMIT=1TiB", 512, 512},
		{"GOMEMLIMIT=256MiB", 512, 284}, // and 28 outside of the runtime
		{"GOMEMLIMIT=268435456", 512, 284},
	} {
		f := runFlags{}
		f.Memory = cli.Size(tc.flag * mib)
		m, err := f.processMemory([]string{"A=b", tc.environ})
		if err != nil || m.total != tc.want*mib {
			t.Errorf("%s, --memory %d MiB: %d MiB, %v, want %d", tc.environ, tc.flag, m.total/mib, err, tc.want)
		}
	}
	before := debug.SetMemoryLimit(-1)
	undo := processMemory{total: 512 * mib}.apply()
	if got := debug.SetMemoryLimit(-1); got != (512-28)*mib {
		t.Errorf("the runtime's limit is %d MiB", got/mib)
	}
	if undo(); debug.SetMemoryLimit(-1) != before {
		t.Error("the limit stays")
	}
}
