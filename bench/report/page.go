package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/oplogrep/replicator/bench/result"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"figure":   result.Figure,
	"duration": result.Duration,
	"mebi":     func(n int64) string { return result.Figure(float64(n) / (1 << 20)) },
	"percent":  func(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) },
	"width":    func(share float64) string { return fmt.Sprintf("%.1f%%", 100*min(max(share, 0), 1)) },
	"count":    func(n int64) string { return result.Figure(float64(n)) },
	"rfc3339":  func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"date":     func(t time.Time) string { return t.UTC().Format("2 January 2006, 15:04 UTC") },
}).Parse(pageText))

// page is what the page shows.
type page struct {
	Throughput []chart
	Sections   []section
}

// section is one report.
type section struct {
	*result.Report
	// Label tells the reports of a page apart; empty if there is but one.
	Label string
	ID    string
	// Goal is the chart of goals, Charts are the others.
	Goal, Charts []chart
}

func newPage(reports []*result.Report) *page {
	var p page
	var runs []taken
	labels := labels(reports)
	for i, r := range reports {
		s := section{Report: r, Label: labels[i], ID: "report-" + strconv.Itoa(i+1)}
		add := func(to *[]chart, c chart, there bool) {
			if !there {
				return
			}
			if len(reports) > 1 {
				c.Name += "-" + strconv.Itoa(i+1)
			}
			*to = append(*to, c)
		}
		c, there := goals(r)
		add(&s.Goal, c, there)
		c, there = ceiling(r)
		add(&s.Charts, c, there)
		c, there = whole(r, "catch-up", "Catching up with a backlog", "catch-up", "secondary")
		add(&s.Charts, c, there)
		c, there = whole(r, "clone", "Copies", "clone")
		add(&s.Charts, c, there)
		c, there = latencies(r)
		add(&s.Charts, c, there)
		p.Sections = append(p.Sections, s)
		for j := range r.Runs {
			runs = append(runs, taken{run: &r.Runs[j], report: labels[i]})
		}
	}
	p.Throughput = throughput(runs)
	return &p
}

// all are the charts of a page.
func (p *page) all() []chart {
	list := slices.Clone(p.Throughput)
	for _, s := range p.Sections {
		list = append(append(list, s.Goal...), s.Charts...)
	}
	return list
}

// labels distinguish reports: by the program's version if that is enough, else by
// their start times, and by number if these are equal too.
func labels(reports []*result.Report) []string {
	list := make([]string, len(reports))
	if len(reports) < 2 {
		return list
	}
	versions, times := map[string]int{}, map[string]int{}
	at := func(r *result.Report) string { return r.Started.UTC().Format("2006-01-02 15:04") }
	for _, r := range reports {
		versions[r.Machine.Version]++
		times[at(r)]++
	}
	for i, r := range reports {
		switch {
		case len(versions) == len(reports) && versions[""] == 0:
			list[i] = r.Machine.Version
		case times[at(r)] == 1:
			list[i] = at(r)
		default:
			list[i] = fmt.Sprintf("%s, number %d", at(r), i+1)
		}
	}
	return list
}

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

// Profiled are the runs with a CPU profile.
func (s section) Profiled() []*result.Run {
	var list []*result.Run
	for i := range s.Runs {
		if s.Runs[i].Profile != nil {
			list = append(list, &s.Runs[i])
		}
	}
	return list
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
	return fmt.Sprintf("%d met, %d not met, %d with an embedded end and held to nothing, %d skipped", met, missed, embedded, skipped)
}

// Class is the goal's verdict as a class of the page.
func (s section) Class(g result.Goal) string {
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

func (p *page) html() ([]byte, error) {
	var out bytes.Buffer
	if err := pageTemplate.Execute(&out, p); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
