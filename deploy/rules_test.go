package deploy

import (
	_ "embed"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"sigs.k8s.io/yaml"
)

var (
	//go:embed prometheus/alerts.yml
	alerts []byte
	//go:embed prometheus/alerts_test.yml
	alertTests []byte
	//go:embed prometheus/recorded_test.yml
	recorded []byte
)

// unitTests is the form of Prometheus's rule unit tests, as far as it is used here: promtool test rules
// plays the same file.
type unitTests struct {
	RuleFiles          []string       `json:"rule_files"`
	EvaluationInterval model.Duration `json:"evaluation_interval"`
	Tests              []unitTest     `json:"tests"`
}

type unitTest struct {
	Name        string         `json:"name"`
	Interval    model.Duration `json:"interval"`
	InputSeries []struct {
		Series string `json:"series"`
		Values string `json:"values"`
	} `json:"input_series"`
	Exprs []struct {
		Expr     string         `json:"expr"`
		EvalTime model.Duration `json:"eval_time"`
		Samples  []struct {
			Labels string  `json:"labels"`
			Value  float64 `json:"value"`
		} `json:"exp_samples"`
	} `json:"promql_expr_test"`
}

// fired is the expression of all tests: each alert that has fired until then, with the number of its series.
const fired = `count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[2d]))`

func readRules(t *testing.T) *rulefmt.RuleGroups {
	t.Helper()
	rules, errs := rulefmt.Parse(alerts, false, model.UTF8Validation, parsing, slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if rules == nil || len(errs) > 0 {
		t.FailNow()
	}
	return rules
}

// TestAlertsFire plays prometheus/alerts_test.yml. Each alert has series for which it fires, and others,
// which have the same metrics, for which it nearly does; nothing else may fire.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	file, rules := readTests(t, alertTests), readRules(t)
	fires, nearly := map[string]bool{}, map[string]bool{}
	for i := range file.Tests {
		test := &file.Tests[i]
		alert, what, _ := strings.Cut(test.Name, " ")
		has := test.play(t, rules, time.Duration(file.EvaluationInterval))
		switch {
		case strings.HasPrefix(what, "fires") && has[alert]:
			fires[alert] = true
		case strings.HasPrefix(what, "nearly fires") && !has[alert]:
			nearly[alert] = test.hasMetricsOf(t, rules, alert)
		default:
			t.Errorf("%q: the alert fires: %t", test.Name, has[alert])
		}
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Alert != "" && (!fires[r.Alert] || !nearly[r.Alert]) {
				t.Errorf("%s: there are series for which it fires: %t, for which it nearly does: %t", r.Alert, fires[r.Alert], nearly[r.Alert])
			}
		}
	}
}

func readTests(t *testing.T, text []byte) *unitTests {
	t.Helper()
	file := &unitTests{}
	if err := yaml.UnmarshalStrict(text, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestRecorded plays prometheus/recorded_test.yml: what the program shows while something happens to a
// link, and which alerts fire.
func TestRecorded(t *testing.T) {
	t.Parallel()
	file, rules := readTests(t, recorded), readRules(t)
	all, quiet := map[string]bool{}, 0
	for i := range file.Tests {
		has := file.Tests[i].play(t, rules, time.Duration(file.EvaluationInterval))
		maps.Copy(all, has)
		if len(has) == 0 {
			quiet++
		}
	}
	if len(all) < 10 || quiet < 3 {
		t.Errorf("%d alerts fire, none does in %d recordings", len(all), quiet)
	}
}

// play returns which alerts the test expects, once it has them.
func (u *unitTest) play(t *testing.T, rules *rulefmt.RuleGroups, every time.Duration) map[string]bool {
	t.Helper()
	s := newStore()
	for _, in := range u.InputSeries {
		if err := s.load(in.Series, in.Values, time.Duration(u.Interval).Milliseconds()); err != nil {
			t.Fatalf("%s: %s: %v", u.Name, in.Series, err)
		}
	}
	e := newEvaluator(t, rules, s)
	start := time.UnixMilli(0)
	has := map[string]bool{}
	next := start
	for _, x := range u.Exprs {
		at := start.Add(time.Duration(x.EvalTime))
		for ; !next.After(at); next = next.Add(every) {
			e.step(next)
		}
		var want []string
		for _, one := range x.Samples {
			l, err := parsing.ParseMetric(one.Labels)
			if err != nil {
				t.Fatalf("%s: %s: %v", u.Name, one.Labels, err)
			}
			want, has[l.Get("alertname")] = append(want, fmt.Sprintf("%s %v", l, one.Value)), true
		}
		var got []string
		for _, one := range e.query(x.Expr, at) {
			got = append(got, fmt.Sprintf("%s %v", one.Metric, one.F))
		}
		slices.Sort(want)
		slices.Sort(got)
		if x.Expr != fired || !slices.Equal(got, want) {
			t.Errorf("%s: after %s %s is %q, want %q", u.Name, x.EvalTime, x.Expr, got, want)
		}
	}
	return has
}

// hasMetricsOf reports whether the test has all metrics that an alert needs.
func (u *unitTest) hasMetricsOf(t *testing.T, rules *rulefmt.RuleGroups, alert string) bool {
	t.Helper()
	recorded := map[string]string{}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			recorded[r.Record+r.Alert] = r.Expr
		}
	}
	for _, s := range selectors(t, recorded[alert]) {
		if expr, known := recorded[s.Name]; known {
			// Of a recorded series its first metric is enough.
			s = selectors(t, expr)[0]
		}
		if !slices.ContainsFunc(u.InputSeries, func(in struct {
			Series string `json:"series"`
			Values string `json:"values"`
		},
		) bool {
			return strings.HasPrefix(in.Series, s.Name+"{")
		}) && !optional[s.Name] {
			t.Logf("%s has no %s", u.Name, s.Name)
			return false
		}
	}
	return true
}

