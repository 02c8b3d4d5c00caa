package report

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/oplogrep/replicator/bench/result"
)

// goals is a chart of measurements relative to their goals, so that values above 1
// meet the goal, whether it is a minimum or a maximum.
func goals(r *result.Report) (chart, bool) {
	b := &barChart{
		title: "Goals", axis: "times as good as the goal wants", threshold: true,
		kinds: []barKind{{"met", blue}, {"not met", vermillion}, {"embedded, not held", grey}},
	}
	for i := range r.Goals {
		g := &r.Goals[i]
		value, want, ok := good(g)
		if !ok {
			continue
		}
		kind := 1
		switch {
		case g.Embedded:
			kind = 2
		case g.Met():
			kind = 0
		}
		b.bars = append(b.bars, bar{name: g.Name, figure: oneLine(g.Figure()) + ", " + want, value: value, kind: kind})
	}
	return chart{Name: "goals", Title: "Goals", Alt: b.alt(), picture: b}, len(b.bars) > 0
}

// good returns how many times better than its goal a measurement is. Without a
// measurement, or with a threshold of zero, there is nothing to draw.
func good(g *result.Goal) (value float64, want string, ok bool) {
	switch {
	case g.Skipped != "" || math.IsNaN(g.Measured):
		return 0, "", false
	case g.Least != nil && *g.Least > 0:
		return max(g.Measured / *g.Least, leastShown), "at least " + result.Figure(*g.Least), true
	case g.Least == nil && g.Most != nil && *g.Most > 0:
		want = "at most " + result.Figure(*g.Most)
		if g.Measured <= *g.Most/mostShown {
			return mostShown, want, true
		}
		return max(*g.Most/g.Measured, leastShown), want, true
	}
	return 0, "", false
}

// ceiling is a chart of the applier and the plain driver, on the same work and target.
func ceiling(r *result.Report) (chart, bool) {
	b := &barChart{
		title: "The applier and the plain driver", axis: "operations per second",
		kinds: []barKind{{"applier", blue}, {"16 goroutines of the plain driver", vermillion}},
	}
	if n := writers(r); n != "" {
		b.kinds[1].name = n + " goroutines of the plain driver"
	}
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
		ours, theirs := paceBar("applier", apply, 0), paceBar("plain driver", plain, 1)
		ours.group = apply.Preset + " " + apply.Ends()
		ours.figure += fmt.Sprintf(", %s × the plain driver", result.Figure(apply.OpsPerSecond()/plain.OpsPerSecond()))
		b.bars = append(b.bars, ours, theirs)
	}
	return chart{Name: "ceiling", Title: b.title, Alt: b.alt(), picture: b}, len(b.bars) > 0
}

// partner is the run of the plain driver that did the same: it comes next to the
// applier's, where there are several.
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

// writers is how many the plain driver had, empty if that differs.
func writers(r *result.Report) string {
	found := ""
	for i := range r.Runs {
		if n, ok := r.Runs[i].Settings["writers"]; ok && r.Runs[i].Kind == "ceiling" {
			s := result.Figure(n)
			if found != "" && found != s {
				return ""
			}
			found = s
		}
	}
	return found
}

func paceBar(name string, r *result.Run, kind int) bar {
	p := rounds(r, false)
	return bar{name: name, figure: result.Figure(p.y) + " ops/s", value: p.y, low: p.low, high: p.high, kind: kind}
}

// whole is a chart of all runs of some kinds, for those that there are few of.
func whole(r *result.Report, name, title string, kinds ...string) (chart, bool) {
	b := &barChart{title: title, axis: "operations per second"}
	colors, ends := map[string]int{}, ""
	for i := range r.Runs {
		run := &r.Runs[i]
		if !slices.Contains(kinds, run.Kind) || run.OpsPerSecond() == 0 {
			continue
		}
		if _, ok := colors[run.Kind]; !ok {
			colors[run.Kind] = len(b.kinds)
			b.kinds = append(b.kinds, barKind{run.Kind, palette[len(b.kinds)%len(palette)]})
		}
		next := paceBar(run.Name, run, colors[run.Kind])
		// Runs with different ends are not comparable: each group names its ends.
		if ends != run.Ends() {
			ends = run.Ends()
			next.group = ends
		}
		b.bars = append(b.bars, next)
	}
	return chart{Name: name, Title: title, Alt: b.alt(), picture: b}, len(b.bars) > 1
}

// latencies is a chart of percentiles.
func latencies(r *result.Report) (chart, bool) {
	l := &lineChart{
		title: "Latencies", x: "percentile", y: "milliseconds", logY: true,
		names: []string{"50", "90", "99", "99.9", "max"},
	}
	measured := 0
	for i := range r.Runs {
		if len(r.Runs[i].Latencies) > 0 {
			measured++
		}
	}
	for i := range r.Runs {
		run := &r.Runs[i]
		for _, name := range slices.Sorted(maps.Keys(run.Latencies)) {
			d := run.Latencies[name]
			series := line{name: name}
			if measured > 1 {
				series.name = run.Name + " " + name
			}
			for x, seconds := range []float64{d.P50, d.P90, d.P99, d.P999, d.Max} {
				// A clock of whole milliseconds makes zeros, which a logarithmic
				// axis does not have.
				if ms := 1e3 * seconds; ms > 0 {
					series.points = append(series.points, point{x: float64(x), y: ms, low: ms, high: ms})
				}
			}
			if len(series.points) > 0 {
				l.lines = append(l.lines, series)
			}
		}
	}
	return chart{Name: "latencies", Title: "Latencies", Alt: l.alt(), picture: l}, len(l.lines) > 0
}
