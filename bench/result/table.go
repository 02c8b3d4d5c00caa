package result

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

const pageWidth = 120 // characters

// Table prints runs as text, and below them the goals if there are any. It is no
// wider than 120 characters unless a name is.
func (r *Report) Table(w io.Writer) error {
	var out strings.Builder
	for _, line := range r.header() {
		paragraph(&out, "", line)
	}
	for _, kind := range r.Kinds() {
		out.WriteString("\n" + kind + "\n")
		r.runs(&out, kind)
	}
	if len(r.Goals) > 0 {
		out.WriteString("\ngoals\n")
		r.goals(&out)
	}
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("print the table of results: %w", err)
	}
	return nil
}

func (r *Report) header() []string {
	var lines []string
	if m := r.Machine.Shown(); m != "" {
		lines = append(lines, m)
	}
	if len(r.Command) > 0 {
		lines = append(lines, "$ "+r.CommandLine())
	}
	return append(lines, fmt.Sprintf("%s, seed %d", r.Started.UTC().Format("2006-01-02 15:04:05 UTC"), r.Seed))
}

// CommandLine is the command as it can be given to a shell again.
func (r *Report) CommandLine() string {
	quoted := make([]string, len(r.Command))
	for i, arg := range r.Command {
		quoted[i] = arg
		if arg == "" || strings.ContainsFunc(arg, special) {
			quoted[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// special reports whether a shell might interpret a character.
func special(c rune) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return false
	}
	return !strings.ContainsRune("-_=/.,:+@%", c)
}

// Kinds are the kinds of runs there are, in the order in which they come first.
func (r *Report) Kinds() []string {
	var kinds []string
	for i := range r.Runs {
		if !slices.Contains(kinds, r.Runs[i].Kind) {
			kinds = append(kinds, r.Runs[i].Kind)
		}
	}
	return kinds
}

var runColumns = []column{
	{title: "run", most: 37},
	{title: "ends", most: 26},
	{title: "ops/s", right: true},
	{title: "MB/s", right: true},
	{title: "CPU s/M ops", right: true},
	{title: "allocs/op", right: true},
	{title: "B/op", right: true},
	{title: "RSS MiB", right: true},
}

var latencyColumns = []column{
	{title: "run", most: 40},
	{title: "latency"},
	{title: "p50", right: true},
	{title: "p90", right: true},
	{title: "p99", right: true},
	{title: "p99.9", right: true},
	{title: "max", right: true},
	{title: "count", right: true},
}

// runs prints those of a kind: their figures, their latencies, and their
// notes.
func (r *Report) runs(out *strings.Builder, kind string) {
	var figures, latencies [][]string
	notes := map[string][]string{} // whose they are, by what they say
	var order []string
	note := func(whose, text string) {
		if notes[text] == nil {
			order = append(order, text)
		}
		notes[text] = append(notes[text], whose)
	}
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Kind != kind {
			continue
		}
		rss := ""
		if run.PeakRSS > 0 {
			rss = Figure(float64(run.PeakRSS) / (1 << 20))
		}
		figures = append(figures, []string{
			run.Label(), run.Ends(), Figure(run.OpsPerSecond()), Figure(run.MBPerSecond()), Figure(run.CPUPerMillion()),
			Figure(run.AllocsPerOp), Figure(run.BytesPerOp), rss,
		})
		for _, name := range slices.Sorted(maps.Keys(run.Latencies)) {
			l := run.Latencies[name]
			latencies = append(latencies, []string{
				run.Label(), name, Duration(l.P50), Duration(l.P90), Duration(l.P99), Duration(l.P999), Duration(l.Max),
				Figure(float64(l.Count)),
			})
		}
		for _, text := range run.Notes {
			note(run.Label(), text)
		}
	}
	grid(out, runColumns, figures)
	if len(latencies) > 0 {
		out.WriteString("\n")
		grid(out, latencyColumns, latencies)
	}
	if len(order) > 0 {
		out.WriteString("\n")
	}
	for _, text := range order {
		paragraph(out, "  ", whose(notes[text], len(figures))+": "+text)
	}
}

// whose names the runs that a note is about, of so many.
func whose(labels []string, of int) string {
	switch {
	case len(labels) > 1 && len(labels) == of:
		return "all"
	case len(labels) > 3:
		return fmt.Sprintf("%s and %d more", labels[0], len(labels)-1)
	}
	return strings.Join(labels, ", ")
}

// goals prints each figure next to its goal.
func (r *Report) goals(out *strings.Builder) {
	var rows [][]string
	for i := range r.Goals {
		g := &r.Goals[i]
		rows = append(rows, []string{g.Name, g.Want, g.Figure(), g.Verdict()})
	}
	grid(out, []column{
		{title: "goal", most: 32},
		{title: "want", most: 38},
		{title: "measured", most: 22},
		{most: 20},
	}, rows)
}

// paragraph prints a text in lines of the page's width, the first after indent and
// the others two characters further.
func paragraph(out *strings.Builder, indent, text string) {
	for i, line := range wrap(text, pageWidth-len(indent)-2) {
		if i > 0 {
			line = "  " + line
		}
		out.WriteString(indent + line + "\n")
	}
}
