package result

import (
	"flag"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/internal/testkit/must"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// golden compares a text with a file, or writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *rewrite {
		must.Succeed(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want := must.Get(os.ReadFile(file))(t)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -rewrite writes it again):\n%s", file, diff)
	}
}

// load is a workload as far as this package knows one.
type load struct {
	Name string  `json:"name"`
	Seed uint64  `json:"seed"`
	Size int     `json:"size"`
	Zipf float64 `json:"zipf"`
}

// sample is a report with one of everything.
func sample() *Report {
	least, most, ratio := 600_000.0, 0.2, 1.5
	delay, spread := 20.0, 1.15
	work := load{Name: "small-inserts", Seed: math.MaxUint64, Size: 200, Zipf: 1.1}
	lanes := map[string]float64{"writers": 16, "batch": 5000, "size": 200, "namespaces": 4}
	return &Report{
		Format: 1, Started: time.Date(2026, 11, 22, 9, 30, 0, 0, time.UTC), Seed: 1,
		Command: []string{"replicator", "bench", "goals", "--target", "it's $HOME"},
		Machine: Machine{
			OS: "linux", Arch: "amd64", CPU: "Example CPU @ 2.50GHz", Cores: 2, Memory: 8 << 30,
			Kernel: "6.1.0", Go: "go1.26.0", Version: "v0.4.0",
		},
		Runs: []Run{
			{
				Kind: "pipeline", Name: "pipeline/small-inserts/memory", Preset: "small-inserts", Source: End{Kind: EndMemory}, Target: End{Kind: EndDiscard},
				Settings: lanes, Workload: work, Ops: 1_000_000, Bytes: 250_000_000, Rounds: []float64{0.51, 0.5, 0.62},
				CPUSeconds: 0.93, AllocsPerOp: 0.0312, BytesPerOp: 12.5, PeakRSS: 320 << 20, BaseRSS: 200 << 20,
			},
			{
				Kind: "apply", Name: "apply/updates/set", Preset: "updates", Target: End{Kind: EndEmbedded, Version: "5.0", Members: 1},
				Settings: lanes, Workload: work, Ops: 100_000, Bytes: 21_000_000, Rounds: []float64{2, 2.1},
				CPUSeconds: 3.2, AllocsPerOp: 41.27, BytesPerOp: 9120, PeakRSS: 180 << 20, BaseRSS: 100 << 20,
				Notes: []string{"the embedded set takes most of the time, so this says how fast it is and little about what writes to it; a real server does better"},
			},
			{
				Kind: "apply", Name: "apply/hot/a very long name of what was varied in this run of many words", Preset: "hot", Target: End{Kind: EndNull},
				Settings: map[string]float64{"writers": 16, "rate": 0.5}, Workload: work, Ops: 100_000, Bytes: 21_000_000, Rounds: []float64{0.15},
				CPUSeconds: 0.2, AllocsPerOp: 0.5, BytesPerOp: 420, PeakRSS: 180 << 20,
			},
			{
				Kind: "mirror", Name: "mirror/mixed", Preset: "mixed", Settings: map[string]float64{"rate": 1000},
				Source: End{Kind: EndReal, Version: "8.0.4", Members: 3}, Target: End{Kind: EndReal, Version: "8.0.4", Members: 1},
				Workload: work, Ops: 10_000, Bytes: 2_400_000, Rounds: []float64{10},
				CPUSeconds: 1.5, AllocsPerOp: 80, BytesPerOp: 12_000,
				Latencies: map[string]Latency{
					"commit-to-applied": {Count: 10_000, P50: 0.0021, P90: 0.004, P99: 0.0131, P999: 0.024, Max: 1.2, Mean: 0.0025},
					"acknowledged":      {Count: 10_000, P50: 0.00081, P90: 0.001, P99: 0.002, P999: 0.004, Max: 0.0101, Mean: 0.0009},
				},
			},
		},
		Goals: []Goal{
			{Name: "applier to a null network target", Want: "at least 600,000 ops/s", Measured: 666_666.7, Unit: "ops/s", Least: &least},
			{Name: "allocations of the pipeline", Want: "at most 0.2 per entry", Measured: 0.0312, Unit: "allocs/entry", Most: &most},
			{Name: "apply / ceiling: updates", Want: "at least 1.5 × what 16 goroutines of the plain driver do", Measured: 1.1, Unit: "×", Least: &ratio, Embedded: true},
			{Name: "cost and namespaces", Want: "flat up to 10,000 collections, within 15 %", Measured: 1.31, Unit: "dearest/cheapest", Most: &spread},
			{Name: "mirror at 1,000 ops/s", Want: "p99 commit-to-applied at most 20 ms above the acknowledged write's", Measured: 11.1, Unit: "ms", Most: &delay},
			{Name: "catch-up / MongoShake", Want: "at least 5 ×", Skipped: "the harness runs no other tool; docs/performance.md has what is known"},
		},
	}
}

