package deploy

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

//go:embed grafana/replicator.json
var dashboardJSON []byte

// dashboard is the part of Grafana's model (schema 39) that the dashboard uses. Other
// fields are unknown to Grafana, or were not considered.
type dashboard struct {
	UID, Title, Description, Timezone, Refresh string
	Tags                                       []string
	Editable                                   bool
	GraphTooltip, SchemaVersion, Version       int
	Time                                       struct{ From, To string }
	Annotations                                struct{ List []annotation }
	Links                                      []struct {
		Type, Title, URL string
		TargetBlank      bool
	}
	Templating struct{ List []variable }
	Panels     []panel
}

type datasource struct{ Type, UID string }

type annotation struct {
	Name, IconColor, Expr, TitleFormat string
	Enable, Hide                       bool
	Datasource                         datasource
}

type variable struct {
	Name, Label, Type, Definition, Regex string
	Datasource                           datasource
	Query                                json.RawMessage
	Refresh, Sort, Hide                  int
	Multi, IncludeAll                    bool
}

type panel struct {
	ID                       int
	Type, Title, Description string
	Collapsed                bool
	Panels                   []panel
	Datasource               datasource
	GridPos                  struct{ H, W, X, Y int }
	FieldConfig              struct {
		Defaults  fieldDefaults
		Overrides []struct {
			Matcher    struct{ ID, Options string }
			Properties []struct{ ID, Value string }
		}
	}
	Options json.RawMessage
	Targets []panelTarget
}

type fieldDefaults struct {
	Unit, NoValue string
	Min, Max      *float64
	Color         struct{ Mode string }
	Thresholds    struct {
		Mode  string
		Steps []struct {
			Color string
			Value *float64
		}
	}
	Custom   json.RawMessage
	Mappings []json.RawMessage
}

type panelTarget struct {
	RefID, Expr, LegendFormat string
	Datasource                datasource
	Range, Instant            bool
}

// units are those of Grafana that fit the values.
var units = []string{"s", "dtdurations", "dateTimeAsIso", "bytes", "Bps", "ops", "percentunit", "short", "none"}

