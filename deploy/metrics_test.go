package deploy

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// metric is a row of docs/metrics.md.
type metric struct {
	kind   string
	labels []string
}

// metrics returns the rows of docs/metrics.md, which is generated.
func metrics(t *testing.T) map[string]metric {
	t.Helper()
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]metric{
		// Those that Prometheus and its library for Go have.
		"up": {kind: "gauge"}, "process_start_time_seconds": {kind: "gauge"}, "process_resident_memory_bytes": {kind: "gauge"},
		"process_cpu_seconds_total": {kind: "counter"}, "go_goroutines": {kind: "gauge"},
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([a-z]+) \\| (.*?) \\| ").FindAllStringSubmatch(string(text), -1) {
		all[m[1]] = metric{m[2], strings.FieldsFunc(m[3], func(r rune) bool { return strings.ContainsRune("`, ", r) })}
	}
	if len(all) < 100 {
		t.Fatalf("docs/metrics.md has %d metrics", len(all))
	}
	return all
}

// had is a series that a link had at the end of a run. The value is 1 if it depends on the moment.
type had struct {
	labels map[string]string
	value  float64
}

// values returns the series of a run, by metric.
func values(t *testing.T) map[string][]had {
	t.Helper()
	text, err := os.ReadFile("../test/metrics/testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]had{}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		of := had{map[string]string{}, 1}
		for _, m := range regexp.MustCompile(`([a-z]+)=([^=]*) `).FindAllStringSubmatch(rest, -1) {
			of.labels[m[1]] = m[2]
		}
		if value := rest[strings.LastIndex(rest, " ")+1:]; value != "*" {
			if of.value, err = strconv.ParseFloat(value, 64); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
		}
		all[name] = append(all[name], of)
	}
	return all
}

// selectors returns the series that an expression names, in its order.
func selectors(t *testing.T, expr string) []*parser.VectorSelector {
	t.Helper()
	tree, err := parsing.ParseExpr(expr)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	var list []*parser.VectorSelector
	parser.Inspect(tree, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			list = append(list, s)
		}
		return nil
	})
	if len(list) == 0 {
		t.Fatalf("%s has no series", expr)
	}
	return list
}

// counting are functions of counters, measuring those of gauges.
var (
	counting  = []string{"rate", "irate", "increase"}
	measuring = []string{"delta", "idelta", "deriv", "predict_linear"}
)

// checker checks expressions against the list of metrics.
type checker struct {
	t      *testing.T
	known  map[string]metric
	values map[string][]had
}

func newChecker(t *testing.T) *checker {
	return &checker{t: t, known: metrics(t), values: values(t)}
}

// check reports metrics of an expression that there are not, or not with that type, those labels, or those
// values of labels.
func (c *checker) check(where, expr string) {
	c.t.Helper()
	tree, err := parsing.ParseExpr(expr)
	if err != nil {
		c.t.Errorf("%s: %s: %v", where, expr, err)
		return
	}
	var all []string // labels of all series of the expression
	parser.Inspect(tree, func(n parser.Node, path []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			all = append(all, c.selector(where, s, function(path))...)
		}
		return nil
	})
	parser.Inspect(tree, func(n parser.Node, _ []parser.Node) error {
		var used []string
		switch n := n.(type) {
		case *parser.AggregateExpr:
			used = n.Grouping
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				used = append(n.VectorMatching.MatchingLabels, n.VectorMatching.Include...)
			}
		}
		for _, l := range used {
			if !slices.Contains(all, l) {
				c.t.Errorf("%s: %s: no series has the label %s", where, expr, l)
			}
		}
		return nil
	})
}

// function returns the innermost function around a node.
func function(path []parser.Node) string {
	for _, n := range slices.Backward(path) {
		if call, ok := n.(*parser.Call); ok {
			return call.Func.Name
		}
	}
	return ""
}

// selector checks one series, and returns its labels.
func (c *checker) selector(where string, s *parser.VectorSelector, in string) []string {
	c.t.Helper()
	m, known := c.known[s.Name]
	base, part := s.Name, ""
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if name, is := strings.CutSuffix(s.Name, suffix); is && c.known[name].kind == "histogram" {
			m, known, base, part = c.known[name], true, name, suffix
		}
	}
	if !known {
		c.t.Errorf("%s: there is no metric %s", where, s.Name)
		return nil
	}
	counts := m.kind == "counter" || part != ""
	switch {
	case m.kind == "histogram" && part == "":
		c.t.Errorf("%s: %s is a histogram", where, s.Name)
	case counts && slices.Contains(measuring, in), !counts && slices.Contains(counting, in):
		c.t.Errorf("%s: %s of %s, which is a %s", where, in, s.Name, m.kind)
	case counts && in == "" && m.kind == "counter":
		c.t.Errorf("%s: the counter %s is shown as it is", where, s.Name)
	}
	has := append([]string{"job", "instance", "link"}, m.labels...)
	if part == "_bucket" {
		has = append(has, "le")
	}
	for _, l := range s.LabelMatchers {
		if l.Name == labels.MetricName {
			continue
		}
		if !slices.Contains(has, l.Name) {
			c.t.Errorf("%s: %s has no label %s", where, s.Name, l.Name)
		}
		c.matcher(where, base, l)
	}
	return has
}

// matcher reports values that a label of a metric does not have: each alternative has to match one.
func (c *checker) matcher(where, name string, m *labels.Matcher) {
	c.t.Helper()
	var values []string
	for _, v := range c.values[name] {
		if value, has := v.labels[m.Name]; has {
			values = append(values, value)
		}
	}
	if len(values) == 0 || m.Name == "link" || strings.Contains(m.Value, ".*") {
		return
	}
	for alternative := range strings.SplitSeq(m.Value, "|") {
		if !slices.Contains(values, alternative) {
			c.t.Errorf("%s: %s never had %s=%q, but %q", where, name, m.Name, alternative, values)
		}
	}
}

// TestRuleMetrics: every metric that a rule names exists, with that type and those labels. What another
// rule records is of the same group, and before it: groups are evaluated at different times.
func TestRuleMetrics(t *testing.T) {
	t.Parallel()
	for _, g := range readRules(t).Groups {
		c := newChecker(t)
		for _, r := range g.Rules {
			c.check(r.Record+r.Alert, r.Expr)
			if r.Record != "" {
				c.known[r.Record] = metric{kind: "gauge"}
			}
		}
	}
}
