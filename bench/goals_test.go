package bench

import (
	"math"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/bench/result"
)

// TestRatios: a goal that compares two runs has the pace of ours in units of the
// other one's, and is marked where an end is embedded.
func TestRatios(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts several sets: not with -short")
	}
	var report result.Report
	err := Suite(t.Context(), SuiteConfig{Seed: 3, Scale: 0.002, Only: []string{"beside", "catch-up", "clone"}}, &report)
	if err != nil {
		t.Fatal(err)
	}
	pace := map[string][]float64{} // by kind, in the order of the goals
	for i := range report.Runs {
		r := &report.Runs[i]
		pace[r.Kind] = append(pace[r.Kind], r.OpsPerSecond())
	}
	var want []float64
	for i, ours := range pace["apply"] {
		want = append(want, ours/pace["ceiling"][i])
	}
	want = append(want, pace["catch-up"][0]/pace["secondary"][0], pace["clone"][0]/pace["clone"][1])
	n := 0
	for _, g := range report.Goals {
		if g.Skipped != "" {
			continue
		}
		if !g.Embedded || g.Least == nil || !strings.Contains(g.Name, " / ") {
			t.Errorf("goal %+v: want a ratio that is marked as embedded", g)
		}
		if n < len(want) && math.Abs(g.Measured-want[n]) > 1e-9 {
			t.Errorf("%s: %g, want %g", g.Name, g.Measured, want[n])
		}
		n++
	}
	if n != len(want) || n != 7 {
		t.Errorf("%d ratios of %d", n, len(want))
	}
}

// TestNoMixedRatios: an embedded set and a real server are not compared.
func TestNoMixedRatios(t *testing.T) {
	run := func(source, target string) *result.Run {
		return &result.Run{Name: "r", Source: source, Target: target, Ops: 100, Rounds: []float64{1}}
	}
	for _, tc := range []struct {
		a, b  *result.Run
		mixed bool
	}{
		{run("5.0.7", "5.0.7"), run("5.0.7", "5.0.7"), false},
		{run(embeddedEnd, embeddedEnd), run(embeddedEnd, embeddedEnd), false},
		{run("5.0.7", "5.0.7"), run(embeddedEnd, embeddedEnd), true},
		{run("5.0.7", embeddedEnd), run("5.0.7", "5.0.7"), true},
	} {
		var report result.Report
		s := &suite{report: &report}
		s.leastRatio("a / b", "faster", tc.a, tc.b, 1)
		if g := report.Goals[0]; (g.Skipped != "") != tc.mixed || g.Embedded != (!tc.mixed && embedded(tc.a)) {
			t.Errorf("%s to %s beside %s to %s: %+v", tc.a.Source, tc.a.Target, tc.b.Source, tc.b.Target, g)
		}
	}
}

// TestSpread: what cost is compared is that of the fastest rounds.
func TestSpread(t *testing.T) {
	slow := &result.Run{Ops: 100, Rounds: []float64{9, 4, 5}}
	fast := &result.Run{Ops: 100, Rounds: []float64{2, 8, 7}}
	if got := spread([]*result.Run{slow, fast, slow}); got != 2 {
		t.Errorf("dearest/cheapest %g, want 2", got)
	}
	if got := ratio(fast, slow); got != 5.0/7 { // of the medians
		t.Errorf("ratio %g, want 5/7", got)
	}
	if embedded(&result.Run{Source: "5.0.7", Target: nullEnd}) || !embedded(slow, &result.Run{Source: embeddedEnd}) {
		t.Error("what is embedded is an end that says so")
	}
}