func readDashboard(t *testing.T) *dashboard {
	t.Helper()
	d := &dashboard{}
	r := json.NewDecoder(bytes.NewReader(dashboardJSON))
	r.DisallowUnknownFields()
	if err := r.Decode(d); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDashboard: the dashboard has the form that Grafana reads; the page's five figures come first; no
// panel overlaps another, or shows values without a unit.
func TestDashboard(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 36 || d.Time.From == "" || d.Time.To == "" || len(d.Panels) < 30 {
		t.Errorf("%+v", d)
	}
	for i, name := range figures(t) {
		if p := &d.Panels[i]; p.Title != name || p.GridPos.Y != 0 || i > 0 && p.GridPos.X <= d.Panels[i-1].GridPos.X {
			t.Errorf("figure %d is %s at %+v, want %s", i+1, p.Title, p.GridPos, name)
		}
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for i := range d.Panels {
		p := &d.Panels[i]
		if p.ID == 0 || ids[p.ID] || p.Title == "" {
			t.Errorf("%s: id %d", p.Title, p.ID)
		}
		ids[p.ID] = true
		if g := p.GridPos; g.X < 0 || g.W < 1 || g.X+g.W > 24 || g.H < 1 {
			t.Errorf("%s is at %+v", p.Title, g)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("%s is on %s", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		p.check(t)
	}
}

// check checks what a panel shows, and how.
func (p *panel) check(t *testing.T) {
	t.Helper()
	switch p.Type {
	case "row":
		if p.Collapsed || len(p.Panels) > 0 || len(p.Targets) > 0 {
			t.Errorf("%s hides something", p.Title)
		}
		return
	case "text":
		return
	case "stat", "timeseries", "state-timeline":
	default:
		t.Errorf("%s is a %s", p.Title, p.Type)
	}
	d := &p.FieldConfig.Defaults
	if p.Type != "state-timeline" && !slices.Contains(units, d.Unit) || p.Type == "stat" && d.NoValue != "unknown" || p.Description == "" || len(p.Targets) == 0 {
		t.Errorf("%s: unit %q, without a value %q, %d queries, %q", p.Title, d.Unit, d.NoValue, len(p.Targets), p.Description)
	}
	// An unknown value leaves a gap.
	if p.Type != "stat" && !bytes.Contains(d.Custom, []byte(`"spanNulls": false`)) {
		t.Errorf("%s: %s", p.Title, d.Custom)
	}
	if p.Type != "timeseries" && (len(d.Thresholds.Steps) == 0 || d.Thresholds.Steps[0].Value != nil) {
		t.Errorf("%s: thresholds %+v", p.Title, d.Thresholds)
	}
	for i, s := range d.Thresholds.Steps {
		if i > 0 && (s.Value == nil || i > 1 && *s.Value <= *d.Thresholds.Steps[i-1].Value) {
			t.Errorf("%s: thresholds %+v", p.Title, d.Thresholds)
		}
	}
	legends := map[string]bool{}
	for i := range p.Targets {
		target := &p.Targets[i]
		if target.RefID != string(rune('A'+i)) || target.Range == target.Instant || target.Datasource != p.Datasource || target.Datasource.UID != "${datasource}" {
			t.Errorf("%s: query %+v", p.Title, target)
		}
		legends[target.LegendFormat] = true
	}
	for _, o := range p.FieldConfig.Overrides {
		if o.Matcher.ID != "byName" || !legends[o.Matcher.Options] || o.Properties[0].ID != "unit" || !slices.Contains(units, o.Properties[0].Value) {
			t.Errorf("%s: %+v", p.Title, o)
		}
	}
}

// figures are the five figures of the page, from docs/page.md.
func figures(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../docs/page.md")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^   \| ([A-Z][^|]*) \| `).FindAllStringSubmatch(string(text), -1) {
		names = append(names, m[1])
	}
	if len(names) != 5 {
		t.Fatalf("docs/page.md has %d figures: %q", len(names), names)
	}
	return names
}

var (
	variables = regexp.MustCompile(`\$\{?(\w+)\}?`)
	ofLabels  = regexp.MustCompile(`\{\{(\w+)\}\}`)
	inquiry   = regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)
)

// filled is an expression with values in place of variables, for any process, and the link shop.
func filled(expr string) string {
	return strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$instance", ".*", "$link", "shop").Replace(expr)
}

// TestDashboardQueries: every query parses, and names metrics that exist, with that type and those labels; it
// is about the chosen link only; and its legend has labels that its result has.
func TestDashboardQueries(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	c := newChecker(t)
	known := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		known[v.Name] = true
		if v.Type == "datasource" {
			continue
		}
		m := inquiry.FindStringSubmatch(v.Definition)
		if m == nil || !bytes.Contains(v.Query, []byte(strings.ReplaceAll(v.Definition, `"`, `\"`))) {
			t.Errorf("variable %s is %s, %s", v.Name, v.Definition, v.Query)
			continue
		}
		c.check("variable "+v.Name, fmt.Sprintf("max by (%s) (%s)", m[2], filled(m[1])))
	}
	for _, a := range d.Annotations.List {
		if _, err := parsing.ParseExpr(filled(a.Expr)); err != nil {
			t.Errorf("annotation %s: %v", a.Name, err)
		}
	}
	var all []string
	for i := range d.Panels {
		p := &d.Panels[i]
		for _, q := range p.Targets {
			all = append(all, q.Expr)
			where := p.Title + " " + q.RefID
			c.check(where, filled(q.Expr))
			for _, s := range selectors(t, filled(q.Expr)) {
				ofLink(t, where, s.Name, s.LabelMatchers)
			}
			for _, m := range ofLabels.FindAllStringSubmatch(q.LegendFormat, -1) {
				if !strings.Contains(q.Expr, "by (") && m[1] != "instance" || strings.Contains(q.Expr, "by (") && !regexp.MustCompile(`by \([^)]*\b`+m[1]+`\b`).MatchString(q.Expr) {
					t.Errorf("%s: the legend %s of %s", where, q.LegendFormat, q.Expr)
				}
			}
		}
	}
	for _, m := range variables.FindAllStringSubmatch(strings.Join(all, "\n"), -1) {
		if !known[m[1]] {
			t.Errorf("there is no variable %s", m[1])
		}
	}
}

// ofLink reports a series that may be of another link: replicator run has no label link, and an agent
// has it on all series of links.
func ofLink(t *testing.T, where, name string, matchers []*labels.Matcher) {
	t.Helper()
	var has []string
	for _, m := range matchers {
		has = append(has, m.String())
	}
	want := []string{`job=~".*"`, `instance=~".*"`}
	if !strings.HasPrefix(name, "process_") && !strings.HasPrefix(name, "replicator_http_") {
		want = append(want, `link=~"shop|"`)
	}
	for _, w := range want {
		if !slices.Contains(has, w) {
			t.Errorf("%s: %s is selected by %q, not by %s", where, name, has, w)
		}
	}
}

// TestDashboardAnswers: each query has a result for what a link had at the end of a run, unless
// none of its metrics is there then.
func TestDashboardAnswers(t *testing.T) {
	t.Parallel()
	const steps = 10
	s := newStore()
	s.remember(t, steps)
	e := newEvaluator(t, readRules(t), s)
	end := time.UnixMilli(0).Add(steps * time.Minute)
	empty := map[string]bool{}
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			there := slices.ContainsFunc(selectors(t, filled(q.Expr)), func(v *parser.VectorSelector) bool { return s.has(v.Name) })
			if n := len(e.query(filled(q.Expr), end)); there && n == 0 {
				t.Errorf("%s: %s has no result", p.Title, q.Expr)
			}
			if !there {
				empty[p.Title] = true
			}
		}
	}
	if len(empty) > 12 {
		t.Errorf("nothing was there for %v", empty)
	}
}
