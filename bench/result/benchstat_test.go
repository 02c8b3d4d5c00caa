package result

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

func TestBenchstat(t *testing.T) {
	r := sample()
	r.Runs = append(r.Runs, Run{Kind: "catch-up", Name: "catch-up/none", Preset: "none", Rounds: []float64{1}}) // Nothing went through.
	again := r.Runs[0]
	again.Name = "pipeline/small-inserts/once more"
	r.Runs = append(r.Runs, again)
	var out strings.Builder
	must.Succeed(t, r.Benchstat(&out))
	golden(t, "benchstat.txt", out.String())
}

var benchmarkLine = regexp.MustCompile(`^Benchmark[A-Z][^ ]*-2( +[0-9]+)(( [0-9]+(\.[0-9]+)? [^ ]+)+)$`)

// TestBenchstatLines: whatever a run is called, its lines are read as name, count and
// pairs of figure and unit, a line for each round.
func TestBenchstatLines(t *testing.T) {
	odd := rapid.StringOfN(rapid.SampledFrom([]rune("ab/ -=\t\n×é")), 0, 8, -1)
	rapid.Check(t, func(t *rapid.T) {
		run := Run{
			Kind: "catch-up", Name: odd.Draw(t, "name"), Preset: odd.Draw(t, "preset"), Source: anyEnd.Draw(t, "source"), Target: anyEnd.Draw(t, "target"),
			Settings:  map[string]float64{"k" + odd.Draw(t, "setting"): rapid.Float64Range(0, 1e6).Draw(t, "value")},
			Ops:       rapid.Int64Range(1, 1e9).Draw(t, "ops"),
			Rounds:    rapid.SliceOfN(rapid.Float64Range(1e-3, 1e3), 1, 4).Draw(t, "rounds"),
			Latencies: map[string]Latency{"l" + odd.Draw(t, "latency"): {P50: 0.001, P99: 0.01}},
			PeakRSS:   rapid.Int64Range(0, 1e10).Draw(t, "peak"),
		}
		r := Report{Machine: Machine{Cores: 2}, Runs: []Run{run}}
		var out strings.Builder
		must.Succeed(t, r.Benchstat(&out))
		rounds := 0
		for line := range strings.Lines(out.String()) {
			line = strings.TrimSuffix(line, "\n")
			if strings.HasPrefix(line, "pkg: ") || strings.HasPrefix(line, "Unit ") {
				continue
			}
			if !benchmarkLine.MatchString(line) {
				t.Fatalf("no line of a benchmark: %q", line)
			}
			fields := strings.Fields(line)
			if n, err := strconv.ParseInt(fields[1], 10, 64); err != nil || n != run.Ops || len(fields)%2 != 0 {
				t.Fatalf("%d fields, count %s: %q", len(fields), fields[1], line)
			}
			rounds++
		}
		if rounds != len(run.Rounds) {
			t.Fatalf("%d lines for %d rounds", rounds, len(run.Rounds))
		}
	})
}
