package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gonum.org/v1/plot/vg"
	"pgregory.net/rapid"

	"github.com/oplogrep/replicator/bench/result"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// evil is a name that must not become a part of the page.
const evil = `<script>alert("x & y")</script>`

// Ends of runs.
var (
	memory, discard, null = result.End{Kind: result.EndMemory}, result.End{Kind: result.EndDiscard}, result.End{Kind: result.EndNull}
	embedded              = result.End{Kind: result.EndEmbedded, Version: "5.0", Members: 1}
	server                = result.End{Kind: result.EndReal, Version: "8.0.4", Members: 3}
)

// run makes a run of rounds that differ a little.
func run(kind, preset string, source, target result.End, pace float64, settings map[string]float64) result.Run {
	const ops = 100_000
	seconds := ops / pace
	return result.Run{
		Kind: kind, Name: kind + "/" + preset, Preset: preset, Source: source, Target: target, Settings: settings,
		Ops: ops, Bytes: 250 * ops, Rounds: []float64{seconds, seconds * 1.25, seconds * 0.8},
		CPUSeconds: 0.2, AllocsPerOp: 0.12, BytesPerOp: 31, PeakRSS: 320 << 20,
	}
}

func lanes(name string, value float64) map[string]float64 {
	m := map[string]float64{"writers": 16, "batch": 5000, "size": 200, "namespaces": 4}
	m[name] = value
	return m
}

// sample is a report with all that can be drawn.
func sample() *result.Report {
	least, most, far := 600_000.0, 0.2, 1.5
	r := &result.Report{
		Format: 1, Started: time.Date(2026, 11, 22, 9, 30, 0, 0, time.UTC), Seed: 1,
		Command: []string{"replicator", "bench", "goals", "--workload", evil},
		Machine: result.Machine{OS: "linux", Arch: "amd64", CPU: "Example CPU @ 2.50GHz", Cores: 2, Memory: 8 << 30, Kernel: "6.1.0", Go: "go1.26.0", Version: "v0.4.0"},
		Goals: []result.Goal{
			{Name: "applier to a null network target", Want: "at least 600,000 ops/s", Measured: 500_000, Unit: "ops/s", Least: &least},
			{Name: "allocations of the pipeline", Want: "at most 0.2 per entry", Measured: 0.0312, Unit: "allocs/entry", Most: &most},
			{Name: evil, Want: "at least 1.5 ×", Measured: 1.1, Unit: "×", Least: &far, Embedded: true},
			{Name: "catch-up / MongoShake", Want: "at least 5 ×", Skipped: "the harness runs no other tool"},
		},
	}
	pipeline := run("pipeline", "small-inserts", memory, discard, 2e6, lanes("writers", 16))
	pipeline.Profile = &result.Profile{
		Shares: map[string]float64{"hash": 0.31, "oplog": 0.45, "other": 0.24},
		Top:    []result.Line{{Function: "oplog.(*Entry).Parse", Flat: 0.31, Cum: 0.4}},
	}
	r.Runs = append(r.Runs, pipeline)
	for i, writers := range []float64{1, 2, 4, 8, 16, 32} {
		r.Runs = append(r.Runs, run("apply", "small-inserts", result.End{}, null, []float64{2e5, 4e5, 6e5, 7e5, 7e5, 6.5e5}[i], lanes("writers", writers)))
	}
	for i, size := range []float64{1000, 10_000, 100_000} {
		r.Runs = append(r.Runs, run("apply", "small-inserts", result.End{}, null, []float64{4e5, 7e4, 7e3}[i], lanes("size", size)))
	}
	r.Runs = append(r.Runs,
		run("apply", evil, result.End{}, embedded, 60_000, lanes("size", 200)), run("ceiling", evil, result.End{}, embedded, 30_000, lanes("size", 200)),
		run("catch-up", "backlog", embedded, embedded, 50_000, nil), run("secondary", "backlog", embedded, embedded, 40_000, nil))
	mirror := run("mirror", "mixed", server, server, 1000, map[string]float64{"rate": 1000})
	mirror.Latencies = map[string]result.Latency{
		"commit-to-applied": {Count: 10_000, P50: 0, P90: 0.004, P99: 0.0131, P999: 0.024, Max: 1.2, Mean: 0.0025},
		"acknowledged":      {Count: 10_000, P50: 0.0003, P90: 0.001, P99: 0.002, P999: 0.004, Max: 0.0101, Mean: 0.0009},
	}
	mirror.Notes = []string{"one note", "and " + evil}
	r.Runs = append(r.Runs, mirror)
	return r
}