func TestDerived(t *testing.T) {
	for _, c := range []struct {
		rounds      []float64
		median, ops float64
	}{
		{nil, 0, 0},
		{[]float64{2}, 2, 50},
		{[]float64{4, 1}, 2.5, 40},
		{[]float64{9, 2, 1}, 2, 50},
		{[]float64{1, 9, 3, 1}, 2, 50},
		{[]float64{0, 0, 5}, 0, 0},
	} {
		r := Run{Ops: 100, Bytes: 3e6, Rounds: c.rounds, CPUSeconds: 0.5}
		before := append([]float64(nil), c.rounds...)
		if got := r.Median(); got != c.median {
			t.Errorf("%v: median %v, want %v", c.rounds, got, c.median)
		}
		if got := r.OpsPerSecond(); got != c.ops {
			t.Errorf("%v: %v ops/s, want %v", c.rounds, got, c.ops)
		}
		if got, want := r.MBPerSecond(), c.ops*3/100; math.Abs(got-want) > 1e-9 {
			t.Errorf("%v: %v MB/s, want %v", c.rounds, got, want)
		}
		if got := r.CPUPerMillion(); got != 5000 {
			t.Errorf("%v: %v CPU s/M ops, want 5000", c.rounds, got)
		}
		if diff := cmp.Diff(before, c.rounds); diff != "" {
			t.Errorf("the rounds were changed: %s", diff)
		}
	}
}

func TestVerdict(t *testing.T) {
	at := func(v float64) *float64 { return &v }
	for _, c := range []struct {
		goal Goal
		met  bool
		want string
	}{
		{Goal{Measured: 2, Least: at(2)}, true, "met"},
		{Goal{Measured: 1.99, Least: at(2)}, false, "not met"},
		{Goal{Measured: 2, Most: at(2)}, true, "met"},
		{Goal{Measured: 2.01, Most: at(2)}, false, "not met"},
		{Goal{Measured: 2, Least: at(1), Most: at(3)}, true, "met"},
		{Goal{Measured: 4, Least: at(1), Most: at(3)}, false, "not met"},
		{Goal{Measured: 2}, false, "not met"},
		{Goal{Measured: math.NaN(), Most: at(3)}, false, "not met"},
		{Goal{Measured: 2, Least: at(1), Embedded: true}, true, "embedded, no limit"},
		{Goal{Measured: 2, Least: at(1), Skipped: "no server"}, false, "skipped: no server"},
	} {
		if got := c.goal.Met(); got != c.met {
			t.Errorf("%+v: met is %v", c.goal, got)
		}
		if got := c.goal.Verdict(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.goal, got, c.want)
		}
	}
}

func TestFigure(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 1: "1", 0.2: "0.2", 1.5: "1.5", 1.256: "1.26", 9.999: "10", 12.34: "12.3", 99.96: "100", 123.4: "123",
		1000: "1,000", 1_234_567.8: "1,234,568", -3.14: "-3.14", -1234: "-1,234", 0.0312: "0.031", 0.00012345: "0.000123", 1e-12: "0",
	} {
		if got := Figure(v); got != want {
			t.Errorf("%v is shown as %s, want %s", v, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Float64Range(-1e15, 1e15).Draw(t, "v")
		shown := Figure(v)
		got, err := strconv.ParseFloat(strings.ReplaceAll(shown, ",", ""), 64)
		if err != nil || strings.ContainsAny(shown, "eE") {
			t.Fatalf("%v is shown as %s: %v", v, shown, err)
		}
		if math.Abs(got-v) > 0.005*math.Abs(v)+0.0005 {
			t.Fatalf("%v is shown as %s", v, shown)
		}
	})
}

func TestDuration(t *testing.T) {
	for v, want := range map[float64]string{0: "0 s", 0.0000012: "1.2 µs", 0.00081: "810 µs", 0.0131: "13.1 ms", 1.2: "1.2 s", 1200: "1,200 s"} {
		if got := Duration(v); got != want {
			t.Errorf("%v s is shown as %s, want %s", v, got, want)
		}
	}
}

func TestTable(t *testing.T) {
	var out strings.Builder
	must.Succeed(t, sample().Table(&out))
	golden(t, "table.txt", out.String())
	for line := range strings.Lines(out.String()) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > pageWidth {
			t.Errorf("%d characters: %s", n, line)
		}
	}
}

// TestWrap: nothing of a text is lost, and no line is longer than it has to be.
func TestWrap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.StringMatching(`[a-zé×]{1,12}`), 1, 12).Draw(t, "words")
		most := rapid.IntRange(12, 30).Draw(t, "most")
		lines := wrap(strings.Join(words, " "), most)
		if diff := cmp.Diff(strings.Join(words, " "), strings.Join(lines, " ")); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
		for i, line := range lines {
			if n := len([]rune(line)); n > most {
				t.Fatalf("%d characters, at most %d: %q", n, most, line)
			}
			if i > 0 {
				next, _, _ := strings.Cut(line, " ")
				if n := len([]rune(lines[i-1] + " " + next)); n <= most {
					t.Fatalf("%q has room for %q", lines[i-1], next)
				}
			}
		}
	})
}
