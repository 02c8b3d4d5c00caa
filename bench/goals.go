package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/oplogrep/replicator/bench/result"
)

// The goals, for two cores. docs/performance.md says how each is measured.
const (
	leastFromMemory = 1_500_000 // entries/s
	leastOverTCP    = 400_000   // entries/s
	mostAllocs      = 0.2       // per entry
	mostOverBudget  = 64        // MiB
	leastToNull     = 600_000   // ops/s
	leastInserts    = 0.95      // of the ceiling
	leastChanges    = 1.5       // of the ceiling, updates and deletes
	leastMass       = 4         // of the ceiling
	leastHot        = 5         // of the ceiling
	leastCatchUp    = 1         // of a secondary
	leastEqual      = 1.8       // of updates that differ
	mostShare       = 1.5       // µs of CPU of an operation, next to a real target
	mostSpread      = 1.15      // the highest of several costs to the lowest
	mostMany        = 1.5       // the cost of 10,000 collections to that of one
	mostGrowth      = 32        // MiB, for four times the backlog
	leastDuring     = 0.9       // of the throughput without an index build
	leastWithCuts   = 0.98      // of the throughput without cuts
	mostStall       = 50        // ms, p99
	mostDowntime    = 2         // s, the longest
	leastVerify     = 0.8       // of reading both sides
	mostMirrorLag   = 5         // ms after the acknowledgement by a majority, p99
)

// least adds a goal with a minimum for a figure.
func (s *suite) least(name, want, unit string, measured, least float64, embedded bool) {
	s.report.Goals = append(s.report.Goals, result.Goal{
		Name: name, Want: want, Unit: unit, Measured: measured, Least: &least, Embedded: embedded,
	})
}

// most adds a goal with a maximum for a figure.
func (s *suite) most(name, want, unit string, measured, most float64, embedded bool) {
	s.report.Goals = append(s.report.Goals, result.Goal{
		Name: name, Want: want, Unit: unit, Measured: measured, Most: &most, Embedded: embedded,
	})
}

// leastRatio adds a goal with a minimum for the speed of a relative to b. For ends that
// cannot be compared it gives no ratio, and the goal says why.
func (s *suite) leastRatio(name, want string, a, b *result.Run, least float64) {
	if why := noRatio(a, b); why != "" {
		s.skip(name, want, why)
		return
	}
	s.least(name, want, "×", ratio(a, b), least, result.OnEmbedded(a, b))
}

// noRatio returns why figures of the runs cannot be compared; empty if they can.
// Embedded sets cannot be compared with real servers, nor one version with another.
func noRatio(runs ...*result.Run) string {
	what := ""
	other := func(r *result.Run) bool { return !maps.Equal(versions(r), versions(runs[0])) }
	switch {
	case result.Mixed(runs...):
		what = "embedded and real ends"
	case slices.ContainsFunc(runs, other):
		what = "servers of different versions"
	default:
		return ""
	}
	list := make([]string, 0, len(runs))
	for _, r := range runs {
		list = append(list, fmt.Sprintf("%s (%s)", r.Name, r.Ends()))
	}
	return "no ratio of " + what + ": " + strings.Join(list, ", ")
}

// versions are those of a run's sets.
func versions(r *result.Run) map[string]bool {
	found := map[string]bool{}
	for _, end := range []result.End{r.Source, r.Target} {
		if end.Set() {
			found[end.Version] = true
		}
	}
	return found
}

// skip adds a goal that was not measured.
func (s *suite) skip(name, want, why string) {
	s.report.Goals = append(s.report.Goals, result.Goal{Name: name, Want: want, Skipped: why})
}

// add adds a run to the report and reports progress.
func (s *suite) add(r *result.Run) *result.Run {
	s.report.Runs = append(s.report.Runs, *r)
	_, _ = fmt.Fprintf(s.cfg.Progress, "%-44s %12.0f ops/s\n", r.Name, r.OpsPerSecond())
	return r
}

// ratio returns the speed of a relative to b.
func ratio(a, b *result.Run) float64 {
	if b.OpsPerSecond() == 0 {
		return 0
	}
	return a.OpsPerSecond() / b.OpsPerSecond()
}

// cpuRatio returns the CPU time of a per operation, relative to b.
func cpuRatio(a, b *result.Run) float64 {
	if b.CPUSeconds == 0 {
		return 0
	}
	return a.CPUPerMillion() / b.CPUPerMillion()
}

// fastest is the pace of the fastest round, which other work on the machine disturbs
// least.
func fastest(r *result.Run) float64 {
	if len(r.Rounds) == 0 {
		return 0
	}
	return float64(r.Ops) / slices.Min(r.Rounds)
}

// spread is the largest cost of an operation to the smallest, of the fastest rounds.
func spread(runs []*result.Run) float64 {
	var least, most float64
	for i, r := range runs {
		pace := fastest(r)
		if i == 0 || pace < least {
			least = pace
		}
		most = max(most, pace)
	}
	if least == 0 {
		return 0
	}
	return most / least
}
