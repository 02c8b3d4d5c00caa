package bench

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/oplogrep/replicator/bench/ends"
	"github.com/oplogrep/replicator/bench/result"
)

// TestRatios: a goal that compares two runs has the pace of ours in units of the
// other one's, and is marked where an end is embedded.
func TestRatios(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts several sets: not with -short")
	}
	var report result.Report
	err := Suite(t.Context(), SuiteConfig{Seed: 3, Scale: 0.002, Only: []string{"ceiling", "catch-up", "clone", "verify"}}, &report)
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
	want = append(want, pace["catch-up"][0]/pace["secondary"][0], pace["clone"][0]/pace["clone"][1], pace["verify"][0]/pace["verify"][1])
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
	if n != len(want) || n != 9 {
		t.Errorf("%d ratios of %d", n, len(want))
	}
}

// TestNoMixedRatios: an embedded set and a real server are not compared, nor are servers
// of two versions; what may be compared has the ends said of embedded sets.
func TestNoMixedRatios(t *testing.T) {
	server, newer := result.End{Kind: result.EndReal, Version: "5.0.7", Members: 3}, result.End{Kind: result.EndReal, Version: "8.0.4", Members: 3}
	one, null, none := oneEmbedded, result.End{Kind: result.EndNull}, result.End{}
	run := func(source, target result.End) *result.Run {
		return &result.Run{Name: "r", Source: source, Target: target, Ops: 100, Rounds: []float64{1}}
	}
	const mixed, versions = "no ratio of embedded and real ends: r (", "no ratio of servers of different versions: r ("
	for _, tc := range []struct {
		a, b *result.Run
		why  string
	}{
		{run(server, server), run(server, server), ""},
		{run(none, server), run(none, server), ""},
		{run(none, null), run(none, null), ""},
		{run(one, one), run(one, one), ""},
		{run(server, newer), run(server, newer), ""}, // both go from the one to the other
		{run(server, server), run(one, one), mixed},
		{run(one, one), run(server, server), mixed},
		{run(server, one), run(server, server), mixed},
		{run(one, server), run(one, server), mixed},
		{run(server, newer), run(newer, newer), versions},
		{run(server, server), run(newer, newer), versions},
	} {
		var report result.Report
		s := &suite{report: &report}
		s.leastRatio("a / b", "faster", tc.a, tc.b, 1)
		g := report.Goals[0]
		if (g.Skipped == "") != (tc.why == "") || !strings.HasPrefix(g.Skipped, tc.why) || tc.why != "" && !strings.Contains(g.Skipped, tc.b.Ends()) {
			t.Errorf("%s and %s: skipped %q, want %q", tc.a.Ends(), tc.b.Ends(), g.Skipped, tc.why)
		}
		if g.Skipped == "" && (g.Embedded != (tc.a.Target == one) || g.Measured != 1) {
			t.Errorf("%s and %s: %+v", tc.a.Ends(), tc.b.Ends(), g)
		}
	}
}

// TestNoReference: a secondary is timed only if the ends are of its own kind.
func TestNoReference(t *testing.T) {
	server := result.End{Kind: result.EndReal, Version: "5.0.7", Members: 3}
	for _, tc := range []struct {
		binary         string
		source, target result.End
		why            string
	}{
		{"", oneEmbedded, oneEmbedded, ""},
		{"mongod", server, server, ""},
		{"", server, server, "an embedded secondary is no reference for real ends"},
		{"mongod", oneEmbedded, oneEmbedded, "a real secondary is no reference for embedded ends"},
		{"", oneEmbedded, server, "a link of embedded and real ends"},
		{"mongod", server, oneEmbedded, "a link of embedded and real ends"},
	} {
		b := &backlog{
			cfg: Config{Mongod: tc.binary}, secondary: true,
			source: &place{End: &ends.End{Is: tc.source}}, target: &place{End: &ends.End{Is: tc.target}},
		}
		err := b.comparable()
		if _, ok := errors.AsType[*ConfigError](err); ok != (tc.why != "") || ok && !strings.Contains(err.Error(), tc.why) {
			t.Errorf("%q with %s → %s: %v, want %q", tc.binary, tc.source, tc.target, err, tc.why)
		}
		b.secondary = false
		if err := b.comparable(); err != nil {
			t.Errorf("without a secondary: %v", err)
		}
	}
}

// TestMirrorLag: a mirror is judged by what came after a probe's own acknowledgement, and not to
// how long writes with write concern 1 take.
func TestMirrorLag(t *testing.T) {
	three := result.End{Kind: result.EndReal, Version: "5.0.7", Members: 3}
	latencies := map[string]result.Latency{
		acknowledged: {Count: 9, P99: 0.001}, commitToApplied: {Count: 9, P99: 0.1}, majority: {Count: 9, P99: 0.05}, probed: {Count: 9, P99: 0.004},
	}
	goal := func(source, target result.End) result.Goal {
		var report result.Report
		s := &suite{report: &report}
		s.mirrorLag(&result.Run{Name: "mirror/mixed", Source: source, Target: target, Latencies: latencies})
		return report.Goals[0]
	}
	if g := goal(three, three); g.Skipped != "" || math.Abs(g.Measured-4) > 1e-9 || g.Most == nil || *g.Most != 5 || g.Embedded || !g.Met() {
		t.Errorf("%+v", g)
	}
	if g := goal(oneEmbedded, oneEmbedded); !g.Embedded || g.Skipped != "" {
		t.Errorf("embedded: %+v", g)
	}
	if g := goal(oneEmbedded, three); !strings.Contains(g.Skipped, "embedded and real ends") {
		t.Errorf("mixed: %+v", g)
	}
	latencies = map[string]result.Latency{probed: {}}
	if g := goal(three, three); g.Skipped != "no probe came" || g.Met() {
		t.Errorf("without a probe: %+v", g)
	}
}

// TestSpread: what cost is compared is that of the fastest rounds.
func TestSpread(t *testing.T) {
	slow := &result.Run{Ops: 100, Rounds: []float64{9, 4, 5}}
	fast := &result.Run{Ops: 100, Rounds: []float64{2, 8, 7}}
	many, one := &result.Run{Ops: 20, CPUSeconds: 6}, &result.Run{Ops: 10, CPUSeconds: 2}
	if got := cpuRatio(many, one); got != 1.5 {
		t.Errorf("0.3 s per operation instead of 0.2: a ratio of %v, want 1.5", got)
	}
	if got := cpuRatio(many, &result.Run{Ops: 10}); got != 0 {
		t.Errorf("no CPU time is known: a ratio of %v", got)
	}
	if got := spread([]*result.Run{slow, fast, slow}); got != 2 {
		t.Errorf("dearest/cheapest %g, want 2", got)
	}
	if got := ratio(fast, slow); got != 5.0/7 { // of the medians
		t.Errorf("ratio %g, want 5/7", got)
	}
}
