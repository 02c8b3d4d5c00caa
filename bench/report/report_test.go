package report

import (
	"bytes"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/bench/result"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// evil is a name that must not become a part of the page.
const evil = `<script>alert("x & y")</script>`

// Ends of runs.
var (
	memory, discard, null = result.End{Kind: result.EndMemory}, result.End{Kind: result.EndDiscard}, result.End{Kind: result.EndNull}
	embedded              = result.End{Kind: result.EndEmbedded, Version: "5.0", Members: 1}
	server                = result.End{Kind: result.EndReal, Version: "8.0.4", Members: 3}
)

// run makes a run of rounds that differ a little.
func run(kind, preset string, source, target result.End, pace float64, settings map[string]float64) result.Run {
	const ops = 100_000
	seconds := ops / pace
	return result.Run{
		Kind: kind, Name: kind + "/" + preset, Preset: preset, Source: source, Target: target, Settings: settings,
		Ops: ops, Bytes: 250 * ops, Rounds: []float64{seconds, seconds * 1.25, seconds * 0.8},
		CPUSeconds: 0.2, AllocsPerOp: 0.12, BytesPerOp: 31, PeakRSS: 320 << 20,
	}
}

func lanes(name string, value float64) map[string]float64 {
	m := map[string]float64{"writers": 16, "batch": 5000, "size": 200, "namespaces": 4}
	m[name] = value
	return m
}

// sample is a report with all that can be drawn.
func sample() *result.Report {
	least, most, far := 600_000.0, 0.2, 1.5
	r := &result.Report{
		Format: 1, Started: time.Date(2026, 11, 22, 9, 30, 0, 0, time.UTC), Seed: 1,
		Command: []string{"replicator", "bench", "goals", "--workload", evil},
		Machine: result.Machine{OS: "linux", Arch: "amd64", CPU: "Example CPU @ 2.50GHz", Cores: 2, Memory: 8 << 30, Kernel: "6.1.0", Go: "go1.26.0", Version: "v0.4.0"},
		Goals: []result.Goal{
			{Name: "applier to a null network target", Want: "at least 600,000 ops/s", Measured: 500_000, Unit: "ops/s", Least: &least},
			{Name: "allocations of the pipeline", Want: "at most 0.2 per entry", Measured: 0.0312, Unit: "allocs/entry", Most: &most},
			{Name: evil, Want: "at least 1.5 ×", Measured: 1.1, Unit: "×", Least: &far, Embedded: true},
			{Name: "catch-up / MongoShake", Want: "at least 5 ×", Skipped: "the harness runs no other tool"},
		},
	}
	r.Runs = append(r.Runs, run("pipeline", "small-inserts", memory, discard, 2e6, lanes("writers", 16)))
	for i, writers := range []float64{1, 2, 4, 8, 16, 32} {
		r.Runs = append(r.Runs, run("apply", "small-inserts", result.End{}, null, []float64{2e5, 4e5, 6e5, 7e5, 7e5, 6.5e5}[i], lanes("writers", writers)))
	}
	for i, size := range []float64{1000, 10_000, 100_000} {
		r.Runs = append(r.Runs, run("apply", "small-inserts", result.End{}, null, []float64{4e5, 7e4, 7e3}[i], lanes("size", size)))
	}
	r.Runs = append(r.Runs,
		run("apply", evil, result.End{}, embedded, 60_000, lanes("size", 200)), run("ceiling", evil, result.End{}, embedded, 30_000, lanes("size", 200)),
		run("catch-up", "backlog", embedded, embedded, 50_000, nil), run("secondary", "backlog", embedded, embedded, 40_000, nil))
	mirror := run("mirror", "mixed", server, server, 1000, map[string]float64{"rate": 1000})
	mirror.Latencies = map[string]result.Latency{
		"commit-to-applied": {Count: 10_000, P50: 0, P90: 0.004, P99: 0.0131, P999: 0.024, Max: 1.2, Mean: 0.0025},
		"acknowledged":      {Count: 10_000, P50: 0.0003, P90: 0.001, P99: 0.002, P999: 0.004, Max: 0.0101, Mean: 0.0009},
	}
	mirror.Notes = []string{"one note", "and " + evil}
	r.Runs = append(r.Runs, mirror)
	return r
}

// TestPage: the page of a report, with the figures of all charts. A second report is a
// section of its own.
func TestPage(t *testing.T) {
	html, err := page([]*result.Report{sample()})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "one.html")
	if *rewrite {
		if err := os.WriteFile(file, html, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(html)); diff != "" {
		t.Errorf("%s (-want +got; -rewrite writes it again):\n%s", file, diff)
	}
	two, err := page([]*result.Report{sample(), sample()})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"Goals: report 1 v0.4.0", "Charts: report 2 v0.4.0"} {
		if !bytes.Contains(two, []byte(part)) {
			t.Errorf("a page of two reports has no %q", part)
		}
	}
	if bytes.Contains(html, []byte("<script")) || bytes.Contains(two, []byte("<script")) {
		t.Error("a name became a part of the page")
	}
}