// other is a second report, of some runs only.
func other() *result.Report {
	r := sample()
	r.Machine.Version, r.Goals, r.Runs = "v0.3.0", nil, r.Runs[1:7]
	return r
}

// TestPage: the page of one report and of two, every chart's figures in its alt
// texts.
func TestPage(t *testing.T) {
	for name, reports := range map[string][]*result.Report{"one.html": {sample()}, "two.html": {other(), sample()}} {
		html, err := newPage(reports).html()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", name)
		if *rewrite {
			if err := os.WriteFile(file, html, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(html)); diff != "" {
			t.Errorf("%s (-want +got; -rewrite writes it anew):\n%s", file, diff)
		}
		if bytes.Contains(html, []byte("<script")) {
			t.Errorf("%s: a name became a part of the page", name)
		}
	}
}

// TestCharts: the charts of the sample are all sound.
func TestCharts(t *testing.T) {
	var got []string
	for _, c := range newPage([]*result.Report{sample()}).all() {
		got = append(got, c.Name)
		svg, err := asSVG(c.picture)
		if err == nil {
			err = sound(svg)
		}
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
	if diff := cmp.Diff([]string{"writers", "size", "size-bytes", "goals", "ceiling", "catch-up", "latencies"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestMixedEnds: runs of embedded and of real ends are not one group of bars.
func TestMixedEnds(t *testing.T) {
	r := &result.Report{Runs: []result.Run{
		run("catch-up", "backlog", server, server, 50_000, nil), run("secondary", "backlog", embedded, embedded, 40_000, nil),
		run("secondary", "backlog", server, server, 90_000, nil),
	}}
	c, _ := whole(r, "catch-up", "Catching up with a backlog", "catch-up", "secondary")
	const want = "Bar chart: operations per second." +
		" real 8.0.4 (3 members) → real 8.0.4 (3 members): catch-up/backlog: 50,000 ops/s." +
		" embedded 5.0 (1 member) → embedded 5.0 (1 member): secondary/backlog: 40,000 ops/s." +
		" real 8.0.4 (3 members) → real 8.0.4 (3 members): secondary/backlog: 90,000 ops/s."
	if diff := cmp.Diff(want, c.Alt); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r.Runs = []result.Run{
		run("apply", "updates", result.End{}, server, 50_000, nil), run("ceiling", "updates", result.End{}, embedded, 40_000, nil),
	}
	if c, there := ceiling(r); there {
		t.Errorf("a ratio of embedded and real ends: %s", c.Alt)
	}
}

// TestWrite: all files that the page names are there, and are what they are called.
func TestWrite(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "new", "report")
	files, err := Write(folder, []*result.Report{other()})
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, name := range []string{"writers.svg", "writers.png", "index.html"} {
		want = append(want, filepath.Join(folder, name))
	}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	html, err := os.ReadFile(filepath.Join(folder, "index.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllSubmatch(html, -1) {
		if _, err := os.Stat(filepath.Join(folder, string(m[1]))); err != nil {
			t.Errorf("the page names a file that is not there: %v", err)
		}
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		switch filepath.Ext(file) {
		case ".svg":
			if err := sound(content); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		case ".png":
			if c, err := png.DecodeConfig(bytes.NewReader(content)); err != nil || c.Width != int(chartWidth/72*dpi) {
				t.Errorf("%s: %d pixels wide, %v", file, c.Width, err)
			}
		}
	}
}

func TestWriteErrors(t *testing.T) {
	if _, err := Write(t.TempDir(), nil); err == nil {
		t.Error("no results make a report")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(file, []*result.Report{sample()}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a report in place of a file: %v", err)
	}
}

// TestNothing: a report without anything to draw is a page.
func TestNothing(t *testing.T) {
	folder := t.TempDir()
	files, err := Write(folder, []*result.Report{{Format: 1}})
	if diff := cmp.Diff([]string{filepath.Join(folder, "index.html")}, files); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// sound returns the faults of a chart: that it is no XML, that something has no
// place, or that a text is cut off at an edge.
func sound(svg []byte) error {
	for _, odd := range []string{"NaN", "Inf"} {
		if at := bytes.Index(svg, []byte(odd)); at >= 0 {
			return fmt.Errorf("a place that is no number: %.80s", svg[at:])
		}
	}
	dec := xml.NewDecoder(bytes.NewReader(svg))
	shown := 0
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) && shown > 0 {
			return nil
		}
		if err != nil {
			return err
		}
		if start, ok := token.(xml.StartElement); ok && start.Name.Local == "text" {
			var text svgText
			if err := dec.DecodeElement(&text, &start); err != nil {
				return err
			}
			if err := text.inside(); err != nil {
				return err
			}
			shown++
		}
	}
}

type svgText struct {
	X     vg.Length `xml:"x,attr"`
	Style string    `xml:"style,attr"`
	Text  string    `xml:",chardata"`
}

// inside reports whether a text is cut off.
func (s *svgText) inside() error {
	_, size, _ := strings.Cut(s.Style, "font-size:")
	size, _, ok := strings.Cut(size, "px")
	points, err := strconv.ParseFloat(size, 64)
	if !ok || err != nil {
		return fmt.Errorf("no size of a font: %s", s.Style)
	}
	width := letters(vg.Length(points), ink, strings.Contains(s.Style, "bold")).Width(s.Text)
	if s.X < 0 || s.X+width > chartWidth {
		return fmt.Errorf("%q reaches from %.1f to %.1f of %.1f", s.Text, s.X, s.X+width, chartWidth)
	}
	return nil
}

// TestSound: whatever was measured, and however it is called, can be drawn.
func TestSound(t *testing.T) {
	figure := rapid.Map(rapid.OneOf(rapid.Float64Range(0, 1), rapid.Float64Range(0, 1e7)), func(v float64) float64 { return math.Round(v*1e6) / 1e6 })
	name := rapid.StringOfN(rapid.SampledFrom([]rune("aWi <&×\"\n/é")), 0, 90, -1)
	rapid.Check(t, func(t *rapid.T) {
		r := &result.Report{}
		preset := name.Draw(t, "preset")
		for i := range rapid.IntRange(1, 3).Draw(t, "runs") {
			one := run("apply", preset, result.End{}, null, 1+figure.Draw(t, "pace"), map[string]float64{
				"writers": 1 + figure.Draw(t, "writers"), "size": float64(i),
			})
			one.Rounds = rapid.SliceOfN(rapid.OneOf(rapid.Float64Range(1e-4, 1e4), rapid.Just(0.0)), 1, 3).Draw(t, "rounds")
			one.Latencies = map[string]result.Latency{name.Draw(t, "latency"): {P50: figure.Draw(t, "p50"), P99: figure.Draw(t, "p99")}}
			ceiling := one
			ceiling.Kind = "ceiling"
			r.Runs = append(r.Runs, one, ceiling)
			wanted := figure.Draw(t, "wanted")
			g := result.Goal{Name: name.Draw(t, "goal"), Measured: figure.Draw(t, "measured") - 0.5, Unit: "ops/s"}
			if rapid.Bool().Draw(t, "least") {
				g.Least = &wanted
			} else {
				g.Most = &wanted
			}
			r.Goals = append(r.Goals, g)
		}
		for _, c := range newPage([]*result.Report{r}).all() {
			svg, err := asSVG(c.picture)
			if err == nil {
				err = sound(svg)
			}
			if err != nil {
				t.Fatalf("%s: %v", c.Name, err)
			}
		}
	})
}

// TestGood: values above 1 meet the goal.
func TestGood(t *testing.T) {
	at := func(v float64) *float64 { return &v }
	for _, c := range []struct {
		goal result.Goal
		want float64
		ok   bool
	}{
		{result.Goal{Measured: 3, Least: at(2)}, 1.5, true},
		{result.Goal{Measured: 1, Least: at(2)}, 0.5, true},
		{result.Goal{Measured: 0, Least: at(2)}, leastShown, true},
		{result.Goal{Measured: 1, Most: at(2)}, 2, true},
		{result.Goal{Measured: 4, Most: at(2)}, 0.5, true},
		{result.Goal{Measured: -3, Most: at(2)}, mostShown, true},
		{result.Goal{Measured: 0, Most: at(2)}, mostShown, true},
		{result.Goal{Measured: 1}, 0, false},
		{result.Goal{Measured: 1, Most: at(0)}, 0, false},
		{result.Goal{Measured: math.NaN(), Most: at(1)}, 0, false},
		{result.Goal{Measured: 1, Most: at(1), Skipped: "no server"}, 0, false},
	} {
		got, _, ok := good(&c.goal)
		if got != c.want || ok != c.ok {
			t.Errorf("%+v: %v, %v, want %v, %v", c.goal, got, ok, c.want, c.ok)
		}
		if ok && (got >= 1) != c.goal.Met() {
			t.Errorf("%+v: drawn at %v, met is %v", c.goal, got, c.goal.Met())
		}
	}
}
