package report

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/bench/result"
)

// TestLines: which runs make a line.
func TestLines(t *testing.T) {
	r := func(preset, target string, pace float64, settings map[string]float64) taken {
		var to result.End
		if err := to.UnmarshalText([]byte(target)); err != nil {
			t.Fatal(err)
		}
		one := run("apply", preset, result.End{}, to, pace, settings)
		one.Rounds = one.Rounds[:1]
		return taken{run: &one}
	}
	with := func(writers float64, more ...any) map[string]float64 {
		m := map[string]float64{"writers": writers}
		for i := 0; i < len(more); i += 2 {
			m[more[i].(string)] = more[i+1].(float64)
		}
		return m
	}
	for _, c := range []struct {
		name string
		runs []taken
		want map[string][]float64 // x, y, low, high of each point
	}{
		{"one value is no line", []taken{r("mixed", "null", 10, with(1)), r("mixed", "null", 20, with(1))}, map[string][]float64{}},
		{"two are, in order", []taken{r("mixed", "null", 20, with(2)), r("mixed", "null", 10, with(1))}, map[string][]float64{
			"apply mixed → null": {1, 10, 10, 10, 2, 20, 20, 20},
		}},
		{"measured again", []taken{r("mixed", "null", 20, with(2)), r("mixed", "null", 10, with(1)), r("mixed", "null", 30, with(1)), r("mixed", "null", 11, with(1))}, map[string][]float64{
			"apply mixed → null": {1, 11, 10, 30, 2, 20, 20, 20},
		}},
		{"another number of operations", []taken{r("mixed", "null", 20, with(2, "ops", 5.0)), r("mixed", "null", 10, with(1, "ops", 6.0))}, map[string][]float64{
			"apply mixed → null": {1, 10, 10, 10, 2, 20, 20, 20},
		}},
		{"other presets and ends", []taken{
			r("mixed", "null", 20, with(2)), r("mixed", "null", 10, with(1)), r("hot", "null", 5, with(1)),
			r("mixed", "real 8.0 (1 member)", 2, with(2)), r("mixed", "real 8.0 (1 member)", 1, with(1)),
		}, map[string][]float64{
			"apply mixed → null":                {1, 10, 10, 10, 2, 20, 20, 20},
			"apply mixed → real 8.0 (1 member)": {1, 1, 1, 1, 2, 2, 2, 2},
		}},
		{"another setting", []taken{
			r("mixed", "null", 20, with(2, "flush", 10.0, "size", 1.0)), r("mixed", "null", 10, with(1, "flush", 10.0, "size", 1.0)),
			r("mixed", "null", 40, with(2, "flush", 1000.0, "size", 1.0)), r("mixed", "null", 30, with(1, "flush", 1000.0, "size", 1.0)),
		}, map[string][]float64{
			"apply mixed → null, flush 10":    {1, 10, 10, 10, 2, 20, 20, 20},
			"apply mixed → null, flush 1,000": {1, 30, 30, 30, 2, 40, 40, 40},
		}},
		{"without the setting, or without a round", []taken{
			r("mixed", "null", 20, nil), r("mixed", "null", 10, with(1)), {run: &result.Run{Kind: "apply", Settings: with(2), Ops: 3}},
		}, map[string][]float64{}},
	} {
		got := map[string][]float64{}
		for _, l := range sweeps[0].lines(c.runs) {
			for _, p := range l.points {
				for _, v := range []float64{p.x, p.y, p.low, p.high} {
					got[l.name] = append(got[l.name], math.Round(v*1e6)/1e6)
				}
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// TestTicks: an axis begins and ends at a tick, not inside of the values, and has no
// more ticks than can be read.
func TestTicks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		low := rapid.Float64Range(1e-6, 1e9).Draw(t, "low")
		high := low * rapid.Float64Range(1, 1e5).Draw(t, "times")
		linear := linearTicks(high)
		if last := linear[len(linear)-1].Value; linear[0].Value != 0 || last < high*(1-1e-9) || len(linear) < 3 || len(linear) > 9 {
			t.Fatalf("linear to %v: %v", high, linear)
		}
		log := logTicks(low, high)
		if first, last := log[0].Value, log[len(log)-1].Value; first > low*(1+1e-6) || last < high*(1-1e-6) || len(log) > 13 {
			t.Fatalf("logarithmic from %v to %v: %v", low, high, log)
		}
		for _, ticks := range [][]float64{values(linear), values(log)} {
			if !slices.IsSorted(ticks) {
				t.Fatalf("not ascending: %v", ticks)
			}
		}
	})
}

func values(ticks fixed) []float64 {
	list := make([]float64, 0, len(ticks))
	for _, t := range ticks {
		list = append(list, t.Value)
	}
	return list
}

func TestLabels(t *testing.T) {
	at := func(versions ...string) []*result.Report {
		var list []*result.Report
		for _, v := range versions {
			r := sample()
			r.Machine.Version = v
			list = append(list, r)
		}
		return list
	}
	later := at("v1", "v1")
	later[1].Started = later[1].Started.AddDate(0, 0, 1)
	for _, c := range []struct {
		reports []*result.Report
		want    []string
	}{
		{at("v1"), []string{""}},
		{at("v1", "v2"), []string{"v1", "v2"}},
		{later, []string{"2026-11-22 09:30", "2026-11-23 09:30"}},
		{at("v1", "v1"), []string{"2026-11-22 09:30, number 1", "2026-11-22 09:30, number 2"}},
		{at("v1", ""), []string{"2026-11-22 09:30, number 1", "2026-11-22 09:30, number 2"}},
	} {
		if diff := cmp.Diff(c.want, labels(c.reports)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}
