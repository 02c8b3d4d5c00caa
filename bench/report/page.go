package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/oplogrep/replicator/bench/result"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"figure":   result.Figure,
	"duration": result.Duration,
	"mebi":     func(n int64) string { return result.Figure(float64(n) / (1 << 20)) },
	"width":    func(share float64) string { return fmt.Sprintf("%.1f%%", 100*min(max(share, 0), 1)) },
	"count":    func(n int64) string { return result.Figure(float64(n)) },
	"rfc3339":  func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"date":     func(t time.Time) string { return t.UTC().Format("2 January 2006, 15:04 UTC") },
}).Parse(pageText))

// section is one report.
type section struct {
	*result.Report
	// Label tells the reports of a page apart; empty if there is but one.
	Label string
}

// page returns the page of reports.
func page(reports []*result.Report) ([]byte, error) {
	sections := make([]section, len(reports))
	for i, r := range reports {
		sections[i].Report = r
		if len(reports) > 1 {
			sections[i].Label = strings.TrimSpace(fmt.Sprintf("report %d %s", i+1, r.Machine.Version))
		}
	}
	var out bytes.Buffer
	if err := pageTemplate.Execute(&out, sections); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Goal is the chart of goals.
func (s section) Goal() chart { return goals(s.Report) }

// Charts are the others.
func (s section) Charts() []chart { return charts(s.Report) }

// RunsOf are those of a kind.
func (s section) RunsOf(kind string) []*result.Run {
	var list []*result.Run
	for i := range s.Runs {
		if s.Runs[i].Kind == kind {
			list = append(list, &s.Runs[i])
		}
	}
	return list
}

// Delays are the latencies of a report, a row each.
func (s section) Delays() []delay {
	var rows []delay
	for i := range s.Runs {
		for _, name := range slices.Sorted(maps.Keys(s.Runs[i].Latencies)) {
			rows = append(rows, delay{s.Runs[i].Name, name, s.Runs[i].Latencies[name]})
		}
	}
	return rows
}

// delay is a latency of a run.
type delay struct {
	Run, Name string
	result.Latency
}

// Noted are the notes on the figures, each once, with its runs.
func (s section) Noted() []note {
	var list []note
	at := map[string]int{}
	for i := range s.Runs {
		for _, text := range s.Runs[i].Notes {
			if _, ok := at[text]; !ok {
				at[text] = len(list)
				list = append(list, note{Text: text})
			}
			n := &list[at[text]]
			n.Runs = append(n.Runs, s.Runs[i].Name)
		}
	}
	return list
}

// note is a sentence about some runs.
type note struct {
	Text string
	Runs []string
}

// Embedded reports whether an end of a run is embedded.
func (s section) Embedded(r *result.Run) bool { return result.OnEmbedded(r) }

// Summary counts the verdicts of the goals.
func (s section) Summary() string {
	var met, missed, embedded, skipped int
	for i := range s.Goals {
		g := &s.Goals[i]
		switch {
		case g.Skipped != "":
			skipped++
		case g.Embedded:
			embedded++
		case g.Met():
			met++
		default:
			missed++
		}
	}
	return fmt.Sprintf("%d met, %d not met, %d with an embedded end and no limit, %d skipped", met, missed, embedded, skipped)
}

// Class is the goal's verdict as a class of the page.
func (section) Class(g result.Goal) string { return class(&g) }

func class(g *result.Goal) string {
	switch {
	case g.Skipped != "":
		return "skipped"
	case g.Embedded:
		return "embedded"
	case g.Met():
		return "met"
	}
	return "missed"
}
