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
	leastHot        = 5         // of the ceiling
	leastCatchUp    = 1         // of a secondary
	mostSpread      = 1.15      // the dearest of several costs to the cheapest
	mostGrowth      = 32        // MiB, for four times the backlog
	mostBehind      = 20        // ms after the acknowledgement by a majority, p99
)

// least adds a goal that wants a figure to be at least so much.
func (s *suite) least(name, want, unit string, measured, least float64, embedded bool) {
	s.report.Goals = append(s.report.Goals, result.Goal{
		Name: name, Want: want, Unit: unit, Measured: measured, Least: &least, Embedded: embedded,
	})
}

// most adds a goal that wants a figure to be at most so much.
func (s *suite) most(name, want, unit string, measured, most float64, embedded bool) {
	s.report.Goals = append(s.report.Goals, result.Goal{
		Name: name, Want: want, Unit: unit, Measured: measured, Most: &most, Embedded: embedded,
	})
}

// leastRatio adds a goal about how much faster a is than b. Of ends that are no measure
// of each other no ratio is given: the goal says why.
func (s *suite) leastRatio(name, want string, a, b *result.Run, least float64) {
	if why := noRatio(a, b); why != "" {
		s.skip(name, want, why)
		return
	}
	s.least(name, want, "×", ratio(a, b), least, result.OnEmbedded(a, b))
}

// noRatio says why figures of the runs are not held against each other; empty if they
// are. Embedded sets are no measure of real servers, nor is one version of another.
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

// add adds a run to the report, and tells of it.
func (s *suite) add(r *result.Run) *result.Run {
	s.report.Runs = append(s.report.Runs, *r)
	_, _ = fmt.Fprintf(s.cfg.Progress, "%-44s %12.0f ops/s\n", r.Name, r.OpsPerSecond())
	return r
}

// ratio is how much faster a than b.
func ratio(a, b *result.Run) float64 {
	if b.OpsPerSecond() == 0 {
		return 0
	}
	return a.OpsPerSecond() / b.OpsPerSecond()
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
