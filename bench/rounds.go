package bench

import (
	"cmp"
	"slices"

	"github.com/oplogrep/replicator/bench/meter"
	"github.com/oplogrep/replicator/bench/result"
)

// rounds are what the rounds of a run cost.
type rounds []meter.Usage

// into writes them into a run, whose Ops are known. Of the rounds' times it writes all; of
// other figures that of the median round (of an even number, the faster one in the middle);
// of resident memory the largest.
func (r rounds) into(run *result.Run) {
	if len(r) == 0 {
		return
	}
	run.Rounds = make([]float64, len(r))
	for i, u := range r {
		run.Rounds[i] = u.Elapsed.Seconds()
	}
	order := slices.Clone(r)
	slices.SortStableFunc(order, func(a, b meter.Usage) int { return cmp.Compare(a.Elapsed, b.Elapsed) })
	u := order[(len(order)-1)/2]
	run.CPUSeconds = u.CPU.Seconds()
	for _, u := range r {
		if u.PeakRSS-u.BaseRSS >= run.PeakRSS-run.BaseRSS {
			run.PeakRSS, run.BaseRSS = u.PeakRSS, u.BaseRSS
		}
	}
	if run.Ops > 0 {
		run.AllocsPerOp = float64(u.Allocs) / float64(run.Ops)
		run.BytesPerOp = float64(u.Bytes) / float64(run.Ops)
	}
}

// newRun is a run of a workload, with its settings.
func newRun(kind string, c Config) *result.Run {
	w := c.Workload
	settings := map[string]float64{
		"writers": float64(c.Writers), "batch": float64(c.BatchOps),
		"size": float64(w.Size), "namespaces": float64(w.Namespaces),
	}
	if c.FlushDocs > 0 {
		settings["flush"] = float64(c.FlushDocs)
	}
	return &result.Run{
		Kind: kind, Name: kind + "/" + w.Name, Preset: w.Name, Settings: settings, Workload: w,
	}
}
