package result

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestCompare: what differs after a change to the sample, a line each.
func TestCompare(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(old, now *Report)
		want   []string
	}{
		{"nothing", func(_, _ *Report) {}, nil},
		{"pace is shown, and has no limit", func(_, now *Report) { now.Runs[0].Rounds = []float64{5} }, []string{
			"pipeline/small-inserts/memory ops/s 1,960,784 200,000",
		}},
		{"what the harness's own rounds do not change", func(_, now *Report) {
			now.Runs[0].Rounds = []float64{0.51}
			now.Machine.Version = "v0.5.0"
			now.Seed = 7
		}, nil},
		{"allocations within the limit", func(_, now *Report) { now.Runs[2].AllocsPerOp = 0.55 }, []string{
			"apply/hot/a very long name of what was varied in this run of many words allocs/op 0.5 0.55",
		}},
		{"allocations beyond it", func(_, now *Report) { now.Runs[2].AllocsPerOp = 0.56 }, []string{
			"WORSE apply/hot/a very long name of what was varied in this run of many words allocs/op 0.5 0.56",
		}},
		{"allocations of a command more or less", func(old, now *Report) {
			old.Runs[2].AllocsPerOp, now.Runs[2].AllocsPerOp = 0.07, 0.11
		}, []string{
			"apply/hot/a very long name of what was varied in this run of many words allocs/op 0.07 0.11",
		}},
		{"fewer allocations", func(_, now *Report) { now.Runs[2].AllocsPerOp = 0.1 }, []string{
			"apply/hot/a very long name of what was varied in this run of many words allocs/op 0.5 0.1",
		}},
		{"allocations of the runtime", func(_, now *Report) { now.Runs[0].AllocsPerOp = 0.041 }, []string{
			"pipeline/small-inserts/memory allocs/op 0.031 0.041",
		}},
		{"an allocation where there was none", func(old, now *Report) {
			old.Runs[0].AllocsPerOp, now.Runs[0].AllocsPerOp = 0, 0.01
		}, []string{"WORSE pipeline/small-inserts/memory allocs/op 0 0.01"}},
		{"allocations that embedded ends and time take part in", func(_, now *Report) {
			now.Runs[1].AllocsPerOp, now.Runs[3].AllocsPerOp = 400, 400
		}, []string{
			"apply/updates/set allocs/op 41.3 400 (no limit: an end is embedded)",
			"mirror/mixed allocs/op 80 400 (no limit: it is paced)",
		}},
		{"latencies and memory", func(_, now *Report) {
			now.Runs[3].Latencies = map[string]Latency{"acknowledged": {P50: 0.00081, P99: 0.5}, "commit-to-applied": now.Runs[3].Latencies["commit-to-applied"]}
			now.Runs[1].PeakRSS *= 2
			now.Runs[2].PeakRSS = 0
		}, []string{
			"apply/updates/set peak RSS MiB 180 360",
			"mirror/mixed acknowledged p99 ms 2 500",
		}},
		{"a latency that vanished", func(_, now *Report) {
			now.Runs[3].Latencies = map[string]Latency{"commit-to-applied": now.Runs[3].Latencies["commit-to-applied"]}
		}, []string{"WORSE mirror/mixed acknowledged: the newer report does not have this latency"}},
		{"a run that vanished, and one that is new", func(_, now *Report) { now.Runs[0].Name = "pipeline/new" }, []string{
			"WORSE pipeline/small-inserts/memory run: the newer report does not have it",
			"pipeline/new run: the older report does not have it",
		}},
		{"one of two runs of a name vanished", func(old, _ *Report) { old.Runs = append(old.Runs, old.Runs[0]) }, []string{
			"WORSE pipeline/small-inserts/memory run: the newer report does not have it",
		}},
		{"runs that were told different things", func(_, now *Report) {
			now.Runs[0].Target = End{Kind: EndNull}
			now.Runs[1].Settings = map[string]float64{"writers": 8, "batch": 5000, "size": 200, "flush": 100}
			now.Runs[2].Workload = load{Name: "small-inserts", Seed: 1, Size: 200, Zipf: 1.1}
			now.Runs[3].Workload = nil
			for i := range now.Runs {
				now.Runs[i].AllocsPerOp = 1e6
			}
		}, []string{
			"pipeline/small-inserts/memory run: not the same measurement, not compared: target: discard, now null",
			"apply/updates/set run: not the same measurement, not compared: flush: none, now 100; namespaces: 4, now none; writers: 16, now 8",
			"apply/hot/a very long name of what was varied in this run of many words run: not the same measurement, not compared: workload's seed: 18446744073709551615, now 1",
			"mirror/mixed run: not the same measurement, not compared: workload's name: small-inserts, now none; workload's seed: 18446744073709551615, now none; workload's size: 200, now none; workload's zipf: 1.1, now none",
		}},
		{"settings that only one program knows, not set", func(old, now *Report) {
			old.Runs[0].Workload = map[string]any{"name": "n", "ids": "", "zipf": 0, "distinct": false}
			now.Runs[0].Workload = map[string]any{"name": "n", "seed": 0}
		}, nil},
		{"an embedded set, and now a real server", func(_, now *Report) {
			now.Runs[1].Target = End{Kind: EndReal, Version: "5.0.7", Members: 1}
			now.Runs[1].Rounds, now.Runs[1].AllocsPerOp = []float64{0.1}, 1e6
			now.Goals[2].Embedded, now.Goals[2].Measured = false, 99
		}, []string{
			"apply/updates/set run: embedded sets and real servers are no measure of each other, not compared: target: embedded 5.0 (1 member), now real 5.0.7 (1 member)",
			"apply / ceiling: updates goal: not the same goal, not compared: an end is embedded in one of them",
		}},
		{"a set of fewer members, and ends that were not told", func(_, now *Report) {
			now.Runs[1].Target = End{Kind: EndEmbedded}
			now.Runs[3].Source.Members = 1
		}, []string{
			"apply/updates/set run: not the same measurement, not compared: target: embedded 5.0 (1 member), now embedded",
			"mirror/mixed run: not the same measurement, not compared: source: real 8.0.4 (3 members), now real 8.0.4 (1 member)",
		}},
		{"another machine", func(_, now *Report) {
			now.Machine.Cores, now.Machine.Memory = 64, 7<<30
			now.Runs[0].Rounds, now.Runs[0].AllocsPerOp = []float64{9}, 3
			now.Goals[0].Measured, now.Goals[3].Measured = 1, 9
		}, []string{
			"machine: another machine: pace, CPU time, bytes, peak, latencies, and goals in units of time or memory are not compared (cores: 2, now 64; memory: 8 GiB, now 7 GiB)",
			"WORSE pipeline/small-inserts/memory allocs/op 0.031 3",
			"WORSE cost and namespaces goal, dearest/cheapest 1.31 9",
		}},
		{"another kernel, a little less memory", func(_, now *Report) {
			now.Machine.Kernel, now.Machine.Memory = "6.2.0", 8<<30-1<<20
			now.Runs[0].Rounds = []float64{5}
		}, []string{
			"machine: figures may differ for this alone: kernel: 6.1.0, now 6.2.0",
			"pipeline/small-inserts/memory ops/s 1,960,784 200,000",
		}},
		{"goals: the machine's, allocations, embedded, and a ratio within its limit", func(_, now *Report) {
			now.Goals[0].Measured, now.Goals[1].Measured = 100, 0.3
			now.Goals[2].Measured, now.Goals[3].Measured = 0.1, 1.8
		}, []string{
			"applier to a null network target goal, ops/s 666,667 100 (was met, is not now)",
			"WORSE allocations of the pipeline goal, allocs/entry 0.031 0.3 (was met, is not now)",
			"apply / ceiling: updates goal, × 1.1 0.1 (embedded, no limit)",
			"cost and namespaces goal, dearest/cheapest 1.31 1.8",
		}},
		{"ratios that rise or fall too much", func(old, now *Report) {
			old.Goals[2].Embedded, now.Goals[2].Embedded = false, false
			now.Goals[2].Measured, now.Goals[3].Measured = 0.65, 1.84
		}, []string{
			"WORSE apply / ceiling: updates goal, × 1.1 0.65",
			"WORSE cost and namespaces goal, dearest/cheapest 1.31 1.84",
		}},
		{"ratios that get better", func(old, now *Report) {
			old.Goals[2].Embedded, now.Goals[2].Embedded = false, false
			now.Goals[2].Measured, now.Goals[3].Measured = 9, 1
		}, []string{
			"apply / ceiling: updates goal, × 1.1 9 (is met now)",
			"cost and namespaces goal, dearest/cheapest 1.31 1 (is met now)",
		}},
		{"goals that are not what they were", func(old, now *Report) {
			easier := 0.5
			now.Goals[0].Least, now.Goals[0].Measured = &easier, 10
			now.Goals[1].Unit = "allocs/op"
			now.Goals[2].Embedded = false
			now.Goals[3].Most, now.Goals[3].Least = nil, &easier
			old.Goals[4].Name = "mirror at 10 ops/s"
			now.Goals[5].Skipped = "for another reason"
		}, []string{
			"applier to a null network target goal, ops/s 666,667 10 (its threshold was changed)",
			"allocations of the pipeline goal: not the same goal, not compared: unit: allocs/entry, now allocs/op",
			"apply / ceiling: updates goal: not the same goal, not compared: an end is embedded in one of them",
			"cost and namespaces goal: not the same goal, not compared: more was better in one of them, and less in the other",
			"WORSE mirror at 10 ops/s goal: the newer report does not have it",
			"mirror at 1,000 ops/s goal: the older report does not have it",
		}},
		{"goals skipped before, and now", func(old, now *Report) {
			old.Goals[5].Skipped = ""
			old.Goals[0].Skipped = "no time"
			now.Goals[1].Skipped = "no server"
		}, []string{
			"applier to a null network target goal: it was not measured before: no time",
			"WORSE allocations of the pipeline goal: it was measured, and is not now: no server",
			"WORSE catch-up / MongoShake goal: it was measured, and is not now: the harness runs no other tool; docs/performance.md has what is known",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, now := sample(), sample()
			c.change(old, now)
			var got []string
			for _, change := range Compare(old, now) {
				got = append(got, changeLine(change))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func changeLine(c Change) string {
	line := strings.TrimSpace(verdict(c.Worse) + " " + strings.TrimSpace(c.Name+" "+c.Figure))
	if c.Uncompared {
		return line + ": " + c.Note
	}
	line += " " + Figure(c.Old) + " " + Figure(c.New)
	if c.Note != "" {
		line += " (" + c.Note + ")"
	}
	return line
}

// TestCompareComplete: a report that lacks anything of the old one is worse, whatever
// its order, and the same in another order is not.
func TestCompareComplete(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench.json")
	if err := sample().Write(file); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		old, err := Read(file)
		if err != nil {
			t.Fatal(err)
		}
		now := sample()
		now.Runs = rapid.Permutation(now.Runs).Draw(t, "runs")
		now.Goals = rapid.Permutation(now.Goals).Draw(t, "goals")
		runs := rapid.IntRange(0, len(now.Runs)).Draw(t, "runs left")
		goals := rapid.IntRange(0, len(now.Goals)).Draw(t, "goals left")
		lost := len(now.Runs) - runs + len(now.Goals) - goals
		now.Runs, now.Goals = now.Runs[:runs], now.Goals[:goals]
		changes := Compare(old, now)
		for _, c := range changes {
			if !c.Worse || !c.Uncompared {
				t.Fatalf("%+v", c)
			}
		}
		if len(changes) != lost {
			t.Fatalf("%d changes, want %d: %+v", len(changes), lost, changes)
		}
	})
}

func TestWriteChanges(t *testing.T) {
	old, now := sample(), sample()
	now.Machine.Kernel = "6.2.0"
	now.Runs[0].Rounds, now.Runs[0].AllocsPerOp = []float64{0.4}, 0.25
	now.Runs[1].AllocsPerOp = 50
	now.Runs[2].Workload = load{Name: "small-inserts", Size: 4000, Seed: 1}
	now.Runs = now.Runs[:3]
	now.Goals[0].Measured, now.Goals[1].Measured = 500_000, 0
	old.Goals[3].Measured = -1
	var out strings.Builder
	for _, changes := range [][]Change{Compare(old, now), Compare(old, old), {{Name: "a/run", Figure: "ops/s", Old: 2, New: 4000}}} {
		if err := WriteChanges(&out, changes); err != nil {
			t.Fatal(err)
		}
		out.WriteString("----\n")
	}
	golden(t, "changes.txt", out.String())
}