// optional are metrics that only hold alerts back, or that have an alternative.
var optional = map[string]bool{"replicator_paused": true, "replicator_agent_ready": true}

// TestSteadyIsQuiet: no alert fires for the metrics of a steady link at the end of a run, except that
// options are still deferred a day later.
func TestSteadyIsQuiet(t *testing.T) {
	t.Parallel()
	const hours = 25
	s := newStore()
	s.remember(t, hours*60)
	e := newEvaluator(t, readRules(t), s)
	start := time.UnixMilli(0)
	for i := range time.Duration(hours * 12) {
		e.step(start.Add(i * 5 * time.Minute))
	}
	got := e.query(fired, start.Add((hours*60-5)*time.Minute))
	if len(got) != 1 || got[0].Metric.Get("alertname") != "ReplicatorDeferred" {
		t.Errorf("%s", got)
	}
}

// remember adds what a link had at the end of a run, each minute; counters that depend on the moment grow.
func (s *store) remember(t *testing.T, minutes int64) {
	t.Helper()
	known := metrics(t)
	add := func(name string, l map[string]string, value, each float64) {
		b := labels.NewBuilder(labels.FromMap(l)).Set(labels.MetricName, name).Set("job", "replicator").Set("instance", "a:9216")
		for i := range minutes + 1 {
			s.add(b.Labels(), i*time.Minute.Milliseconds(), value+each*float64(i))
		}
	}
	for name, list := range values(t) {
		for _, of := range list {
			switch kind := known[name].kind; {
			case kind == "histogram":
				for _, le := range []string{"0.1", "1", "+Inf"} {
					of.labels["le"] = le
					add(name+"_bucket", of.labels, 0, 60)
				}
			case kind == "counter" && of.value > 0:
				add(name, of.labels, of.value, 60)
			default:
				add(name, of.labels, of.value, 0)
			}
		}
	}
}

// TestRunbooks: each alert has a severity and a text, and leads to a section that is there.
func TestRunbooks(t *testing.T) {
	t.Parallel()
	const base = "https://github.com/oplogrep/replicator/blob/main/"
	severity := []string{"info", "warning", "critical"}
	sections := map[string]bool{}
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			if r.Alert == "" {
				continue
			}
			url, known := strings.CutPrefix(r.Annotations["runbook_url"], base)
			if !known || !slices.Contains(severity, r.Labels["severity"]) || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s: %+v %+v", r.Alert, r.Labels, r.Annotations)
			}
			for _, name := range verdictsOf(t, &r) {
				sample := promql.Sample{Metric: labels.FromStrings("name", name)}
				page, anchor, _ := strings.Cut(expand(t, url, sample), "#")
				if !anchors(t, "../"+page)[anchor] {
					t.Errorf("%s: %s has no section %q", r.Alert, page, anchor)
				}
				sections[anchor] = true
			}
			if section := strings.ToLower(r.Alert); !anchors(t, "../docs/alerts.md")[section] {
				t.Errorf("docs/alerts.md has no section %s", r.Alert)
			} else {
				sections[section] = true
			}
		}
	}
	for anchor := range anchors(t, "../docs/alerts.md") {
		if strings.HasPrefix(anchor, "replicator") && !sections[anchor] {
			t.Errorf("docs/alerts.md has a section %s of no alert", anchor)
		}
	}
}

// verdictsOf returns the verdicts that an alert may have in its label name, one empty one if it has
// no such label.
func verdictsOf(t *testing.T, r *rulefmt.Rule) []string {
	t.Helper()
	s := selectors(t, r.Expr)[0]
	if s.Name != "replicator_verdict" {
		return []string{""}
	}
	var names []string
	for _, v := range values(t)[s.Name] {
		if !slices.ContainsFunc(s.LabelMatchers, func(m *labels.Matcher) bool {
			return m.Name != labels.MetricName && !m.Matches(v.labels[m.Name])
		}) {
			names = append(names, v.labels["name"])
		}
	}
	if len(names) == 0 {
		t.Errorf("%s: no verdict matches", r.Alert)
	}
	return names
}

var (
	heading = regexp.MustCompile("(?m)^#+ (.*)$")
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the names under which the headings of a page can be linked to.
func anchors(t *testing.T, page string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(string(text), -1) {
		names[strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return names
}