// TestMixedEnds: runs of embedded and of real ends are not one group of bars.
func TestMixedEnds(t *testing.T) {
	r := &result.Report{Runs: []result.Run{
		run("catch-up", "backlog", server, server, 50_000, nil), run("secondary", "backlog", embedded, embedded, 40_000, nil),
		run("secondary", "backlog", server, server, 90_000, nil),
	}}
	const servers, sim = "real 8.0.4 (3 members) → real 8.0.4 (3 members)", "embedded 5.0 (1 member) → embedded 5.0 (1 member)"
	want := []string{servers, "catch-up/backlog 50,000 ops/s", sim, "secondary/backlog 40,000 ops/s", servers, "secondary/backlog 90,000 ops/s"}
	if diff := cmp.Diff(want, lines(whole(r, "", "catch-up", "secondary"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r.Runs = []result.Run{
		run("apply", "updates", result.End{}, server, 50_000, nil), run("ceiling", "updates", result.End{}, embedded, 40_000, nil),
	}
	if c := ceiling(r); len(c.Bars) > 0 {
		t.Errorf("a ratio of embedded and real ends: %q", lines(c))
	}
}

// lines are a chart's headlines and bars.
func lines(c chart) []string {
	var list []string
	for _, b := range c.Bars {
		if b.Group != "" {
			list = append(list, b.Group)
		}
		list = append(list, b.Name+" "+b.Figure)
	}
	return list
}

func TestWrite(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "new", "report")
	file, err := Write(folder, []*result.Report{{Format: 1}})
	if err != nil || file != filepath.Join(folder, "index.html") {
		t.Errorf("a report without anything to draw: %q, %v", file, err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	if _, err := Write(folder, nil); err == nil {
		t.Error("no results make a report")
	}
	if _, err := Write(file, []*result.Report{sample()}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a report in place of a file: %v", err)
	}
}

// TestWidths: whatever was measured, each bar has a place.
func TestWidths(t *testing.T) {
	figure := rapid.OneOf(rapid.Float64Range(0, 1), rapid.Float64Range(0, 1e7))
	rapid.Check(t, func(t *rapid.T) {
		r := &result.Report{}
		for range rapid.IntRange(1, 3).Draw(t, "runs") {
			one := run("apply", "any", result.End{}, null, 1, lanes("writers", figure.Draw(t, "writers")))
			one.Rounds = rapid.SliceOfN(rapid.OneOf(rapid.Float64Range(1e-4, 1e4), rapid.Just(0.0)), 1, 3).Draw(t, "rounds")
			plain := one
			plain.Kind = "ceiling"
			r.Runs = append(r.Runs, one, plain)
			wanted := figure.Draw(t, "wanted")
			g := result.Goal{Measured: figure.Draw(t, "measured") - 0.5}
			if rapid.Bool().Draw(t, "least") {
				g.Least = &wanted
			} else {
				g.Most = &wanted
			}
			r.Goals = append(r.Goals, g)
		}
		for _, c := range append(charts(r), goals(r)) {
			for _, b := range c.Bars {
				if !(b.Width >= 0 && b.Width <= 1) {
					t.Fatalf("%s: %+v", c.Title, b)
				}
			}
		}
	})
}

// TestSweep: which runs make a group, and in which order.
func TestSweep(t *testing.T) {
	r := func(preset string, target result.End, pace float64, settings map[string]float64) result.Run {
		one := run("apply", preset, result.End{}, target, pace, settings)
		one.Rounds = one.Rounds[:1]
		return one
	}
	with := func(writers float64, more ...any) map[string]float64 {
		m := map[string]float64{"writers": writers}
		for i := 0; i < len(more); i += 2 {
			m[more[i].(string)] = more[i+1].(float64)
		}
		return m
	}
	for name, c := range map[string]struct {
		runs []result.Run
		want []string
	}{
		"one value is no group": {[]result.Run{r("mixed", null, 10, with(1)), r("mixed", null, 20, with(1))}, nil},
		"two are, in order, and measured again": {
			[]result.Run{r("mixed", null, 2e4, with(2)), r("mixed", null, 1e4, with(1)), r("mixed", null, 3e4, with(1)), r("mixed", null, 1.1e4, with(1))},
			[]string{"apply mixed → null", "1 writers 11,000 ops/s, 2.75 MB/s", "2 writers 20,000 ops/s, 5 MB/s"},
		},
		"another number of operations": {
			[]result.Run{r("mixed", null, 2e4, with(2, "ops", 5.0)), r("mixed", null, 1e4, with(1, "ops", 6.0))},
			[]string{"apply mixed → null", "1 writers 10,000 ops/s, 2.5 MB/s", "2 writers 20,000 ops/s, 5 MB/s"},
		},
		"other presets, ends and settings": {
			[]result.Run{
				r("mixed", null, 2e4, with(2)), r("mixed", null, 1e4, with(1)), r("hot", null, 5, with(1)), r("mixed", server, 4e4, with(2)),
				r("mixed", null, 4e4, with(1, "flush", 10.0)), r("mixed", null, 8e4, with(2, "flush", 10.0)),
			},
			[]string{
				"apply mixed → null", "1 writers 10,000 ops/s, 2.5 MB/s", "2 writers 20,000 ops/s, 5 MB/s",
				"apply mixed → null flush=10", "1 writers 40,000 ops/s, 10 MB/s", "2 writers 80,000 ops/s, 20 MB/s",
			},
		},
		"without the setting, or without a round": {
			[]result.Run{r("mixed", null, 20, nil), r("mixed", null, 10, with(1)), {Kind: "apply", Settings: with(2), Ops: 3}}, nil,
		},
	} {
		if diff := cmp.Diff(c.want, lines(sweeps[0].chart(c.runs))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestGood: values above 1 meet the goal.
func TestGood(t *testing.T) {
	at := func(v float64) *float64 { return &v }
	for _, c := range []struct {
		goal result.Goal
		want float64
		ok   bool
	}{
		{result.Goal{Measured: 3, Least: at(2)}, 1.5, true},
		{result.Goal{Measured: 1, Least: at(2)}, 0.5, true},
		{result.Goal{Measured: 0, Least: at(2)}, 0, true},
		{result.Goal{Measured: 1, Most: at(2)}, 2, true},
		{result.Goal{Measured: 4, Most: at(2)}, 0.5, true},
		{result.Goal{Measured: -3, Most: at(2)}, 1000, true},
		{result.Goal{Measured: 0, Most: at(2)}, 1000, true},
		{result.Goal{Measured: 1}, 0, false},
		{result.Goal{Measured: 1, Most: at(0)}, 0, false},
		{result.Goal{Measured: math.NaN(), Most: at(1)}, 0, false},
		{result.Goal{Measured: 1, Most: at(1), Skipped: "no server"}, 0, false},
	} {
		got, _, ok := good(&c.goal)
		if got != c.want || ok != c.ok {
			t.Errorf("%+v: %v, %v, want %v, %v", c.goal, got, ok, c.want, c.ok)
		}
		if ok && (got >= 1) != c.goal.Met() {
			t.Errorf("%+v: drawn at %v, met is %v", c.goal, got, c.goal.Met())
		}
	}
}
