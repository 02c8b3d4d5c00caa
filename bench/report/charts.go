package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/oplogrep/replicator/bench/result"
)

// chart is a bar chart.
type chart struct {
	Title, Axis string
	Bars        []bar
}

// bar is one of a chart, between its name and its figure in words.
type bar struct {
	// Group begins a new group with this headline, unless it is empty.
	Group, Name, Figure string
	// Class is the colour's in the page: met or missed; empty is neutral.
	Class string
	// Width is the share of the width that the bar takes.
	Width float64

	value float64
}

// fill sets the widths relative to the largest value.
func (c *chart) fill() {
	most := 0.0
	for i := range c.Bars {
		most = max(most, c.Bars[i].value)
	}
	for i := range c.Bars {
		if most > 0 {
			c.Bars[i].Width = c.Bars[i].value / most
		}
	}
}

// goalWidth is the width of a bar that just meets its goal.
const goalWidth = 0.5

// goals is a chart of measurements relative to their goals: the longer the better, whether a
// goal is a minimum or a maximum.
func goals(r *result.Report) chart {
	c := chart{Title: "Goals", Axis: "a bar that reaches the middle meets its goal"}
	for i := range r.Goals {
		g := &r.Goals[i]
		if value, want, ok := good(g); ok {
			c.Bars = append(c.Bars, bar{Name: g.Name, Figure: g.Figure() + ", " + want, Class: class(g), Width: min(1, goalWidth*value)})
		}
	}
	return c
}

// good returns how many times better than its goal a measurement is. Without a
// measurement, or with a threshold of zero, there is nothing to draw.
func good(g *result.Goal) (value float64, want string, ok bool) {
	switch {
	case g.Skipped != "" || math.IsNaN(g.Measured):
		return 0, "", false
	case g.Least != nil && *g.Least > 0:
		return max(0, g.Measured / *g.Least), "at least " + result.Figure(*g.Least), true
	case g.Least == nil && g.Most != nil && *g.Most > 0:
		return *g.Most / max(g.Measured, *g.Most/1000), "at most " + result.Figure(*g.Most), true
	}
	return 0, "", false
}

// charts are those of a report's runs that have at least two bars.
func charts(r *result.Report) []chart {
	all := []chart{
		ceiling(r), whole(r, "Catching up with a backlog", "catch-up", "secondary"), whole(r, "Copies", "clone"),
	}
	for i := range sweeps {
		all = append(all, sweeps[i].chart(r.Runs))
	}
	all = slices.DeleteFunc(all, func(c chart) bool { return len(c.Bars) < 2 })
	for i := range all {
		all[i].fill()
	}
	return all
}

const opsPerSecond = "operations per second, of the median round"

// ceiling is a chart of the applier and the plain driver, on the same work and target.
func ceiling(r *result.Report) chart {
	c := chart{Title: "The applier and the plain driver", Axis: opsPerSecond}
	used := map[*result.Run]bool{}
	for i := range r.Runs {
		apply := &r.Runs[i]
		if apply.Kind != "apply" || apply.OpsPerSecond() == 0 {
			continue
		}
		plain := partner(r, apply, used)
		if plain == nil {
			continue
		}
		used[plain] = true
		ours, theirs := paceBar("applier", apply), paceBar(result.Figure(plain.Settings["writers"])+" goroutines", plain)
		ours.Group = apply.Preset + " " + apply.Ends()
		ours.Figure += fmt.Sprintf(", %s × the plain driver", result.Figure(apply.OpsPerSecond()/plain.OpsPerSecond()))
		c.Bars = append(c.Bars, ours, theirs)
	}
	return c
}

// partner is the run of the plain driver that did the same, nil if there is none.
func partner(r *result.Report, apply *result.Run, used map[*result.Run]bool) *result.Run {
	for i := range r.Runs {
		c := &r.Runs[i]
		if c.Kind == "ceiling" && !used[c] && c.OpsPerSecond() > 0 && c.Preset == apply.Preset && c.Target == apply.Target && c.Ops == apply.Ops &&
			c.Settings["writers"] == apply.Settings["writers"] {
			return c
		}
	}
	return nil
}

func paceBar(name string, r *result.Run) bar {
	return bar{Name: name, Figure: result.Figure(r.OpsPerSecond()) + " ops/s", value: r.OpsPerSecond()}
}

// whole is a chart of all runs of some kinds. Runs with different ends are not comparable:
// each group names its ends.
func whole(r *result.Report, title string, kinds ...string) chart {
	c := chart{Title: title, Axis: opsPerSecond}
	ends := ""
	for i := range r.Runs {
		run := &r.Runs[i]
		if !slices.Contains(kinds, run.Kind) || run.OpsPerSecond() == 0 {
			continue
		}
		next := paceBar(run.Name, run)
		if ends != run.Ends() {
			ends = run.Ends()
			next.Group = ends
		}
		c.Bars = append(c.Bars, next)
	}
	return c
}

// middle returns the run of the median pace.
func middle(runs []*result.Run) *result.Run {
	slices.SortStableFunc(runs, func(a, b *result.Run) int { return cmp.Compare(a.OpsPerSecond(), b.OpsPerSecond()) })
	return runs[len(runs)/2]
}
