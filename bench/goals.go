package bench

import (
	"fmt"
	"slices"

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
	mostBehind      = 20        // ms behind the acknowledgement, p99
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

// leastRatio adds a goal about how much faster a is than b. A ratio of an embedded set
// and a real server says nothing, and is not given.
func (s *suite) leastRatio(name, want string, a, b *result.Run, least float64) {
	if x, y := embedded(a), embedded(b); x != y {
		s.skip(name, want, fmt.Sprintf("no ratio of embedded and real ends: %s (%s to %s), %s (%s to %s)", a.Name, a.Source, a.Target, b.Name, b.Source, b.Target))
		return
	}
	s.least(name, want, "×", ratio(a, b), least, embedded(a, b))
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

func embedded(runs ...*result.Run) bool {
	for _, r := range runs {
		if r.Source == embeddedEnd || r.Target == embeddedEnd {
			return true
		}
	}
	return false
}

// embeddedEnd is what Run.Source and Run.Target say of an embedded set.
const embeddedEnd = "embedded"
